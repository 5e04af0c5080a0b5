"""A few steps on record: every kernel of the device, and the part of the model that launched it.

From kernel to part. A kernel's launch happened on some host thread at some moment (the profiler gives both one
number; where it did not see the launch, the operator's start has to do). If a marked range was open there, that is its
part. In backward none is: but the profiler draws an arrow from each operator of forward to its node of backward (by
autograd's sequence number), and the range at the arrow's tail is the part of all that the node launches. Read from the
trace in Chrome's format, which is the profiler's public one.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from minillm.waterfall.parts import Kernel, part_of
from minillm.waterfall.ranges import PREFIX

Event = dict[str, Any]
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
NODE = "autograd::engine::evaluate_function"  # a node of backward, and around it the sums of its gradients


class Ranges:
    """Named intervals on threads, nested as calls are."""

    def __init__(self, intervals: Iterable[tuple[Hashable, float, float, str]]) -> None:
        """intervals: (thread, start, end, name)."""
        self.starts: dict[Hashable, list[float]] = defaultdict(list)
        self.rows: dict[Hashable, list[tuple[float, str, int]]] = defaultdict(list)  # end, name, the one around it
        for thread, start, end, name in sorted(intervals, key=lambda i: (i[1], -i[2])):
            around = self.find(thread, start)
            self.starts[thread].append(start)
            self.rows[thread].append((end, name, around))

    def find(self, thread: Hashable, moment: float) -> int:
        """Number of the innermost interval around the moment; -1 for none."""
        number, rows = bisect_right(self.starts[thread], moment) - 1, self.rows[thread]
        while number >= 0 and rows[number][0] <= moment:
            number = rows[number][2]
        return number

    def name(self, thread: Hashable, moment: float) -> str:
        """Name of the innermost interval around the moment; "" for none."""
        number = self.find(thread, moment)
        return self.rows[thread][number][1] if number >= 0 else ""


def record(step: Callable[[], object], steps: int) -> list[Kernel]:
    """The kernels of so many calls of `step`. Without a GPU the host's operators stand in for them."""
    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    if gpu:
        torch.cuda.synchronize()
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            step()
        if gpu:
            torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)["traceEvents"]
    return device_kernels(events) if gpu else host_kernels(events)


def device_kernels(events: list[Event]) -> list[Kernel]:
    """The device's kernels, copies and fills, in the order of their starts. Annotations, which repeat their kernels'
    time, are left out."""
    ranges = part_ranges(events)
    launches = numbered(events, LAUNCHES, "correlation")
    operators = numbered(events, ("cpu_op",), "External id")
    kernels = []
    for event in events:
        if event.get("cat") in DEVICE_WORK:
            by = event["args"]
            origins = launches.get(by.get("correlation")), operators.get(by.get("External id"))
            part = next((p for origin in origins if origin and (p := ranges.name(origin["tid"], origin["ts"]))), "")
            kernels.append(Kernel(event["name"], event["ts"], event["dur"], part_of(event["name"], part)))
    return sorted(kernels, key=lambda kernel: kernel.start)


def host_kernels(events: list[Event]) -> list[Kernel]:
    """The host's operators, each with the time that it did not spend in others."""
    ranges = part_ranges(events)
    operators = [e for e in events if e.get("cat") == "cpu_op"]
    own = [event["dur"] for event in operators]
    nest = Ranges((e["tid"], e["ts"], e["ts"] + e["dur"], str(number)) for number, e in enumerate(operators))
    for rows in nest.rows.values():
        for _, name, around in rows:
            if around >= 0:
                own[int(rows[around][1])] -= operators[int(name)]["dur"]
    return [
        Kernel(e["name"], e["ts"], time, part_of(e["name"], ranges.name(e["tid"], e["ts"])))
        for e, time in zip(operators, own, strict=True)
    ]


def part_ranges(events: list[Event]) -> Ranges:
    """Where, on the host, which part was at work: in forward by the marks, in backward by way of the arrows."""
    forward = [interval(e, mark) for e in events if e.get("cat") == "user_annotation" and (mark := mark_of(e["name"]))]
    marks = Ranges(forward)
    operators: dict[tuple[int, float], Event] = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            outermost = operators.setdefault((event["tid"], event["ts"]), event)
            if outermost["dur"] < event["dur"]:
                operators[event["tid"], event["ts"]] = event
    backward = [interval(e, "gradient sums") for e in operators.values() if e["name"].startswith(NODE)]
    arrows = [e for e in events if e.get("cat") == "fwdbwd"]
    tails = {e["id"]: marks.name(e["tid"], e["ts"]) for e in arrows if e["ph"] == "s"}
    for arrow in arrows:
        node = operators.get((arrow["tid"], arrow["ts"]))
        if arrow["ph"] == "f" and node is not None:
            backward.append(interval(node, tails.get(arrow["id"], "")))
    return Ranges(forward + backward)


def numbered(events: list[Event], categories: tuple[str, ...], key: str) -> dict[Any, Event]:
    """The events of these categories by a number of theirs."""
    found = (e for e in events if e.get("cat") in categories)
    return {e["args"][key]: e for e in found if key in e.get("args", {})}


def interval(event: Event, name: str) -> tuple[Hashable, float, float, str]:
    return event["tid"], event["ts"], event["ts"] + event["dur"], name


def mark_of(annotation: str) -> str:
    """The part that an annotation names: ours, or the one that PyTorch puts around an optimizer's step; "" for none."""
    if annotation.startswith("Optimizer.step"):
        return "optimizer"
    return annotation.removeprefix(PREFIX) if annotation.startswith(PREFIX) else ""
