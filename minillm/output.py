"""What a program prints, where its reader may go away before its end (`| head -1`, a terminal that is closed)."""

import os
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

T = TypeVar("T")


class Unheard:
    """A text stream that goes on into nothing from the first time that it cannot be written: the work matters more.

    All else is the stream's own.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        return self.unheard(lambda: self.stream.write(text))

    def flush(self) -> None:
        self.unheard(self.stream.flush)

    def unheard(self, act: Callable[[], T]) -> T:
        try:
            return act()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            return act()


def go_on_unheard() -> None:
    """From here on nothing that this process prints can end it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Unheard):  # None: it was closed from the start
            setattr(sys, name, Unheard(stream))
