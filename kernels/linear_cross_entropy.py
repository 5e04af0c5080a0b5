"""Cross-entropy of a linear layer's output that never exists as a whole.

    logits = hidden @ weight.T,    lse = log sum exp(logits),    t the target, s = label_smoothing
    loss = lse - (1 - s) * logits[t] - s * mean(logits) + z_loss * lse^2
    dlogits = (1 + 2 z_loss lse) * softmax(logits) - (1 - s) * [v = t] - s / V,    0 where the token is ignored
    dhidden = dlogits @ weight,    dweight = dlogits.T @ hidden

(Smoothing: Szegedy et al. 2015, as in PyTorch; z-loss: PaLM, Chowdhery et al. 2022.)

Tokens are taken in chunks (`launch.chunk_tokens`). Of each: one matmul writes its logits, one kernel reads them and
puts dlogits in their place, two matmuls read those. The matmuls' inputs have hidden's dtype and their sums are fp32;
dweight is added up over the chunks in fp32, so its error does not grow with their number. Matmul-bound: beside the
three matmuls 6 bytes a logit in bf16 (read once from memory and once from L2; written), and 8 bytes an element of
dweight and chunk.

sum, mean: the upstream gradient is one number, so that the gradients are computed in forward, those that are needed;
they are what is kept, in fp32. Backward multiplies them by that number and rounds them, once. none: an upstream
gradient a token, so backward starts from the inputs again, and nothing else is kept.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels import operator
from kernels.linear_cross_entropy_chunks import gradient_buffers, gradient_unit, rounded, walk

REDUCTIONS = ("mean", "sum", "none")


def total_outputs(hidden: Tensor, weight: Tensor, target: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    dhidden, dweight = gradient_buffers(hidden, weight, *settings[-2:])  # needs_dhidden, needs_dweight
    return dhidden.new_empty(()), dhidden, dweight


def total(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    needs_dhidden: bool,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of the losses, and its gradients times `gradient_unit`, for an upstream gradient of 1."""
    settings = ignore_index, label_smoothing, z_loss, needs_dhidden, needs_dweight
    losses, dhidden, dweight = walk(hidden, weight, target, None, *settings)
    return losses.sum(), dhidden, dweight


def total_backward_outputs(
    dloss: Tensor, dhidden: Tensor, dweight: Tensor, unit: float, hidden_dtype: torch.dtype, weight_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(dhidden, dtype=hidden_dtype), torch.empty_like(dweight, dtype=weight_dtype)


def total_backward(
    dloss: Tensor, dhidden: Tensor, dweight: Tensor, unit: float, hidden_dtype: torch.dtype, weight_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    factor = dloss / unit
    return rounded(dhidden, factor, hidden_dtype), rounded(dweight, factor, weight_dtype)


def save_total(ctx: Any, inputs: tuple, output: tuple) -> None:
    hidden, weight, *_, ctx.z_loss, _, _ = inputs
    ctx.dtypes = hidden.dtype, weight.dtype
    ctx.save_for_backward(*output[1:])
    ctx.mark_non_differentiable(*output[1:])


def total_gradients(run: Callable, ctx: Any, dloss: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    found = run(dloss, *ctx.saved_tensors, gradient_unit(ctx.dtypes[0], ctx.z_loss), *ctx.dtypes)
    return *wanted(ctx, found), *[None] * 6


def per_token_outputs(hidden: Tensor, weight: Tensor, target: Tensor, *settings: Any) -> Tensor:
    return torch.empty(target.shape, device=hidden.device, dtype=torch.float32)


def per_token(
    hidden: Tensor, weight: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, z_loss: float
) -> Tensor:
    settings = ignore_index, label_smoothing, z_loss
    return walk(hidden, weight, target, None, *settings, False, False)[0].view(target.shape)


def per_token_backward_outputs(
    dloss: Tensor, hidden: Tensor, weight: Tensor, target: Tensor, *settings: Any
) -> tuple[Tensor, Tensor]:
    wide = gradient_buffers(hidden, weight, *settings[-2:])  # needs_dhidden, needs_dweight
    return torch.empty_like(wide[0], dtype=hidden.dtype), torch.empty_like(wide[1], dtype=weight.dtype)


def per_token_backward(
    dloss: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    needs_dhidden: bool,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor]:
    # Relative to the largest finite one, so that none leaves fp16's range, and one that is not finite stays alone.
    finite = dloss.nan_to_num(0, 0, 0).abs()
    largest = finite.max().clamp(min=torch.finfo(torch.float32).tiny) if finite.numel() else finite.new_ones(())
    relative = (dloss / largest).reshape(-1)
    settings = ignore_index, label_smoothing, z_loss, needs_dhidden, needs_dweight
    _, dhidden, dweight = walk(hidden, weight, target, relative, *settings)
    factor = largest / gradient_unit(hidden.dtype, z_loss)
    return rounded(dhidden, factor, hidden.dtype), rounded(dweight, factor, weight.dtype)


def save_per_token(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.settings = inputs[3:]


def per_token_gradients(run: Callable, ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
    found = run(dloss, *ctx.saved_tensors, *ctx.settings, *ctx.needs_input_grad[:2])
    return *wanted(ctx, found), *[None] * 4


def wanted(ctx: Any, found: tuple[Tensor, Tensor]) -> list[Tensor | None]:
    return [t if needed else None for t, needed in zip(found, ctx.needs_input_grad, strict=False)]


_total = operator.differentiable(
    operator.Operator("linear_cross_entropy", total, total_outputs, opaque=True),
    operator.Operator("linear_cross_entropy_backward", total_backward, total_backward_outputs, opaque=True),
    save_total,
    total_gradients,
)
_per_token = operator.differentiable(
    operator.Operator("linear_cross_entropy_per_token", per_token, per_token_outputs, opaque=True),
    operator.Operator(
        "linear_cross_entropy_per_token_backward", per_token_backward, per_token_backward_outputs, opaque=True
    ),
    save_per_token,
    per_token_gradients,
)


def check(
    hidden: Tensor, weight: Tensor, target: Tensor, reduction: str, label_smoothing: float, z_loss: float
) -> None:
    name = "linear_cross_entropy"
    operator.check_tensors(name, hidden=hidden, weight=weight)
    shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and target {tuple(target.shape)}"
    if target.dtype != torch.int64:
        raise TypeError(f"{name}: target is {target.dtype}; it must be int64")
    if target.device != hidden.device:
        raise ValueError(f"{name}: hidden on {hidden.device}, but target on {target.device}")
    if hidden.dim() == 0 or weight.dim() != 2 or weight.shape[1] != hidden.shape[-1] or 0 in weight.shape:
        raise ValueError(f"{name}: {shapes}; hidden must be (..., H) and weight (V, H), both at least 1")
    if target.shape != hidden.shape[:-1]:
        raise ValueError(f"{name}: {shapes}; target must have hidden's shape but for the last dimension")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{name}: reduction={reduction!r} is unknown; choose {', '.join(REDUCTIONS)}")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"{name}: label_smoothing={label_smoothing} is not between 0 and 1")
    if not 0 <= z_loss < float("inf"):
        raise ValueError(f"{name}: z_loss={z_loss} is negative or not finite")


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
    """Cross-entropy of hidden @ weight.T, plus z_loss * logsumexp^2 a token, the logits never held as a whole.

    hidden (..., H), weight (V, H), each bf16, fp16 or fp32, target (...) int64 -> fp32: `sum` and `mean` a number,
    `none` target's shape. A target of `ignore_index` counts nowhere: 0 in `none`, left out of the mean; if none is
    left, the mean is 0 and so are the gradients. The matmuls run in hidden's dtype with fp32 sums; each gradient has
    its input's dtype. A target outside the vocabulary makes loss and gradients nan. Raises TypeError for other dtypes;
    ValueError for shapes that do not fit, several devices, an unknown reduction, a smoothing outside [0, 1] or a
    negative z_loss; RuntimeError if differentiated twice. `linear_cross_entropy_chunks.extra_bytes` says what memory it
    takes.
    """
    check(hidden, weight, target, reduction, label_smoothing, z_loss)
    settings = ignore_index, float(label_smoothing), float(z_loss)
    if reduction == "none":
        return _per_token(hidden, weight, target, *settings)
    needed = (torch.is_grad_enabled() and t.requires_grad for t in (hidden, weight))
    loss = _total(hidden, weight, target, *settings, *needed)[0]
    return loss if reduction == "sum" else loss / (target != ignore_index).sum().clamp(min=1)
