"""swiglu and swiglu_linear: accurate, also where exp overflows, computing nothing that was not asked for."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import operator, reference, swiglu, swiglu_linear
from tests.accuracy import assert_accurate
from tests.kernels.fences import Fences
from tests.kernels.norms import BF16, DEVICE, FP16, FP32, draw, leaf
from tests.kernels.test_norm_memory import saved_for_backward

Outputs = dict[str, Tensor]


def evaluate(function: Callable[..., Tensor], upstream: Tensor, **inputs: Tensor) -> Outputs:
    """The result, and the gradient of each input."""
    out = function(*inputs.values())
    gradients = torch.autograd.grad(out, list(inputs.values()), upstream)
    return {"out": out, **{f"d{name}": g for name, g in zip(inputs, gradients, strict=True)}}


def widened(dtype: torch.dtype, **tensors: Tensor) -> Outputs:
    return {name: leaf(t.to(dtype)) for name, t in tensors.items()}


def check_swiglu(gate_up: Tensor, dh: Tensor | None = None) -> None:
    """h and the packed gradient have gate_up's dtype and are accurate."""
    h = swiglu(gate_up)
    dh = torch.randn_like(h) if dh is None else dh
    actual = evaluate(swiglu, dh, gate_up=gate_up)
    exact, best = (
        evaluate(reference.swiglu, dh.to(dtype), **widened(dtype, gate_up=gate_up)) for dtype in (torch.float64, FP32)
    )
    dgate, dup = exact["dgate_up"].chunk(2, -1)
    # Each is a product of rounded numbers, and dgate holds a sum, which may cancel.
    terms = {"out": exact["out"], "dgate_up": torch.cat((dgate.abs() + (dh * gate_up.chunk(2, -1)[1]).abs(), dup), -1)}
    for name, tensor in actual.items():
        assert tensor.dtype == gate_up.dtype
        assert_accurate(name, tensor, exact[name], best[name], terms[name])


def in_pytorch(gate_up: Tensor, weight: Tensor) -> Tensor:
    """What the operator replaces: the same matrix products, in the same dtype, on an activation rounded alike."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return F.linear((F.silu(gate) * up).to(gate_up.dtype), weight.to(gate_up.dtype))


def check_swiglu_linear(gate_up: Tensor, weight: Tensor, dout: Tensor | None = None) -> None:
    """The result and both gradients have the right dtypes and are as near to float64 as PyTorch's own."""
    out = swiglu_linear(gate_up, weight)
    dout = torch.randn_like(out) if dout is None else dout
    actual = evaluate(swiglu_linear, dout, gate_up=gate_up, weight=weight)
    exact = evaluate(reference.swiglu_linear, dout.double(), **widened(torch.float64, gate_up=gate_up, weight=weight))
    best = evaluate(in_pytorch, dout, gate_up=leaf(gate_up), weight=leaf(weight))
    dtypes = {"out": gate_up.dtype, "dgate_up": gate_up.dtype, "dweight": weight.dtype}
    assert {name: tensor.dtype for name, tensor in actual.items()} == dtypes
    for name, tensor in actual.items():
        assert_accurate(name, tensor, exact[name], best[name].double())


@pytest.mark.parametrize("width", [1, 7, 41, 127, 513, 1000, 5120])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_swiglu_is_accurate_at_any_width_and_dtype(width: int, dtype: torch.dtype) -> None:
    check_swiglu(draw(5, 2 * width, dtype=dtype))


@pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 3, 5, 4), (0, 4), (2, 0, 4)])
def test_any_rank_and_no_rows_at_all(shape: tuple[int, ...]) -> None:
    check_swiglu(draw(*shape))
    inputs, dout = {"gate_up": draw(*shape), "weight": draw(3, 2)}, torch.ones(*shape[:-1], 3, device=DEVICE)
    torch.testing.assert_close(evaluate(swiglu_linear, dout, **inputs), evaluate(in_pytorch, dout, **inputs))


DTYPES = [(BF16, BF16), (BF16, FP32), (FP16, BF16), (FP32, FP32), (FP32, BF16)]


@pytest.mark.parametrize(("dtype", "weight_dtype"), DTYPES)
def test_swiglu_linear_is_accurate_in_any_mix_of_dtypes(dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
    check_swiglu_linear(draw(3, 11, 66, dtype=dtype), draw(20, 33, dtype=weight_dtype))


def test_a_wide_gradient_of_the_weight_is_not_rounded_on_its_way() -> None:
    gate_up, weight = draw(64, 32, dtype=BF16), draw(8, 16)
    dweight = evaluate(swiglu_linear, draw(64, 8, dtype=BF16), gate_up=gate_up, weight=weight)["dweight"]
    assert not torch.equal(dweight, dweight.bfloat16().float())


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_the_largest_gates_give_what_float64_gives(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    gate = torch.tensor([largest, -largest, 100.0, -100.0, 0.0, -0.0])
    up = torch.tensor([0.5, 4.0, 4.0, 4.0, 4.0, 4.0])  # 4 x the largest gate is inf in fp32
    gate_up, dh = leaf(torch.cat((gate, up))[None].to(DEVICE, dtype)), torch.ones(1, 6, device=DEVICE, dtype=dtype)
    actual = evaluate(swiglu, dh, gate_up=gate_up)
    exact = evaluate(reference.swiglu, dh.double(), **widened(torch.float64, gate_up=gate_up))
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor.double(), exact[name], rtol=2 * torch.finfo(dtype).eps, atol=1e-7)


def test_the_reference_has_pytorchs_values_and_the_gradient_of_finite_differences() -> None:
    gate_up, weight = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 8), (5, 4)))
    torch.testing.assert_close(reference.swiglu(gate_up), F.silu(gate_up[:, :4]) * gate_up[:, 4:])
    assert torch.autograd.gradcheck(reference.swiglu, gate_up)
    assert torch.autograd.gradcheck(reference.swiglu_linear, (gate_up, weight))


LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "columns": lambda width: draw(6, width + 9)[:, 3 : 3 + width],
    "every other row": lambda width: draw(12, width)[::2],
    "one row for all": lambda width: draw(1, width).expand(6, width),
    "leading dimensions swapped": lambda width: draw(2, 3, width).transpose(0, 1),
    "rows and columns swapped": lambda width: draw(width, 6).t(),
    "one number for all": lambda width: draw(1, 1).expand(6, width),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_is_read_right(layout: Callable[[int], Tensor]) -> None:
    gate_up, dh, dout = leaf(layout(82)), layout(41).detach(), layout(5).detach()
    check_swiglu(gate_up)
    check_swiglu(draw(*dh.shape[:-1], 82), dh)
    check_swiglu_linear(gate_up, leaf(draw(41, 5).t()), dout)


@pytest.mark.parametrize("width", [1, 7, 41, 127, 513, 1000])
def test_nothing_is_written_beside_the_outputs_nor_into_the_inputs(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up, weight, dh, dout = (draw(*s, dtype=BF16) for s in ((5, 2 * width), (4, width), (5, width), (5, 4)))
    before = [t.detach().clone() for t in (gate_up, weight, dh, dout)]
    fences = Fences(monkeypatch)
    alone = evaluate(swiglu, dh, gate_up=gate_up)
    followed = evaluate(swiglu_linear, dout, gate_up=gate_up, weight=weight)
    assert fences.intact_around(*alone.values(), followed["dgate_up"])
    assert all(torch.equal(now, then) for now, then in zip((gate_up, weight, dh, dout), before, strict=True))


def test_backward_keeps_only_the_inputs() -> None:
    gate_up, weight = draw(5, 82), draw(4, 41)
    assert [t.data_ptr() for t in saved_for_backward(lambda: swiglu(gate_up))] == [gate_up.data_ptr()]
    kept = saved_for_backward(lambda: swiglu_linear(gate_up, weight))
    assert [t.data_ptr() for t in kept] == [gate_up.data_ptr(), weight.data_ptr()]
    assert not saved_for_backward(lambda: swiglu_linear(gate_up.detach(), weight.detach()))


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("train_gate_up", "train_weight", "products", "launches"),
    [(True, True, 2, ["swiglu_backward"]), (True, False, 1, ["swiglu_backward"]), (False, True, 1, ["swiglu_forward"])],
)
def test_a_frozen_input_costs_no_product_and_no_gradient(
    train_gate_up: bool, train_weight: bool, products: int, launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate_up, weight, dout = draw(6, 82), draw(5, 41), torch.randn(6, 5, device=DEVICE)
    whole = evaluate(swiglu_linear, dout, gate_up=gate_up, weight=weight)
    gate_up.requires_grad_(train_gate_up), weight.requires_grad_(train_weight)
    out, launched, launch = swiglu_linear(gate_up, weight), [], operator.launch

    def spy(what: operator.Launch, *tensors: torch.Tensor) -> None:
        launched.append(what.kernel.fn.__name__)
        assert what.constants.get("NEEDS_H") in (None, train_weight)
        launch(what, *tensors)

    monkeypatch.setattr(operator, "launch", spy)
    with Products() as counted:
        out.backward(dout)
    assert (counted.count, launched) == (products, launches)
    for gradient, name, trained in ((gate_up.grad, "gate_up", train_gate_up), (weight.grad, "weight", train_weight)):
        torch.testing.assert_close(gradient, whole[f"d{name}"] if trained else None)


def test_autocast_changes_nothing() -> None:
    gate_up, weight = draw(6, 82), draw(5, 41)
    plain = evaluate(swiglu_linear, torch.ones(6, 5, device=DEVICE), gate_up=gate_up, weight=weight)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        mixed = evaluate(swiglu_linear, torch.ones(6, 5, device=DEVICE), gate_up=gate_up, weight=weight)
    assert all(torch.equal(plain[name], mixed[name]) for name in plain)


def test_the_result_may_be_changed_in_place() -> None:
    gate_up = draw(2, 3, 82)
    (swiglu(gate_up).add_(1).sum() + swiglu_linear(gate_up, draw(5, 41)).add_(1).sum()).backward()


@pytest.mark.parametrize("function", [swiglu, lambda gate_up: swiglu_linear(gate_up, draw(5, 41))])
def test_a_second_backward_through_the_gradient_is_refused(function: Callable[[Tensor], Tensor]) -> None:
    gate_up = draw(3, 82)
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(function(gate_up).square().sum(), gate_up, create_graph=True)


X, W = torch.zeros(3, 8, device=DEVICE), torch.zeros(5, 4, device=DEVICE)
WRONG = {
    "float64": (TypeError, lambda: swiglu(X.double()), "float64"),
    "weight int64": (TypeError, lambda: swiglu_linear(X, W.long()), "int64"),
    "two devices": (ValueError, lambda: swiglu_linear(X, W.to("meta")), "meta"),
    "odd": (ValueError, lambda: swiglu(X[:, :7]), "(3, 7)"),
    "nothing": (ValueError, lambda: swiglu(X[:, :0]), "(3, 0)"),
    "no dimension": (ValueError, lambda: swiglu(X[0, 0]), "()"),
    "weight too wide": (ValueError, lambda: swiglu_linear(X, W.repeat(1, 2)), "(5, 8)"),
    "weight of one dimension": (ValueError, lambda: swiglu_linear(X, W[0]), "(4,)"),
}


@pytest.mark.parametrize(("error", "call", "said"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(error: type[Exception], call: Callable[[], object], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        call()
