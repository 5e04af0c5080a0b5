"""rotary and swiglu as the benchmark's operators: cases and traffic by hand, faults found, options that they lack."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import reference
from minillm.bench.config import parse
from minillm.bench.conformance import conformance
from minillm.bench.runner import choose, make_op
from minillm.errors import UserError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def swapped(gate_up: Tensor) -> Tensor:
    up, gate = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def backwards(qkv: Tensor, cos: Tensor, sin: Tensor, **heads: int) -> tuple[Tensor, ...]:
    return reference.rotary(qkv, cos, -sin, **heads)


def forgets_v(qkv: Tensor, cos: Tensor, sin: Tensor, **heads: int) -> tuple[Tensor, ...]:
    q, k, v = reference.rotary(qkv, cos, sin, **heads)
    return q, k, v.detach() + 0 * q.sum()


@pytest.mark.parametrize(
    ("arguments", "forward", "backward"),
    [
        ("op=swiglu width=100 rows=10", 6 * 1000, 10 * 1000),
        ("op=swiglu width=100 rows=10 dtype=fp32", 12 * 1000, 20 * 1000),
        # cos and sin of 8 tokens and 25 pairs, in fp32
        ("op=rotary width=200 rows=8", 4 * 1600 + 2 * 4 * 8 * 25, 4 * 1600 + 2 * 4 * 8 * 25),
        ("op=rotary width=200 rows=8 dtype=fp32", 8 * 1600 + 2 * 4 * 8 * 25, 8 * 1600 + 2 * 4 * 8 * 25),
    ],
)
def test_traffic_is_each_tensor_once(arguments: str, forward: int, backward: int) -> None:
    operator = make_op(parse(arguments.split()))
    (case,) = operator.cases()
    assert operator.traffic(case) == {"forward": forward, "backward": backward}


@pytest.mark.parametrize(
    ("op", "shapes"), [("rotary", ["32768 x 2304", "16384 x 3072"]), ("swiglu", ["32768 x 2048", "16384 x 8192"])]
)
def test_the_110m_and_1b_shapes_are_among_the_real_ones(op: str, shapes: list[str]) -> None:
    assert [case.label for case in make_op(parse([f"op={op}", "sizes=real"])).cases()][:2] == shapes


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")  # fp16, 300 x 300, interpreted
@pytest.mark.parametrize("op", ["rotary", "swiglu"])
@pytest.mark.parametrize("name", ["eager", "triton"])
def test_a_right_implementation_passes_every_check(op: str, name: str) -> None:
    operator = make_op(parse([f"op={op}"]))
    implementation = choose(operator, (name,))[name]
    assert [check for check in conformance(operator, name, implementation, DEVICE) if not check.ok] == []


@pytest.mark.parametrize(
    ("op", "fault", "tensors"),
    [("swiglu", swapped, ["h", "dX"]), ("rotary", backwards, ["q", "k", "dX"]), ("rotary", forgets_v, ["dX"])],
)
def test_a_fault_is_found_and_named(op: str, fault: Any, tensors: list[str]) -> None:
    operator, name = make_op(parse([f"op={op}"])), f"{__name__}:{fault.__name__}"
    found = {c.promise: c for c in conformance(operator, name, choose(operator, (name,))[name], DEVICE)}
    problem = found["float32 is as near to float64 as PyTorch"].problem
    assert [part.partition(":")[0].strip() for part in problem.split(";")] == tensors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("op=rotary width=100", "width=100 is no row of packed heads"),
        ("op=swiglu residual=true", "op=swiglu takes no residual="),
        ("op=rotary out_dtype=fp32 residual=true", "op=rotary takes no out_dtype= and no residual="),
    ],
)
def test_what_an_operator_lacks_is_refused_in_a_sentence(arguments: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_op(parse(arguments.split())).cases()


def test_a_function_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="give package"):
        choose(make_op(parse(["op=swiglu"])), ("nowhere:f",))
