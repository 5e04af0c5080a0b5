"""linear_cross_entropy inside torch.compile, and what it refuses."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from kernels import linear_cross_entropy
from tests.kernels.losses import draw_inputs
from tests.kernels.norms import BF16, DEVICE, FP32, leaf


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def run(function: Callable[..., Tensor], reduction: str, *inputs: Tensor) -> list[Tensor]:
    """Loss and gradients, the loss between other operations, as it stands in a model."""
    hidden, weight = (leaf(t) for t in inputs[:2])
    loss = function(hidden, weight, inputs[2], reduction)
    return [loss, *torch.autograd.grad(loss, (hidden, weight), torch.ones_like(loss))]


def between(hidden: Tensor, weight: Tensor, target: Tensor, reduction: str) -> Tensor:
    return 3 * linear_cross_entropy(hidden * 2, weight, target, reduction=reduction, z_loss=1e-3)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_one_graph_equals_eager_forward_and_backward(reduction: str, dtype: torch.dtype) -> None:
    inputs = draw_inputs((2, 15), dtype=dtype)
    compiled = torch.compile(between, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(compiled, reduction, *inputs), run(between, reduction, *inputs), rtol=0, atol=0)
    with torch.no_grad():
        assert torch.equal(compiled(*inputs, reduction), between(*inputs, reduction))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_five_token_counts_make_at_most_two_graphs(reduction: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(between, backend=counter, fullgraph=True)
    for tokens in (3, 5, 8, 13, 21):
        run(compiled, reduction, *draw_inputs(tokens))
    assert counter.frame_count <= 2


ARGUMENTS = {
    "hidden": lambda: draw_inputs()[0],
    "weight": lambda: draw_inputs()[1],
    "target": lambda: draw_inputs()[2],
    "ignore_index": lambda: -100,
    "label_smoothing": lambda: 0.1,
    "z_loss": lambda: 1e-3,
    "needs_dhidden": lambda: True,
    "needs_dweight": lambda: True,
    "dhidden": lambda: draw_inputs()[0],
    "dweight": lambda: draw_inputs()[1],
    "unit": lambda: 1.0,
    "hidden_dtype": lambda: BF16,
    "weight_dtype": lambda: FP32,
}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("linear_cross_entropy", {}),
        ("linear_cross_entropy_backward", {"dloss": torch.ones((), device=DEVICE)}),
        ("linear_cross_entropy_per_token", {}),
        ("linear_cross_entropy_per_token_backward", {"dloss": torch.ones(30, device=DEVICE)}),
        ("linear_cross_entropy_per_token_backward", {"dloss": torch.ones(30, device=DEVICE), "needs_dweight": False}),
    ],
)
def test_the_operators_are_registered_as_pytorch_asks(name: str, changes: dict[str, object]) -> None:
    operator = getattr(torch.ops.minillm, name).default
    arguments = [changes[a.name] if a.name in changes else ARGUMENTS[a.name]() for a in operator._schema.arguments]
    if name.endswith("backward"):  # which has no gradient of its own
        arguments = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
    torch.library.opcheck(operator, tuple(arguments))


HIDDEN, WEIGHT, TARGET = (t.detach() for t in draw_inputs((2, 3), 7, 4))

WRONG = {
    "hidden float64": (TypeError, lambda: linear_cross_entropy(HIDDEN.double(), WEIGHT, TARGET), "float64"),
    "weight int64": (TypeError, lambda: linear_cross_entropy(HIDDEN, WEIGHT.long(), TARGET), "int64"),
    "target int32": (TypeError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET.int()), "int32"),
    "target on another device": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET.to("meta")), "meta"),
    "weight on another device": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT.to("meta"), TARGET), "meta"),
    "hidden sizes differ": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT[:, :3], TARGET), "(7, 3)"),
    "weight 1-D": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT[0], TARGET), "(4,)"),
    "no vocabulary": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT[:0], TARGET), "(0, 4)"),
    "no hidden size": (ValueError, lambda: linear_cross_entropy(HIDDEN[..., :0], WEIGHT[:, :0], TARGET), "(7, 0)"),
    "target too short": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET[:1]), "(1, 3)"),
    "target flat": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET.flatten()), "(6,)"),
    "reduction": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET, reduction="avg"), "mean, sum, none"),
    "smoothing": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET, label_smoothing=1.5), "1.5"),
    "z_loss": (ValueError, lambda: linear_cross_entropy(HIDDEN, WEIGHT, TARGET, z_loss=-1.0), "-1.0"),
}


@pytest.mark.parametrize(("error", "call", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_is_refused(error: type[Exception], call: Callable[[], object], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        call()


@pytest.mark.gpu
def test_cpu_tensors_are_refused_beside_a_gpu() -> None:
    with pytest.raises(ValueError, match="cpu"):
        linear_cross_entropy(HIDDEN.cpu(), WEIGHT.cpu(), TARGET.cpu())
