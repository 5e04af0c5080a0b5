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


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """cross-entropy(hidden @ weight.T) + z_loss * logsumexp^2 a token that is not ignored; at least fp32.

    hidden (..., H), weight (V, H), target (...) int64. `none` has target's shape, 0 where ignored; `mean` is over the
    tokens that are not ignored, 0 if there are none. Smoothing mixes the target with the mean over the vocabulary.
    """
    logits = widen(hidden) @ widen(weight).T
    kept = target != ignore_index
    lse = logits.logsumexp(-1)
    at_target = logits.gather(-1, target.where(kept, 0).unsqueeze(-1)).squeeze(-1)
    losses = lse - (1 - label_smoothing) * at_target - label_smoothing * logits.mean(-1) + z_loss * lse.square()
    losses = losses.where(kept, 0.0)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.sum() / kept.sum().clamp(min=1)


def rotary(
    qkv: Tensor, cos: Tensor, sin: Tensor, *, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q and k turned by their positions' angles, and v (Su et al. 2021, RoFormer; the halves as in Hugging Face's).

    qkv (B, T, (H + 2K) * D), cos and sin (T, D/2) or (B, T, D/2) -> q (B, T, H, D), k and v (B, T, K, D).
    """
    heads = widen(qkv).unflatten(-1, (num_heads + 2 * num_kv_heads, -1))
    q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=2)
    cos, sin = (torch.cat((table, table), dim=-1).unsqueeze(-2) for table in (cos, sin))  # the same for every head

    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return turn(q).to(qkv.dtype), turn(k).to(qkv.dtype), v.to(qkv.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """h = gate * sigmoid(gate) * up (Shazeer 2020). gate_up (..., 2F), gate first; h (..., F)."""
    gate, up = widen(gate_up).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def swiglu_linear(gate_up: Tensor, weight: Tensor) -> Tensor:
    """swiglu(gate_up) @ weight.T, h and the weight rounded to gate_up's dtype before. weight (d, F); out (..., d)."""
    wide = widen(weight)
    rounded = wide + (wide.to(gate_up.dtype) - wide).detach()  # its gradient reaches the weight in full width
    return (widen(swiglu(gate_up)) @ widen(rounded).T).to(gate_up.dtype)


def widen(x: Tensor) -> Tensor:
    """x in the dtype that it is computed in: float64 stays, anything narrower becomes fp32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
