"""What the memory allows: its copy bandwidth, measured on this card in this run, and how much of it is free."""

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minillm.bench.op import Case
from minillm.bench.timing import DeviceClock, Summary, interleave

COPY_BYTES = 2**29  # 512 MiB
WARM_UP, ROUNDS = 200, 50  # 200 copies are some 50 ms at 4 TB/s: the clocks are up by then


@dataclass(frozen=True)
class Roof:
    """Copy bandwidth: bytes read + written a second, in GB/s."""

    gb_per_second: float
    ms: Summary


def copy_roof(clock: DeviceClock, device: torch.device) -> Roof:
    """A device-to-device copy of 512 MiB, or of a quarter of what is free if that is less."""
    elements = min(COPY_BYTES, free_bytes(device) // 4) // 2
    source = torch.ones(elements, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    for _ in range(WARM_UP):
        target.copy_(source)
    copy = {"copy": lambda: clock.measure(lambda: None, lambda _: target.copy_(source))[0]}
    ms = interleave(copy, ROUNDS, seed=0)["copy"]
    return Roof(2 * source.nbytes / ms.median / 1e6, ms)


def free_bytes(device: torch.device) -> int:
    """What an allocation on the device could take now, this process's idle cache included."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def fit(case: Case, bytes_an_element: int, free: int) -> tuple[Case, str]:
    """The case with its rows halved until it fits into `free` bytes, and a note on that; "" if it fitted as it was."""
    rows = case.rows
    while rows > 1 and rows * case.width * bytes_an_element > free:
        rows //= 2
    if rows == case.rows:
        return case, ""
    note = (
        f"{case.rows} x {case.width} shrunk to {rows} x {case.width}: {free / 2**30:.1f} GiB of device memory are free"
    )
    return replace(case, rows=rows), note


def extra_bytes(
    call: Callable[[Any], Iterable[Tensor | None]], state: Any, inputs: Iterable[Tensor]
) -> tuple[int, int]:
    """(peak, kept): device memory of `call(state)` at its highest and after it, beside its inputs and its results.

    A backward keeps nothing: it frees what its forward kept.
    """
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call(state)
    torch.cuda.synchronize()
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in result if t is not None)}
    for tensor in inputs:  # a result that is a view of one is nothing new
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    returned = sum(storages.values())
    peak, kept = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    return peak - before - returned, max(0, kept - before - returned)
