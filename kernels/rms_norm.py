"""RMSNorm, alone and with the residual addition, each one kernel forward and one backward.

    y = x * rstd * (offset + weight),    rstd = 1 / sqrt(mean(x^2) + eps)        (Zhang & Sennrich 2019)

    dx = rstd * (g - x_hat * mean(g * x_hat)),    g = dy * (offset + weight),    x_hat = x * rstd
    dweight = sum over rows of dy * x_hat

Floor, bytes an element in bf16: rms_norm 4 forward (x; y) and 6 backward (dy, x; dx); add_rms_norm 8 forward
(x, residual; stream, y) and 8 backward (dy, the stream's gradient, the stream; dx). Kept for backward: x (or the
stream), the weight and one fp32 number a row. Everything inside is fp32, with one rounding at each store.

Forward, a row is held in registers where that was fastest (up to 4095 wide, and 16384; with the addition up to 16384);
else it is read twice, the second time from L2 as far as it reaches. Backward, rows up to 16384 are read once (with the
addition up to 8192, and in three blocks of 16 bits), wider ones twice. A fixed number of programs walk over the rows,
each with its part of dweight in fp32 registers; a second kernel sums the parts in a fixed order: same input, same bits.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels import operator
from kernels.rms_norm_launch import backward_launches, forward_launch


def forward_outputs(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, offset: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty(x.shape, device=x.device, dtype=out_dtype)
    rstd = torch.empty(x.numel() // x.shape[-1], device=x.device, dtype=torch.float32)
    if residual is None:
        return y, rstd.new_empty(0), rstd
    return y, torch.empty(x.shape, device=x.device, dtype=residual.dtype), rstd


def forward(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, eps: float, offset: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """y, stream (empty without a residual), rstd (M,)."""
    y, stream, rstd = forward_outputs(x, residual, weight, eps, offset, out_dtype)
    # An absent tensor's place is taken by one that is there; the kernel does not touch it.
    x, x_stride = operator.rows_of(x)
    r, r_stride = (x, x_stride) if residual is None else operator.rows_of(residual)
    w = x if weight is None else weight.contiguous()
    sms = operator.multiprocessors(x.device)
    given = residual is not None, weight is not None
    launch = forward_launch(x.device, sms, rstd.shape[0], x.shape[-1], (x_stride, r_stride), eps, offset, *given)
    operator.launch(launch, x, r, w, y, stream, rstd)
    return y, stream, rstd


def backward_outputs(
    dy: Tensor,
    dstream: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    offset: float,
    dx_dtype: torch.dtype | None,
    dresidual_dtype: torch.dtype | None,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    def like_x(dtype: torch.dtype | None) -> Tensor:
        return rstd.new_empty(0) if dtype is None else torch.empty(x.shape, device=x.device, dtype=dtype)

    dweight = torch.empty_like(weight) if weight is not None and needs_dweight else rstd.new_empty(0)
    return like_x(dx_dtype), like_x(dresidual_dtype), dweight


def backward(
    dy: Tensor,
    dstream: Tensor | None,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    offset: float,
    dx_dtype: torch.dtype | None,
    dresidual_dtype: torch.dtype | None,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, the same in the residual's dtype, dweight; empty where not needed. x is what was normalised."""
    dx, dresidual, dweight = backward_outputs(
        dy, dstream, x, weight, rstd, offset, dx_dtype, dresidual_dtype, needs_dweight
    )
    M, N, device = rstd.shape[0], x.shape[-1], x.device
    if M == 0:
        return dx, dresidual, dweight.zero_()
    input_bytes = dy.itemsize + x.itemsize + (0 if dstream is None else dstream.itemsize)
    dy, dy_stride = operator.rows_of(dy)
    ds, ds_stride = (dy, dy_stride) if dstream is None else operator.rows_of(dstream)
    x, x_stride = operator.rows_of(x)
    w = x if weight is None else weight.contiguous()
    launches = backward_launches(
        device, operator.multiprocessors(device), operator.shared_memory(device), M, N, input_bytes,
        (dy_stride, ds_stride, x_stride), offset, weight is not None, dstream is not None,
        (dx_dtype is not None, dresidual_dtype is not None, needs_dweight),
    )  # fmt: skip
    parts = torch.empty((launches.programs, N) if needs_dweight else (0,), device=device, dtype=torch.float32)
    inputs: tuple[Tensor, ...] = dy, ds, x, w, rstd
    if launches.statistics is not None:
        mean_dot = rstd  # in its place where only dweight is wanted, which does not need it
        if dx_dtype is not None or dresidual_dtype is not None:
            mean_dot = torch.empty_like(rstd)
            operator.launch(launches.statistics, dy, x, w, rstd, mean_dot)
        inputs = *inputs, mean_dot
    operator.launch(launches.gradients, *inputs, dx, dresidual, parts)
    if needs_dweight:
        operator.launch(launches.sum_parts, parts, dweight)
    return dx, dresidual, dweight


def save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, residual, weight, _, ctx.offset, _ = inputs
    _, stream, rstd = output
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype
    ctx.save_for_backward(x if residual is None else stream, weight, rstd)
    ctx.mark_non_differentiable(*((stream, rstd) if residual is None else (rstd,)))


def results(x: Tensor, residual: Tensor | None, *_: Any) -> int:
    """y, and the stream where there is one."""
    return 1 if residual is None else 2


def gradients(
    run: Callable, ctx: Any, dy: Tensor | None, dstream: Tensor | None = None, _: None = None
) -> tuple[Tensor | None, ...]:
    normalised, weight, rstd = ctx.saved_tensors
    needs_dx, needs_dresidual, needs_dweight = ctx.needs_input_grad[:3]
    x_dtype, residual_dtype = ctx.dtypes
    if dy is None:  # only the stream was used: its gradient passes through
        assert dstream is not None
        dx = dstream.to(x_dtype) if needs_dx else None
        dresidual = dstream.to(residual_dtype) if needs_dresidual else None
        return dx, dresidual, None, None, None, None
    shared = x_dtype == residual_dtype  # one tensor is the gradient of both
    dx_dtype = x_dtype if needs_dx or (needs_dresidual and shared) else None
    dresidual_dtype = residual_dtype if needs_dresidual and not shared else None
    dx, dresidual, dweight = run(
        dy, dstream, normalised, weight, rstd, ctx.offset, dx_dtype, dresidual_dtype, needs_dweight
    )
    return (
        dx if needs_dx else None,
        (dx if shared else dresidual) if needs_dresidual else None,
        dweight if needs_dweight else None,
        None,
        None,
        None,
    )


_rms_norm = operator.differentiable(
    operator.Operator("rms_norm", forward, forward_outputs),
    operator.Operator("rms_norm_backward", backward, backward_outputs),
    save,
    gradients,
    results,
)


def check(
    name: str, x: Tensor, residual: Tensor | None, weight: Tensor | None, offset: float, out_dtype: torch.dtype
) -> None:
    operator.check_tensors(name, x=x, residual=residual, weight=weight)
    operator.check_dtype(name, "out_dtype", out_dtype)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name}: x {tuple(x.shape)} has no last dimension to normalise over")
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"{name}: x {tuple(x.shape)} and residual {tuple(residual.shape)} must have one shape")
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(
            f"{name}: x {tuple(x.shape)} needs a weight of shape {tuple(x.shape[-1:])}, not {tuple(weight.shape)}"
        )
    if weight is None and offset != 0.0:
        raise ValueError(f"{name}: offset={offset} is added to the weight, and there is none")


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """RMSNorm over the last dimension: y = x * rstd * (offset + weight).

    x (..., N), weight (N,) or None (a factor of 1), in any mix of bf16, fp16 and fp32 -> y (..., N) in `out_dtype` or
    x's dtype, a new tensor. Each gradient has its input's dtype. Raises TypeError for other dtypes; ValueError for
    shapes that do not fit, several devices, or an offset without a weight; RuntimeError if differentiated twice.
    """
    out_dtype = out_dtype or x.dtype
    check("rms_norm", x, None, weight, offset, out_dtype)
    return _rms_norm(x, None, weight, eps, offset, out_dtype)[0]


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Continue the residual stream and normalise it: (y, stream), stream = x + residual, y = rms_norm(stream).

    x and residual (..., N), equal in shape; the sum is rounded to residual's dtype, and that is what y normalises. y is
    in `out_dtype` or x's dtype. Both are new tensors. Otherwise as `rms_norm`.
    """
    out_dtype = out_dtype or x.dtype
    check("add_rms_norm", x, residual, weight, offset, out_dtype)
    y, stream, *_ = _rms_norm(x, residual, weight, eps, offset, out_dtype)
    return y, stream
