"""On a GPU: what a layer's passes take, and the kernels that the profiler sees of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from minillm.bench.op import Function, Inputs
from minillm.bench.passes import Noted, calls, device_time, forward_and_backward
from minillm.bench.timing import DeviceClock, Summary, interleave
from minillm.waterfall.trace import DEVICE_WORK, LAUNCHES, numbered

ROUNDS, WARM_UP = 50, 3
PASSES = ("forward", "backward")
MARK = "pass: "


@dataclass(frozen=True)
class DeviceKernel:
    """One kernel, copy or fill as the profiler saw it; None: it does not say, of copies and fills."""

    name: str
    microseconds: float  # warm caches, so not the time that is compared
    grid: tuple[int, ...] | None
    threads: int | None  # a program
    registers: int | None  # a thread


def times(
    functions: Mapping[str, Function], inputs: Inputs, clock: DeviceClock, found: Mapping[str, Noted]
) -> dict[str, dict[str, Summary]]:
    """Pass -> name -> ms, of functions that have run before, in turns; host time in it is noted in `found`."""
    took = {}
    for direction in PASSES:
        samples = {name: device_time(clock, direction, f, inputs, found[name]) for name, f in functions.items()}
        took[direction] = interleave(samples, ROUNDS, seed=0)
    return took


def profiled(function: Function, inputs: Inputs, trace: Path) -> dict[str, list[DeviceKernel]]:
    """Pass -> its kernels in the order of their starts; the Chrome trace is written to `trace`."""
    for _ in range(WARM_UP):
        forward_and_backward(function, inputs)()
    forward, backward = calls(function, inputs)["backward"]
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function(MARK + "forward"):
            outputs = forward()
        with record_function(MARK + "backward"):
            backward(outputs)
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(trace))
    return by_pass(json.loads(trace.read_text(encoding="utf-8", errors="replace"), strict=False)["traceEvents"])


def by_pass(events: list[dict[str, Any]]) -> dict[str, list[DeviceKernel]]:
    """A kernel belongs to the pass in which the host launched it, on whichever thread."""
    marks = {e["name"]: e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith(MARK)}
    launches = numbered(events, LAUNCHES, "correlation")
    found: dict[str, list[DeviceKernel]] = {direction: [] for direction in PASSES}
    for event in sorted((e for e in events if e.get("cat") in DEVICE_WORK), key=lambda e: e["ts"]):
        launch = launches.get(event["args"].get("correlation"))
        for direction in PASSES:
            mark = marks.get(MARK + direction)
            if launch and mark and mark["ts"] <= launch["ts"] < mark["ts"] + mark["dur"]:
                found[direction].append(kernel(event))
    return found


def kernel(event: dict[str, Any]) -> DeviceKernel:
    by = event["args"]
    grid, block = by.get("grid"), by.get("block")
    threads = None if block is None else torch.Size(block).numel()
    shape = None if grid is None else tuple(grid)
    return DeviceKernel(event["name"], event["dur"], shape, threads, by.get("registers per thread"))
