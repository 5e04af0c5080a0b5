"""How much of its time the GPU has nothing to do: a step's length less what its kernels took."""

from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of what the intervals (start, end) cover, in their unit; they may overlap, as kernels of streams do."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def idle_share(busy_ms: float | None, step_ms: float | None) -> float | None:
    """Part of a step in which no kernel runs; None where either is not known."""
    return None if busy_ms is None or step_ms is None else max(0.0, 1 - busy_ms / step_ms)


class IdleProbe:
    """Records the device's kernels and copies between `start()` and `stop()`, `steps` steps.

    Only their own time is taken from the record. Recording slows the host, which then shows as a device that waits: a
    step's length comes from steps that were not recorded.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.busy_ms: float | None = None  # a step
        self.profiler: profile | None = None

    def start(self) -> None:
        torch.cuda.synchronize()  # the steps before are none of its business, and their times are known by then
        self.profiler = profile(activities=[ProfilerActivity.CUDA], acc_events=True)  # without, it warns
        self.profiler.start()

    def stop(self) -> None:
        if self.profiler is None:
            return
        torch.cuda.synchronize()
        self.profiler.stop()
        # Annotations (an optimizer's step) span their kernels and the gaps between them: not work of the device.
        microseconds = covered(
            (event.time_range.start, event.time_range.end)
            for event in self.profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
        )
        self.busy_ms = microseconds / 1000 / self.steps
        self.profiler = None
