"""The one error that a user can cause: a sentence, never a stack."""


class UserError(Exception):
    """Bad input. The message says what was given, what is possible and what to type instead."""
