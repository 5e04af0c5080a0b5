"""From a kernel to the part of the model behind it, in made-up traces of a device and in a real one of a CPU."""

from typing import Any

import pytest
import torch

from minillm.bench.step.variants import build, compose_config
from minillm.build import build_model
from minillm.waterfall.parts import by_part
from minillm.waterfall.ranges import marked_parts
from minillm.waterfall.trace import Ranges, device_kernels, host_kernels, record

MAIN, BACKWARD = 1, 2  # threads


def event(cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launched(number: int, tid: int, ts: float, name: str = "void at::native::add", cat: str = "kernel") -> list[dict]:
    """A launch at `ts`, and its kernel long after."""
    launch = event("cuda_runtime", "cudaLaunchKernel", tid, ts, 1, correlation=number)
    return [launch, event(cat, name, 0, 1000 + ts, 10, correlation=number, stream=7)]


def arrow(number: int, tail: tuple[int, float], head: tuple[int, float]) -> list[dict[str, Any]]:
    ends = (("s", *tail), ("f", *head))
    return [{"ph": ph, "cat": "fwdbwd", "name": "fwdbwd", "id": number, "tid": tid, "ts": ts} for ph, tid, ts in ends]


FORWARD = [event("user_annotation", "part: norm", MAIN, 0, 100), event("cpu_op", "aten::pow", MAIN, 10, 20)]
NODE = [
    event("cpu_op", "autograd::engine::evaluate_function: PowBackward0", BACKWARD, 200, 100),
    event("cpu_op", "PowBackward0", BACKWARD, 210, 50),
    *arrow(1, (MAIN, 10), (BACKWARD, 210)),
]


def parts(events: list[dict[str, Any]]) -> list[str]:
    return [kernel.part for kernel in device_kernels(events)]


def test_a_kernel_of_forward_belongs_to_the_mark_that_was_open_when_it_was_launched() -> None:
    assert parts(FORWARD + launched(1, MAIN, 50)) == ["norm"]
    assert parts(FORWARD + launched(1, MAIN, 150)) == ["other elementwise"]
    assert parts(FORWARD + launched(1, BACKWARD, 50)) == ["other elementwise"]


def test_a_kernel_of_backward_belongs_to_the_mark_of_its_forward() -> None:
    assert parts(FORWARD + NODE + launched(1, BACKWARD, 220)) == ["norm"]


def test_what_adds_gradients_up_is_told_from_the_node_that_made_them() -> None:
    assert parts(FORWARD + NODE + launched(1, BACKWARD, 280)) == ["gradient sums"]


def test_a_kernel_whose_launch_was_not_seen_goes_by_the_operator() -> None:
    operator = event("cpu_op", "aten::pow", MAIN, 10, 20, **{"External id": 5})
    kernel = event("kernel", "void at::native::pow", 0, 1000, 10, **{"External id": 5})
    assert parts([FORWARD[0], operator, kernel]) == ["norm"]


def test_only_the_devices_own_work_counts() -> None:
    annotation = event("gpu_user_annotation", "Optimizer.step#AdamW.step", 0, 1000, 500)
    mark = event("user_annotation", "Optimizer.step#AdamW.step", MAIN, 300, 50)
    copy = launched(1, MAIN, 310, "Memcpy HtoD", "gpu_memcpy")
    (kernel,) = device_kernels([annotation, mark, *copy])
    assert (kernel.part, kernel.start, kernel.duration) == ("optimizer", 1310, 10)


def test_of_nested_ranges_the_innermost_counts() -> None:
    ranges = Ranges([(1, 0, 100, "a"), (1, 10, 50, "b"), (1, 10, 20, "c"), (2, 30, 40, "other")])
    assert [ranges.name(1, moment) for moment in (5, 15, 20, 35, 60, 100)] == ["a", "c", "b", "b", "a", ""]


def test_an_operators_own_time_is_without_those_it_calls() -> None:
    operators = [event("cpu_op", "aten::linear", MAIN, 0, 100), event("cpu_op", "aten::mm", MAIN, 10, 60)]
    assert [kernel.duration for kernel in host_kernels(operators)] == [40, 60]


@pytest.fixture(scope="module")
def step():  # type: ignore[no-untyped-def]
    step = build("eager", compose_config("tiny", "eager", "auto"), torch.device("cpu"))
    step()
    return step


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device's kernels are recorded then")
def test_forward_and_backward_of_a_model_find_their_parts(step) -> None:  # type: ignore[no-untyped-def]
    with step.marks():
        lines = by_part(record(step, 1), 1)
    assert {"norm", "rope", "activation", "head and loss", "embedding", "attention", "optimizer"} <= lines.keys()
    assert {"matmul: qkv, out", "matmul: mlp", "matmul: head"} <= lines.keys()
    assert "matmul: unknown" not in lines  # half of them are backward's
    assert "norm" not in by_part(record(step, 1), 1)


def test_the_marks_leave_nothing_behind() -> None:
    model, _ = build_model(compose_config("tiny", "eager", "auto"))
    rope = model.blocks[0].attention.rope
    with marked_parts(model):
        assert "forward" in vars(model.final_norm)
        assert model.blocks[0].attention.rope is not rope
    assert "forward" not in vars(model.final_norm)
    assert model.blocks[0].attention.rope is rope


def test_a_compiled_block_is_not_marked() -> None:
    model, _ = build_model(compose_config("tiny", "eager+compile", "auto"))
    with marked_parts(model):
        assert "forward" not in vars(model.blocks[0].mlp)
