"""How much of its time the GPU has nothing to do, from its own record of a few steps."""

from collections.abc import Iterable

import torch
from torch.profiler import ProfilerActivity, profile


def idle_share(intervals: Iterable[tuple[float, float]]) -> float | None:
    """Part of the time from the first start to the last end that no interval covers; None without any.

    intervals: (start, end) in any unit, in any order, overlapping or not (kernels of several streams do).
    """
    ordered = sorted(intervals)
    if not ordered:
        return None
    busy, (first, reached) = 0.0, (ordered[0][0], ordered[0][0])
    for start, end in ordered:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - busy / (reached - first) if reached > first else None


class IdleProbe:
    """Records the device's kernels and copies between `start()` and `stop()`.

    Host operators are not recorded: that would slow the host, and a GPU that waits for the host is what is looked for.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self.profiler: profile | None = None

    def start(self) -> None:
        torch.cuda.synchronize()  # the steps before are none of its business, and their times are known by then
        self.profiler = profile(activities=[ProfilerActivity.CUDA])
        self.profiler.start()

    def stop(self) -> None:
        if self.profiler is None:
            return
        torch.cuda.synchronize()
        self.profiler.stop()
        # Annotations (an optimizer's step) span their kernels and the gaps between them: not work of the device.
        self.share = idle_share(
            (event.time_range.start, event.time_range.end)
            for event in self.profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
        )
        self.profiler = None
