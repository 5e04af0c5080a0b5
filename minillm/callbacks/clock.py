"""The steps' clock: how long each optimizer step took, with nothing in between counted and nobody made to wait.

A step begins when its batch is asked for and ends when its update is queued; logging, validation and checkpoints happen
between an end and the next beginning and are outside by construction. On a GPU both moments are events in the device's
stream, read after the device has passed them: the host never waits. While the host runs ahead, the device passes a
step's beginning in the same instant as the end before it, so the times are the device's own, gapless.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from lightning.pytorch.profilers import Profiler

Mark = TypeVar("Mark")


class Timer(Protocol[Mark]):
    """Where time is read."""

    def mark(self) -> Mark:
        """Now."""

    def elapsed_ms(self, start: Mark, end: Mark) -> float | None:
        """Milliseconds between two marks; None while the device has not got there."""


class HostTimer:
    """`time.perf_counter`: for a CPU, which has done what it was told when the call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def elapsed_ms(self, start: float, end: float) -> float | None:
        return 1000 * (end - start)


class DeviceTimer:
    """CUDA events in the current stream."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_ms(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        return start.elapsed_time(end) if end.query() else None


@dataclass(frozen=True)
class Step:
    """One measured optimizer step: its length and how long the host waited for its data (ms), its tokens."""

    ms: float
    wait_ms: float
    tokens: int


class StepClock(Profiler, Generic[Mark]):
    """Steps as Lightning's loop announces them: its profiler is told of every action by name.

    `close(tokens)` takes the step that has just ended into the count; `take()` gives the closed steps whose times are
    known by now, each once, in order.
    """

    FETCH = "[_TrainingEpochLoop].train_dataloader_next"
    STEP = "run_training_batch"

    def __init__(self, timer: Timer[Mark]) -> None:
        super().__init__()
        self.timer = timer
        self.open: deque[tuple[Mark, Mark, float, int]] = deque()
        self.begin: Mark | None = None
        self.end: Mark | None = None
        self.fetch_started = self.wait = 0.0

    def start(self, action_name: str) -> None:
        if action_name == self.FETCH:
            self.begin, self.end = self.timer.mark(), None
            self.fetch_started = time.perf_counter()

    def stop(self, action_name: str) -> None:
        if action_name == self.FETCH:
            self.wait = 1000 * (time.perf_counter() - self.fetch_started)
        elif action_name == self.STEP:
            self.end = self.timer.mark()

    def close(self, tokens: int) -> None:
        if self.begin is None or self.end is None:
            raise RuntimeError("Lightning announced no step: have its action names changed?")
        self.open.append((self.begin, self.end, self.wait, tokens))

    def take(self) -> list[Step]:
        steps = []
        while self.open:
            begin, end, wait, tokens = self.open[0]
            ms = self.timer.elapsed_ms(begin, end)
            if ms is None:
                break
            self.open.popleft()
            steps.append(Step(ms, wait, tokens))
        return steps
