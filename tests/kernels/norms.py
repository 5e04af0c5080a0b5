"""What the tests of the norms share: inputs, and one check of all outputs and gradients against float64."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import add_rms_norm, reference, rms_norm
from kernels.operator import INTERPRETED
from tests.accuracy import assert_accurate, assert_rounded

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def draw(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    """A leaf of normally distributed numbers."""
    return torch.randn(shape, device=DEVICE).to(dtype).requires_grad_()


def draw_weight(width: int, dtype: torch.dtype = FP32) -> Tensor:
    """A norm's weight (width,): between 0.5 and 1.5."""
    return (torch.rand(width, device=DEVICE) + 0.5).to(dtype).requires_grad_()


def leaf(view: Tensor) -> Tensor:
    """The same memory and strides, as a leaf of its own."""
    return view.detach().requires_grad_()


class Norm(NamedTuple):
    """A norm's output (..., N), the gradient of x (..., N), and that of the weight (N,), empty without a weight."""

    y: Tensor
    dx: Tensor
    dw: Tensor


def evaluate(norm: Callable[..., Tensor], x: Tensor, weight: Tensor | None, dy: Tensor, **settings: Any) -> Norm:
    """Run norm(x, weight), and its gradients for dy."""
    y = norm(x, weight, **settings)
    dx, *dw = torch.autograd.grad(y, (x,) if weight is None else (x, weight), dy)
    return Norm(y, dx, *(dw or [dx.new_empty(0)]))


def assert_norm(
    x: Tensor,
    weight: Tensor | None,
    dy: Tensor,
    *,
    y: Tensor | None = None,
    dx: Sequence[Tensor] = (),
    dw: Tensor | None = None,
    dstream: Tensor | float = 0.0,
    eps: float = 1e-6,
    offset: float = 0.0,
) -> None:
    """Fail unless what is given of y, dx and dw is accurate for the norm of x; dstream is x's other gradient."""

    def run(norm: Callable[..., Tensor], dtype: torch.dtype, **settings: float) -> Norm:
        inputs = leaf(x.to(dtype)), weight if weight is None else leaf(weight.to(dtype)), dy.to(dtype)
        return evaluate(norm, *inputs, **settings)

    def torch_norm(x: Tensor, weight: Tensor | None) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight if weight is None else offset + weight, eps)

    exact, best = run(reference.rms_norm, torch.float64, eps=eps, offset=offset), run(torch_norm, FP32)
    if y is not None:
        assert_accurate("y", y, exact.y, best.y)
    rstd = torch.rsqrt(x.detach().double().square().mean(-1, keepdim=True) + eps)
    for i, gradient in enumerate(dx):
        # dX is this less its projection on x, and in short rows most of it cancels.
        terms = rstd * dy * (1.0 if weight is None else offset + weight.detach().double())
        assert_accurate(f"dx[{i}]", gradient, exact.dx + dstream, best.dx + dstream, terms.abs() + abs(dstream))
    if dw is not None:
        terms = (dy * x.detach() * rstd).abs().reshape(-1, x.shape[-1]).sum(0)  # dW adds these up, whatever their sign
        assert_accurate("dw", dw, exact.dw, best.dw, terms)


def check_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    dy: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    norm: Callable[..., Tensor] = rms_norm,
    **settings: float,
) -> None:
    """y, dX and dW have the right dtypes and are accurate."""
    dy = torch.randn(x.shape, device=DEVICE).to(out_dtype or x.dtype) if dy is None else dy
    y, dx, dw = evaluate(partial(norm, out_dtype=out_dtype) if out_dtype else norm, x, weight, dy, **settings)
    assert (y.dtype, dx.dtype) == (out_dtype or x.dtype, x.dtype)
    assert weight is None or dw.dtype == weight.dtype
    assert_norm(x, weight, dy, y=y, dx=[dx], dw=dw, **settings)


def check_add_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    **settings: float,
) -> None:
    """Both outputs and all gradients have the right dtypes and are accurate."""
    y, stream = add_rms_norm(x, residual, weight, out_dtype=out_dtype, **settings)
    assert (y.dtype, stream.dtype) == (out_dtype or x.dtype, residual.dtype)
    assert_rounded("stream", stream, x.float() + residual.float())

    # y has to be the norm of the very numbers that were returned as the stream, rounding and all.
    dy, dstream = torch.randn_like(y), torch.randn_like(stream)
    inputs = [t for t in (x, residual, weight) if t is not None]
    dx, dresidual, *dw = torch.autograd.grad((y, stream), inputs, (dy, dstream))
    assert [gradient.dtype for gradient in (dx, dresidual, *dw)] == [t.dtype for t in inputs]
    assert_norm(stream, weight, dy, y=y, dx=[dx, dresidual], dw=dw[0] if dw else None, dstream=dstream, **settings)
