"""SIGTERM and SIGINT: the first ends the run in good order, a second one at once."""

import os
import signal
import threading
from types import FrameType
from typing import Any

HANDLED = (signal.SIGTERM, signal.SIGINT)


def leave_to_owner(worker: int = 0) -> None:
    """In a data loader's worker: a signal to the whole process group, of a terminal or of `timeout`, is not for it. Its
    owner finishes the step, for which it needs its workers, and then ends them, by SIGTERM where it must."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # Linux; a handler in Python is not told who sent the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=end_with_owner, args=(os.getppid(),), daemon=True).start()


def end_with_owner(owner: int) -> None:
    """Wait for the owner's SIGTERM, then end the process."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != owner:
        pass
    os._exit(0)


class Stopped(SystemExit):
    """A signal has ended the run. It ends the process, too, with the status that a shell gives: 143 or 130."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number
        self.name = signal.Signals(number).name

    def __reduce__(self) -> tuple[type["Stopped"], tuple[int]]:  # between processes
        return Stopped, (self.number,)


class Signals:
    """In its `with` block the first signal raises Stopped where it finds the program, so that it tidies up.

    From `defer()` on it is only remembered: `stop_if_received()` raises, at a moment of the caller's choice. A second
    signal finds the operating system's own handling, which needs no help from a program that may hang.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.deferred = False
        self.owner = os.getpid()
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        self.before = {number: signal.getsignal(number) for number in HANDLED}
        self.install()
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        for number in HANDLED:
            signal.signal(number, self.receive)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.owner:
            return  # a data loader's worker that has not yet left it to its owner
        for handled in HANDLED:
            signal.signal(handled, signal.SIG_DFL)
        if self.received is not None:  # Lightning has put this handler back
            signal.raise_signal(number)
        self.received = number
        if not self.deferred:
            raise Stopped(number)

    def defer(self) -> None:
        """From now on wait for `stop_if_received`. Takes the handlers back from Lightning, which puts in its own."""
        self.stop_if_received()  # raised where somebody swallowed it
        self.deferred = True
        self.install()

    def stop_if_received(self) -> None:
        if self.received is not None:
            raise Stopped(self.received)
