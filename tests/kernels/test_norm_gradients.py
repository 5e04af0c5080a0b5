"""Which gradients the norms give: of what was used, to what is trained, in every combination, and once only."""

from collections.abc import Callable
from itertools import product

import pytest
import torch

from kernels import add_rms_norm, rms_norm, rms_norm_simple
from tests.kernels.norms import BF16, FP32, assert_norm, draw, draw_weight, leaf


@pytest.mark.parametrize(("train_x", "train_weight"), list(product([True, False], repeat=2)))
def test_a_frozen_input_gets_no_gradient_and_the_other_the_same(train_x: bool, train_weight: bool) -> None:
    x, residual, weight, dy = draw(5, 48), draw(5, 48), draw_weight(48), draw(5, 48).detach()

    def gradients(train_x: bool, train_weight: bool, add: bool) -> list[torch.Tensor | None]:
        a, w = leaf(x).requires_grad_(train_x), leaf(weight).requires_grad_(train_weight)
        y = add_rms_norm(a, residual.detach(), w)[0] if add else rms_norm(a, w)
        assert y.requires_grad == (train_x or train_weight)
        if y.requires_grad:
            y.backward(dy)
        return [a.grad, w.grad]

    for add in (False, True):
        both, mine = gradients(True, True, add), gradients(train_x, train_weight, add)
        for i, trained in enumerate((train_x, train_weight)):
            torch.testing.assert_close(mine[i], both[i] if trained else None)


@pytest.mark.parametrize(("train_x", "train_residual"), [(True, False), (False, True)])
def test_one_of_the_two_addends_may_be_frozen(train_x: bool, train_residual: bool) -> None:
    x, residual = draw(5, 48, dtype=BF16).requires_grad_(train_x), draw(5, 48).requires_grad_(train_residual)
    y, stream = add_rms_norm(x, residual, draw_weight(48))
    (y.float().sum() + stream.sum()).backward()
    assert (x.grad is not None, residual.grad is not None) == (train_x, train_residual)


@pytest.mark.parametrize("dtypes", [(FP32, FP32), (BF16, FP32), (FP32, BF16)])
@pytest.mark.parametrize(("use_y", "use_stream"), [(True, False), (False, True), (True, True)])
def test_both_addends_get_the_norms_gradient_and_the_streams(
    use_y: bool, use_stream: bool, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    x, residual, weight = draw(5, 48, dtype=dtypes[0]), draw(5, 48, dtype=dtypes[1]), draw_weight(48)
    y, stream = add_rms_norm(x, residual, weight)
    dy, dstream = torch.randn_like(y) * use_y, torch.randn_like(stream) * use_stream
    outputs, dy_dstream = zip(
        *[pair for pair, used in (((y, dy), use_y), ((stream, dstream), use_stream)) if used], strict=True
    )
    dx, dresidual, dw = torch.autograd.grad(outputs, (x, residual, weight), dy_dstream, materialize_grads=True)
    assert (dx.dtype, dresidual.dtype) == dtypes
    assert_norm(stream, weight, dy, dx=[dx, dresidual], dw=dw, dstream=dstream)


def test_a_gradient_that_two_paths_share_reaches_both_whole() -> None:
    x, residual, weight, g = draw(5, 48), draw(5, 48), draw_weight(48), draw(5, 48).detach()
    g_before = g.clone()

    (dx,) = torch.autograd.grad(rms_norm(x, weight) + x, x, g)
    assert_norm(x, weight, g, dx=[dx], dstream=g)

    y, stream = add_rms_norm(x.detach(), residual, weight)
    (dresidual,) = torch.autograd.grad(y + stream, residual, g)
    assert_norm(stream, weight, g, dx=[dresidual], dstream=g)
    assert torch.equal(g, g_before)


def minimise_with_gradient_penalty(loss: torch.Tensor, x: torch.Tensor) -> None:
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + dx.square().sum()).backward()  # were dx a constant, the penalty would silently be lost


@pytest.mark.parametrize("norm", [rms_norm, rms_norm_simple, lambda x, w: add_rms_norm(x, x, w)[0]])
def test_a_second_backward_through_the_gradient_is_refused(norm: Callable) -> None:
    x, weight = draw(5, 48), draw_weight(48)
    for loss in (norm(x, weight).sum(), norm(x, weight).square().sum()):  # dY without and with a graph of its own
        with pytest.raises(RuntimeError):
            minimise_with_gradient_penalty(loss, x)
