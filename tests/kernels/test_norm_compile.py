"""The norms inside torch.compile: registered properly, no graph break, no graph a row count, the same results."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import add_rms_norm, rms_norm
from tests.kernels.norms import BF16, FP32, draw, draw_weight, leaf


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def plain(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (rms_norm(x, weight, offset=1.0, out_dtype=BF16),)


def add(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return add_rms_norm(x, residual, weight, eps=1e-5)


def outputs_and_gradients(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    """Of the function between other operations, as a layer stands in a model; dY is the output itself."""
    x, *others = (leaf(t) for t in inputs)
    outputs = function(x * 2, *others)
    gradients = torch.autograd.grad(outputs, (x, *others), [o.detach() for o in outputs], allow_unused=True)
    return [*outputs, *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("function", [plain, add])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_one_graph_equals_eager_forward_and_backward(function: Callable, dtype: torch.dtype) -> None:
    inputs = draw(6, 48, dtype=dtype), draw(6, 48), draw_weight(48)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    inside, outside = outputs_and_gradients(compiled, *inputs), outputs_and_gradients(function, *inputs)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


@pytest.mark.parametrize("function", [plain, add])
def test_five_row_counts_make_at_most_two_graphs(function: Callable) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    for rows in (3, 5, 8, 13, 21):
        outputs_and_gradients(compiled, draw(rows, 48), draw(rows, 48), draw_weight(48))
    assert counter.frame_count <= 2


ARGUMENTS = {
    "x": lambda: draw(5, 48, dtype=BF16),
    "residual": lambda: draw(5, 48),
    "weight": lambda: draw_weight(48),
    "eps": lambda: 1e-6,
    "offset": lambda: 0.0,
    "out_dtype": lambda: BF16,
    "dy": lambda: draw(5, 48, dtype=BF16),
    "dstream": lambda: draw(5, 48),
    "rstd": lambda: draw_weight(5),
    "dx_dtype": lambda: BF16,
    "dresidual_dtype": lambda: FP32,
    "needs_dweight": lambda: True,
    "block_size": lambda: 64,
    "num_warps": lambda: 4,
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("rms_norm", {}),
        ("rms_norm", {"residual": None}),
        ("rms_norm", {"weight": None}),
        ("rms_norm_backward", {}),
        ("rms_norm_backward", {"dstream": None, "dresidual_dtype": None}),
        ("rms_norm_backward", {"dx_dtype": None, "weight": None, "needs_dweight": False}),
        ("rms_norm_simple", {}),
        ("rms_norm_simple_backward", {}),
    ],
)
def test_the_operators_are_registered_as_pytorch_asks(name: str, changes: dict[str, object]) -> None:
    operator = getattr(torch.ops.minillm, name).default
    arguments = [changes.get(a.name, ARGUMENTS[a.name]()) for a in operator._schema.arguments]
    if name.endswith("backward"):  # which has no gradient of its own
        arguments = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
    torch.library.opcheck(operator, tuple(arguments))
