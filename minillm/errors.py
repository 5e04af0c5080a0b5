"""The errors that a user can cause: a sentence, never a stack."""


class UserError(Exception):
    """Bad input. The message says what was given, what is possible and what to type instead."""


class OtherRankError(UserError):
    """What all ranks fail with and another has brought about: that one's message says more."""
