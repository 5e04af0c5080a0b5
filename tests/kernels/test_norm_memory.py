"""The norms read any layout, write nowhere but into their own outputs, and keep no more than they need."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import add_rms_norm, rms_norm
from tests.kernels.norms import BF16, DEVICE, FP32, check_add_norm, check_norm, draw, draw_weight, leaf

LAYOUTS = {
    "columns": lambda: draw(6, 100)[:, 3:44],
    "every other row": lambda: draw(12, 41)[::2],
    "one row for all": lambda: draw(1, 41).expand(6, 41),
    "leading dimensions swapped": lambda: draw(4, 6, 41).transpose(0, 1),
    "leading dimensions swapped and cut": lambda: draw(4, 6, 50)[1:, ::2, :41].transpose(0, 1),
    "rows and columns swapped": lambda: draw(41, 6).t(),
    "every other column": lambda: draw(6, 82)[:, ::2],
    "one number for all": lambda: draw(1, 1).expand(6, 41),
}
layouts = pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)


@layouts
def test_any_layout_of_the_inputs_is_read_right(make: Callable[[], Tensor]) -> None:
    x = leaf(make())
    check_norm(x, draw_weight(41))
    check_add_norm(x, draw(*x.shape), draw_weight(41))
    check_add_norm(draw(*x.shape), x, draw_weight(41))
    check_norm(draw(3, 41), leaf(draw_weight(82)[::2]))


@layouts
def test_any_layout_of_the_gradient_is_read_right(make: Callable[[], Tensor]) -> None:
    dy = make().detach()
    x, weight = draw(*dy.shape), draw_weight(41)
    check_norm(x, weight, dy=dy)
    y, stream = add_rms_norm(x, x.detach(), weight)
    strided = torch.autograd.grad((y, stream), (x, weight), (dy, dy), retain_graph=True)
    contiguous = torch.autograd.grad((y, stream), (x, weight), (dy.contiguous(), dy.clone()))
    torch.testing.assert_close(strided, contiguous)


def test_the_gradient_of_a_sum_is_right() -> None:
    check_norm(draw(5, 48), draw_weight(48), dy=torch.ones((), device=DEVICE).expand(5, 48))


def test_inputs_their_neighbours_and_gradients_stay_as_they_are() -> None:
    held = [torch.randn(7, 60, device=DEVICE) for _ in range(4)]
    before = [t.clone() for t in held]
    x, residual, dy, dstream = (t[1:-1, 3:44] for t in held)
    x, residual, weight = leaf(x), leaf(residual), draw_weight(41)
    weight_before = weight.detach().clone()
    rms_norm(x, weight).backward(dy)
    torch.autograd.backward(add_rms_norm(x, residual, weight), (dy, dstream))
    assert all(torch.equal(now, then) for now, then in zip(held, before, strict=True))
    assert torch.equal(weight, weight_before)


def test_outputs_share_no_memory_with_anything() -> None:
    x, zero, weight = draw(4, 64), leaf(torch.zeros(4, 64, device=DEVICE)), draw_weight(64)
    for a, b in ((x, zero), (zero, x)):  # adding zero does not excuse handing the other one back
        tensors = [a, b, weight, *add_rms_norm(a, b, weight), rms_norm(a, weight)]
        assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)


def test_parameters_that_get_one_gradient_each_get_their_own() -> None:
    x, residual = draw(4, 64), draw(4, 64)
    torch.autograd.backward(add_rms_norm(x, residual), (torch.ones_like(x), torch.ones_like(x)))
    addresses = {t.grad.data_ptr() for t in (x, residual) if t.grad is not None}
    assert len(addresses) == 2  # clipping scales each in place


@pytest.mark.parametrize("width", [1, 7, 41, 127, 513, 769, 1023, 5120])
def test_nothing_is_written_beside_an_output(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, mark, guarded = 1024, 7.0, {}

    def fenced(shape: torch.Size, dtype: torch.dtype | None) -> Tensor:
        size = shape.numel()
        memory = torch.full((size + 2 * guard,), mark, dtype=dtype, device=DEVICE)
        inside = memory[guard : guard + size].view(shape)
        guarded[inside.data_ptr()] = (memory[:guard], memory[guard + size :])
        return inside

    def empty(*shape: Any, dtype: torch.dtype | None = None, **_: object) -> Tensor:
        return fenced(torch.Size(shape if isinstance(shape[0], int) else shape[0]), dtype)

    weight, x, residual, dy = draw_weight(width, BF16), *(draw(5, width, dtype=BF16) for _ in range(3))
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "empty_like", lambda t, dtype=None, **_: fenced(t.shape, dtype or t.dtype))
    y, stream = add_rms_norm(x, residual, weight)
    outputs = [rms_norm(x, weight), y, stream, *torch.autograd.grad((y, stream), (x, weight), (dy, dy))]
    assert all(output.data_ptr() in guarded for output in outputs[:-1])  # dW may come out of a sum
    assert all((fence == mark).all() for fences in guarded.values() for fence in fences)


def saved_for_backward(run: Callable[[], object]) -> list[Tensor]:
    """The tensors that autograd keeps while `run` runs."""
    saved: list[Tensor] = []

    def save(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(save, lambda t: t):
        run()
    return saved


def test_backward_keeps_the_input_the_weight_and_one_number_a_row() -> None:
    x, residual, weight = leaf(draw(6, 100, dtype=BF16)[:, 3:44]), draw(6, 41), draw_weight(41)

    def others_than(kept: list[Tensor], *known: Tensor) -> list[tuple[int, torch.dtype]]:
        return [(t.numel(), t.dtype) for t in kept if t.data_ptr() not in [k.data_ptr() for k in known]]

    kept = saved_for_backward(lambda: rms_norm(x, weight))
    assert others_than(kept, x, weight) == [(6, FP32)]
    outputs: list[Tensor] = []
    kept = saved_for_backward(lambda: outputs.extend(add_rms_norm(x, residual, weight)))
    assert others_than(kept, outputs[1], weight) == [(6, FP32)]
    with torch.no_grad():
        assert not saved_for_backward(lambda: rms_norm(x, weight))
