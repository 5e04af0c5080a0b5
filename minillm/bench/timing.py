"""How long a call takes: on the device by its own events, cold caches, in turns; on the host by the wall clock."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Summary:
    """Median and spread of n samples, in their unit."""

    median: float
    p10: float
    p90: float
    n: int


def summarize(samples: list[float]) -> Summary:
    """Raises ValueError for fewer than two samples: they have no spread."""
    if len(samples) < 2:
        raise ValueError(f"{len(samples)} sample(s) have no spread: take at least 2")
    deciles = statistics.quantiles(samples, n=10, method="inclusive")
    return Summary(statistics.median(samples), deciles[0], deciles[8], len(samples))


def interleave(measures: Mapping[str, Callable[[], float]], rounds: int, seed: int) -> dict[str, Summary]:
    """Every measure once a round, the order new in each: what drifts (clocks, heat) then meets all of them alike."""
    order, names = random.Random(seed), list(measures)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            samples[name].append(measures[name]())
    return {name: summarize(values) for name, values in samples.items()}


class DeviceClock:
    """Device time of one call, in ms, its inputs not in the L2 cache and the host's own time hidden.

    The device is first given a buffer to overwrite (which empties the cache of the call's inputs and leaves it as full
    of unwritten lines as any kernel finds it), then a wait. While it waits the host queues the call, so that the two
    events around it enclose device work alone. Whether the wait was long enough is seen and not assumed: the first
    event must still be pending when the call has been queued.
    """

    # Clock cycles to wait; 2e6 is about 1 ms. A call not queued within the last one makes the host wait for the device.
    WAITS = (2_000_000, 8_000_000, 32_000_000)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        cache = torch.cuda.get_device_properties(device).L2_cache_size
        self.flush = torch.empty(4 * cache, dtype=torch.int8, device=device)

    def measure(self, prepare: Callable[[], Any], call: Callable[[Any], object]) -> tuple[float, bool]:
        """(ms, hidden): device time of the call alone in `call(prepare())`, and whether it is free of the host's."""
        milliseconds, hidden = 0.0, False
        for wait in self.WAITS:
            state = prepare()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self.flush.zero_()
            torch.cuda._sleep(wait)  # the one way to keep the device busy without memory traffic
            start.record()
            result = call(state)
            hidden = not start.query()
            end.record()
            end.synchronize()
            del result
            milliseconds = start.elapsed_time(end)
            if hidden:
                break
        return milliseconds, hidden


HOST_CALLS = 20


def host_microseconds(call: Callable[[], object]) -> float:
    """Wall-clock time of a call, one of HOST_CALLS in a row: warm caches, as in a loop over layers.

    Its work must be so small that the device never makes the host wait.
    """
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    return 1e6 * (time.perf_counter() - start) / HOST_CALLS
