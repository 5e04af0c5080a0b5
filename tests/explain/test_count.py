"""What is counted equals what others count: the profiler, Triton's own launcher, arithmetic."""

from collections import Counter as Tally
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from triton.runtime.interpreter import GridExecutor

from kernels.operator import INTERPRETED
from minillm import compose
from minillm.bench.op import Function, Inputs
from minillm.bench.passes import calls
from minillm.explain.card import H200
from minillm.explain.count import Counted, Counter, count
from minillm.explain.subjects import Subject, subjects

CPU, META = torch.device("cpu"), torch.device("meta")
LAYERS = [("norm", "textbook"), ("norm", "eager"), ("rope", "eager"), ("mlp", "eager"), ("loss", "eager")]
interpreted = pytest.mark.skipif(not INTERPRETED, reason="Triton's interpreter is off where there is a GPU")


def prepared(layer: str, name: str, shape: tuple[int, ...] | None = None) -> tuple[Subject, Function]:
    """The first subject of a small model, in fp32."""
    typed = [f"{layer}={name}", "batch.micro=2", "data.sequence_length=16"]
    (config,) = compose.check(compose.read(typed))
    subject = subjects(config, layer, shape, torch.float32)[0]
    return subject, subject.build(config)


def tally(passed: Counted) -> Tally[str]:
    return Tally(launch.name for launch in passed.launches)


def seen_by_the_profiler(function: Function, inputs: Inputs, names: set[str]) -> dict[str, Tally[str]]:
    """Calls of the operations of these names, in-place ones too, that no other of them made."""

    def tallied(call: Any) -> tuple[Any, Tally[str]]:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            result = call()
        found: Tally[str] = Tally()
        for event in profiler.events():
            above = event.cpu_parent
            while above is not None and above.name.removesuffix("_") not in names:
                above = above.cpu_parent
            if above is None and event.name.removesuffix("_") in names:
                found[event.name.removesuffix("_")] += 1
        return result, found

    forward, backward = calls(function, inputs)["backward"]
    outputs, going = tallied(forward)
    return {"forward": going, "backward": tallied(lambda: backward(outputs))[1]}


@pytest.mark.parametrize(("layer", "name"), LAYERS)
def test_operations_are_those_that_the_profiler_sees(layer: str, name: str) -> None:
    subject, function = prepared(layer, name)
    counted = count(function, subject.draw(CPU), H200)
    names = {launch.name for passed in counted.values() for launch in passed.launches}
    assert {d: tally(passed) for d, passed in counted.items()} == seen_by_the_profiler(
        function, subject.draw(CPU), names
    )


@pytest.mark.parametrize(("layer", "name"), LAYERS)
def test_without_data_the_same_is_counted(layer: str, name: str) -> None:
    subject, function = prepared(layer, name)
    with_data, without = (count(function, subject.draw(device), H200) for device in (CPU, META))
    for direction in ("forward", "backward"):
        assert tally(with_data[direction]) == tally(without[direction])
        assert with_data[direction].moved == without[direction].moved
        assert with_data[direction].kept == without[direction].kept


@interpreted
@pytest.mark.parametrize(("layer", "name"), [("norm", "triton_simple"), ("norm", "triton"), ("rope", "triton")])
def test_launches_and_grids_are_those_that_triton_makes(layer: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, tuple[int, ...]]] = []
    own = GridExecutor.__call__

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append((self.fn.__name__, tuple(self.grid)))
        return own(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    subject, function = prepared(layer, name, (2, 3, 512))
    counted = count(function, subject.draw(CPU), H200)
    launches = [launch.triton for passed in counted.values() for launch in passed.launches if launch.triton]
    assert [(t.kernel.fn.__name__, t.grid) for t in launches] == made
    assert made


def test_bytes_are_those_of_the_formula() -> None:
    """x -> x^2 (2 tensors), -> mean (1), x * rstd (2), * weight (2): 7 tensors, and what is a number a row."""
    subject, function = prepared("norm", "textbook", (2, 3, 512))
    forward = count(function, subject.draw(META), H200)["forward"]
    tensor, rows, weight = 3072 * 4, 6 * 4, 512 * 4
    assert forward.moved == 7 * tensor + 6 * rows + weight
    assert forward.intermediates == [tensor, rows, rows, rows, tensor]


@pytest.mark.parametrize(
    ("operation", "moved"),
    [
        (lambda x, y: x * y, [3]),
        (lambda x, y: x * x, [2]),  # one tensor, read once
        (lambda x, y: x + y[:1].expand(4, 8), [2.25]),  # of four rows one is there to be read
        (lambda x, y: x.add_(y), [3]),
        (lambda x, y: x.copy_(y), [2]),  # what is written over is not read
        (lambda x, y: x.zero_(), [1]),
        (lambda x, y: torch.mul(x, y, out=torch.empty_like(x)), [3]),
        (lambda x, y: torch.empty_like(x).view(8, 4).t(), []),  # no kernel
    ],
)
def test_an_operation_moves_what_it_reads_and_what_it_writes(operation: Any, moved: list[float]) -> None:
    x, y = torch.ones(4, 8), torch.ones(4, 8)
    with Counter() as counter:
        operation(x, y)
    assert [launch.moved / (4 * 8 * 4) for launch in counter.launches] == moved


def test_after_counting_kernels_launches_for_itself_again() -> None:
    from kernels import operator

    before = dict(vars(operator)), torch.autocast
    subject, function = prepared("norm", "triton", (2, 3, 512))
    count(function, subject.draw(META), H200)
    assert (dict(vars(operator)), torch.autocast) == before
