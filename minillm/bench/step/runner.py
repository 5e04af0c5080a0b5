"""The run: every variant built and warmed up, then all of them timed in turns, then each profiled.

All stay in memory for the turns. Each one's peak is taken while it is the last one there, less what was there before.
"""

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from minillm import hardware, requirements
from minillm.bench.roofs import copy_roof
from minillm.bench.runner import brief, compiling_them_all
from minillm.bench.step.config import StepConfig
from minillm.bench.step.results import Results, Variant
from minillm.bench.step.step import Step
from minillm.bench.step.variants import build, compose_config
from minillm.bench.timing import DeviceClock
from minillm.callbacks.clock import DeviceTimer, HostTimer, Timer
from minillm.callbacks.idle import IdleProbe
from minillm.waterfall.parts import Kernel, by_part
from minillm.waterfall.trace import record

WARM_UP = 4
LEAD_IN = 2  # steps before a block: the allocator and the caches are still another variant's
BLOCK = {"cuda": 10, "cpu": 2}  # steps
PROFILED_STEPS = 2
IDLE_STEPS = 20  # so many that the card's clocks are those of the steps that were timed
GIB = 2**30


def plan(options: StepConfig) -> Results:
    """What will be measured. Raises UserError, before any work, for what cannot be."""
    gpu = torch.cuda.is_available()
    names = dict.fromkeys(options.impl)
    variants = [Variant(name, compose_config(options.model, name, options.attention)) for name in names]
    requirements.check(*(variant.config for variant in variants))
    env = hardware.environment("gpu" if gpu else "cpu")
    return Results(options, variants, env, hardware.peak_flops(env["device"]) if gpu else None)


def run(results: Results, save: Callable[[], object], progress: Callable[[str], None]) -> None:
    """Fill in `results`, saved after each stage. A variant that fails is left with its trouble, the others go on."""
    with compiling_them_all(len(results.variants)):
        measure(results, save, progress)


def measure(results: Results, save: Callable[[], object], progress: Callable[[str], None]) -> None:
    """All the stages of `run`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    steps: dict[str, Step] = {}
    if device.type == "cuda":
        results.roof = copy_roof(DeviceClock(device), device)
        progress(f"copy roof {results.roof.gb_per_second:.0f} GB/s")
    else:
        progress(f"{hardware.why_no_gpu()}: a step of more than model=tiny takes minutes, and its time says nothing")
    for variant in results.variants:
        with failing_alone(variant, steps):
            steps[variant.name] = ready(variant, device)
        save()
        peak = "" if variant.peak_gib is None else f", peak {variant.peak_gib:.2f} GiB"
        progress(f"{variant.name}: {variant.trouble or f'ready after {variant.ready_s:.0f} s{peak}'}")
    timer: Timer = DeviceTimer() if device.type == "cuda" else HostTimer()
    for number in range(results.options.rounds):
        for variant in turns(results.variants, number):
            with failing_alone(variant, steps):
                variant.ms.append(block(steps[variant.name], timer, device))
        save()
        times = (v.trouble or f"{v.name} {v.ms[-1]:.2f} ms" for v in results.variants)
        progress(f"round {number + 1}: {', '.join(times)}")
    for variant in turns(results.variants, 0):
        with failing_alone(variant, steps):
            look_inside(variant, steps[variant.name], device)
        save()
        progress(f"{variant.name}: {variant.trouble or 'profiled'}")


def turns(variants: list[Variant], number: int) -> list[Variant]:
    """Who runs in round `number`, in which order: A B, B A, A B ... so that a drift meets all alike."""
    running = [variant for variant in variants if not variant.trouble]
    return running if number % 2 == 0 else running[::-1]


@contextmanager
def failing_alone(variant: Variant, steps: dict[str, Step]) -> Iterator[None]:
    """What fails inside (out of memory, a compiler, a capture) is a finding about the variant, and the end of it."""
    try:
        yield
    except Exception as error:
        variant.trouble = brief(error)
        steps.pop(variant.name, None)


def ready(variant: Variant, device: torch.device) -> Step:
    """Build and warm up."""
    gpu, started = device.type == "cuda", time.perf_counter()
    gc.collect()  # what a variant that failed has left
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if gpu else 0
    step = build(variant.name, variant.config, device)
    with step.attention():
        for _ in range(WARM_UP):
            step()
    if gpu:
        torch.cuda.synchronize()
        variant.peak_gib = (torch.cuda.max_memory_allocated() - before) / GIB
    variant.ready_s = time.perf_counter() - started
    return step


def block(step: Step, timer: Timer, device: torch.device) -> float:
    """Mean ms of a step, of several with nothing in between."""
    steps = BLOCK[device.type]
    with step.attention():
        for _ in range(LEAD_IN):
            step()
        begin = timer.mark()
        for _ in range(steps):
            step()
        end = timer.mark()
    if device.type == "cuda":
        torch.cuda.synchronize()
    ms = timer.elapsed_ms(begin, end)
    assert ms is not None  # the device has got there
    return ms / steps


def look_inside(variant: Variant, step: Step, device: torch.device) -> None:
    """The waterfall's lines, with the host's operators on record; then how long the device is busy."""
    with step.attention():
        step()
        with step.marks():
            kernels = record(step, PROFILED_STEPS)
        variant.parts = by_part(kernels, PROFILED_STEPS)
        variant.kernels = by_name(kernels, PROFILED_STEPS)
        if device.type == "cuda":
            probe = IdleProbe(IDLE_STEPS)
            probe.start()
            for _ in range(IDLE_STEPS):
                step()
            probe.stop()
            variant.busy_ms = probe.busy_ms


def by_name(kernels: list[Kernel], steps: int) -> list[tuple[str, str, float, float]]:
    """(name, line, ms a step, calls a step), the most expensive first."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kernel in kernels:
        found[kernel.name, kernel.part].append(kernel.duration / 1000)
    rows = [(*key, sum(times) / steps, len(times) / steps) for key, times in found.items()]
    return sorted(rows, key=lambda row: -row[2])
