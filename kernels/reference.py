"""The operators in plain PyTorch: the specification that the kernels are tested against.

Each reads as its formula, is differentiable, and is valid in float64. Narrower inputs are computed in fp32, so every
rounding is one that the contract names: an output's at its store, each gradient's once, in its input's dtype.
"""

import torch
from torch import Tensor


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight), the mean over the last dimension (Zhang & Sennrich 2019).

    x (..., N), weight (N,) or None for a factor of 1; y has x's shape and `out_dtype or x.dtype`.
    Raises ValueError for an offset without a weight.
    """
    wide = widen(x)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * (offset + weight.to(wide.dtype))
    elif offset:
        raise ValueError(f"offset={offset} is added to a weight, and there is none: pass a weight or leave offset out.")
    return y.to(out_dtype or x.dtype)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    out_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """stream = x + residual, rounded to residual's dtype, and y = rms_norm(stream). Returns (y, stream).

    x and residual (..., N) of one shape; y has `out_dtype or x.dtype`. dx = dresidual = norm_backward(dy) + dstream.
    """
    total = widen(x) + widen(residual)
    stream = total.to(residual.dtype)
    # y sees the rounded stream, and its gradient reaches `total` in full width, not rounded to the stream's dtype.
    rounded = total + (stream.to(total.dtype) - total).detach()
    return rms_norm(rounded, weight, eps=eps, offset=offset, out_dtype=out_dtype or x.dtype), stream


def widen(x: Tensor) -> Tensor:
    """x in the dtype that it is computed in: float64 stays, anything narrower becomes fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
