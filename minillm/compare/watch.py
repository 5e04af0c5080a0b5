"""What the machine did while a window ran: the GPU's clock and heat, and the load that others put on it."""

import os
import time
from pathlib import Path

from minillm.compare.records import Machine
from minillm.nvidia_smi import gpu_state, other_processes


class Watch:
    """`begin()` before a window, `end()` after it. Each takes milliseconds (with nvidia-smi some hundred) and falls
    outside of what is measured."""

    def __init__(self) -> None:
        self.before: tuple[float, float, float] | None = None

    def begin(self, pids: list[int]) -> None:
        """pids: of our workers, each the leader of its session."""
        self.before = cpu_seconds(pids)

    def end(self, pids: list[int], gpu: str | None) -> Machine:
        """gpu: the device's UUID; None: no GPU is used."""
        after = cpu_seconds(pids)
        share = None
        if self.before is not None and after is not None:
            elapsed, busy, ours = (new - old for new, old in zip(after, self.before, strict=True))
            share = max(0.0, busy - ours) / (elapsed * len(allowed_cpus()))
        if gpu is None:
            return Machine(other_cpu_share=share)
        clock, watts, celsius = gpu_state(gpu)
        return Machine(
            clock_mhz=clock,
            watts=watts,
            celsius=celsius,
            other_gpu_processes=other_processes(gpu, len(pids)),
            other_cpu_share=share,
        )


def allowed_cpus() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cpu_seconds(pids: list[int]) -> tuple[float, float, float] | None:
    """(now, CPU time that anybody used on the CPUs we may use, CPU time of our own processes), all counted from some
    moment; None where /proc does not tell. Time that a hypervisor took away counts as somebody's."""
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        busy, names = 0, {f"cpu{number}" for number in allowed_cpus()}
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name in names:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
                busy += user + nice + system + irq + softirq + steal
        ours = sum(used(entry, pids) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return time.monotonic(), busy / ticks, ours / ticks
    except (OSError, ValueError, AttributeError):
        return None


def used(process: Path, sessions: list[int]) -> int:
    """Ticks that a process used, if it is this one or in one of the sessions; a worker's helpers share its session."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()  # the name before may hold anything
    except OSError:  # it has ended
        return 0
    ours = int(fields[3]) in sessions or int(process.name) == os.getpid()
    return sum(map(int, fields[11:15])) if ours else 0  # user, system, and those of children that have ended
