"""The errors that a user can cause: a sentence, never a stack."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Bad input. The message says what was given, what is possible and what to type instead."""


class OtherRankError(UserError):
    """What all ranks fail with and another has brought about: that one's message says more."""


@contextmanager
def reading(path: Path, *damage: type[Exception], instead: str) -> Iterator[None]:
    """Around what reads a file, or folders: what cannot be read is a UserError, with why and what to do instead.

    damage: what the reader raises, besides OSError, for content that is not as it was written.
    """
    expected: tuple[type[Exception], ...] = (OSError, *damage)
    try:
        yield
    except expected as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        named = getattr(error, "filename", None) or path
        raise UserError(f"{named} cannot be read ({reason}): {instead}") from error
