"""The passes of an operator: what is called, timed and measured by each name."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from minillm.bench.op import Function, Inputs
from minillm.bench.roofs import extra_bytes
from minillm.bench.timing import DeviceClock

HOST_TOO = "it makes the host wait for the device, so its times hold host time too"


class Noted(Protocol):
    """What is known of an implementation."""

    note: str


def calls(function: Function, inputs: Inputs) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Pass -> (prepare, call), of which call(prepare()) is the pass. Gradients are not accumulated into `.grad`.

    Before a backward its forward runs anew: no graph must outlive its backward.
    """

    def forward(_: object = None) -> tuple[Tensor, ...]:
        return function(*inputs.arguments)

    def backward(outputs: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(outputs, inputs.tensors, inputs.upstream, allow_unused=True)

    return {
        "forward": (lambda: None, forward),
        "backward": (forward, backward),
        "forward+backward": (lambda: None, lambda _: backward(forward())),
    }


def forward_and_backward(function: Function, inputs: Inputs) -> Callable[[], object]:
    return partial(calls(function, inputs)["forward+backward"][1], None)


def memory(function: Function, inputs: Inputs) -> dict[str, tuple[int, int]]:
    """(peak extra, kept extra) bytes of each pass."""
    passes = calls(function, inputs).items()
    return {direction: extra_bytes(call, prepare(), inputs.tensors) for direction, (prepare, call) in passes}


def device_time(
    clock: DeviceClock, direction: str, function: Function, inputs: Inputs, found: Noted
) -> Callable[[], float]:
    """What takes one sample of a pass, in ms; host time in it is noted in `found`."""
    prepare, call = calls(function, inputs)[direction]

    def sample() -> float:
        ms, hidden = clock.measure(prepare, call)
        if not hidden and HOST_TOO not in found.note:
            found.note = f"{found.note}; {HOST_TOO}" if found.note else HOST_TOO
        return ms

    return sample
