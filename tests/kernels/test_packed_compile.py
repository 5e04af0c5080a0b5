"""rotary and swiglu inside torch.compile: registered properly, no graph break, no graph a length, the same results."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import swiglu, swiglu_linear
from tests.kernels.norms import BF16, DEVICE, FP32, draw, leaf
from tests.kernels.test_rotary import SMALL, draw_tables


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    q, k, v = SMALL.rotary(x * 2, cos, sin)
    return q.transpose(1, 2) + 1, k.transpose(1, 2) * 3, v


def activated(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return swiglu_linear(x * 2, weight).sin(), swiglu(x)


def rotary_inputs(T: int = 5, dtype: torch.dtype = BF16) -> tuple[Tensor, ...]:
    return draw(2, T, SMALL.width, dtype=dtype), *draw_tables(T, 4)


def swiglu_inputs(T: int = 5, dtype: torch.dtype = BF16) -> tuple[Tensor, ...]:
    return draw(2, T, 82, dtype=dtype), draw(5, 41)


def outputs_and_gradients(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    """Of the function between other operations, as a layer stands in a model; each gradient is the output itself."""
    x, *others = (leaf(t) if t.requires_grad else t for t in inputs)
    outputs = function(x, *others)
    trained = [t for t in (x, *others) if t.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, trained, [o.detach() for o in outputs])]


layers = pytest.mark.parametrize(("function", "make"), [(rotated, rotary_inputs), (activated, swiglu_inputs)])


@layers
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_one_graph_equals_eager_forward_and_backward(function: Callable, make: Callable, dtype: torch.dtype) -> None:
    inputs = make(dtype=dtype)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    inside, outside = outputs_and_gradients(compiled, *inputs), outputs_and_gradients(function, *inputs)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


@layers
def test_five_lengths_make_at_most_two_graphs(function: Callable, make: Callable) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for T in (3, 5, 8, 13, 21):
        outputs_and_gradients(compiled, *make(T))
    assert counter.frame_count <= 2


def test_the_operators_are_registered_as_pytorch_asks() -> None:
    operators, check = torch.ops.minillm, torch.library.opcheck
    qkv, cos, sin = rotary_inputs()
    check(operators.rotary.default, (qkv, cos, sin, SMALL.H, SMALL.K))
    dq, _, dv = (torch.randn(shape, device=DEVICE) for shape in SMALL.shapes(2, 5))
    check(operators.rotary_backward.default, (dq, None, dv, cos, sin, SMALL.H, SMALL.K))
    gate_up, weight = swiglu_inputs()
    check(operators.swiglu.default, (gate_up,))
    check(operators.swiglu_linear.default, (gate_up, weight))
    given = gate_up.detach(), weight.detach()  # a backward has no gradient of its own
    check(operators.swiglu_backward.default, (torch.randn(2, 5, 41, device=DEVICE).bfloat16(), given[0]))
    for needed in ((True, True), (True, False), (False, True)):
        dout = torch.randn(2, 5, 5, device=DEVICE).bfloat16()
        check(operators.swiglu_linear_backward.default, (dout, *given, *needed))
