"""Rotary positions: from the packed projection to rotated q and k, and v, one kernel each way (Su et al. 2021).

    (x1, x2) -> (x1 * cos - x2 * sin, x2 * cos + x1 * sin),    x1, x2 the two halves of a head

Half-split layout, as Hugging Face's: element i turns with element i + D/2. Backward turns the other way.

Floor, bytes an element of qkv in bf16: 4 forward (qkv; q, k, v) and 4 backward (dq, dk, dv; one packed gradient). v is
copied, so that q, k and v are all contiguous. Kept for backward: the tables alone. The rotation is fp32 from fp32
tables, with one rounding at the store. Backward, the gradients are read where attention left them, by three strides:
a transposed view costs no copy.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels import launch, operator
from kernels.operator import Launch
from kernels.rotary_tile import rotary_backward, rotary_forward


def in_units(width: int, *strides: int) -> tuple[int, list[int]]:
    """(ALIGN, strides in units of it): the largest of 16, 8, 4, 2, 1 that divides the width, if the strides allow it.

    Of the width, not of the strides: under torch.compile those are symbols, whose divisors would fix the length.
    """
    align = math.gcd(16, width)
    if any(stride % align for stride in strides):
        align = 1
    return align, [stride // align for stride in strides]


def angles(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """The tables, and their strides over sequences and tokens; both are walked alike."""
    if cos.stride() != sin.stride() or cos.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    return cos, sin, (0 if cos.dim() == 2 else cos.stride(0), cos.stride(-2))


@operator.remembered
def forward_launch(
    device: torch.device, B: int, T: int, H: int, K: int, D: int, strides: tuple[int, int], table: tuple[int, int, int]
) -> Launch:
    """`table`: its width and strides."""
    (align, units), (table_align, table_units) = in_units(D, *strides), in_units(*table)
    shape = launch.rotary(T, H, K, D)
    constants = {"H": H, "K": K, "D": D, "ALIGN": align, "TABLE_ALIGN": table_align} | shape.constants()
    return Launch(rotary_forward, (shape.programs(B, T, H, K),), device, *units, *table_units, T, **constants)


def forward_outputs(
    qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, width = qkv.shape
    D = width // (num_heads + 2 * num_kv_heads)
    q, k, v = (
        torch.empty((B, T, heads, D), device=qkv.device, dtype=qkv.dtype)
        for heads in (num_heads, num_kv_heads, num_kv_heads)
    )
    return q, k, v


def forward(qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v."""
    q, k, v = forward_outputs(qkv, cos, sin, num_heads, num_kv_heads)
    if qkv.stride(-1) != 1:
        qkv = qkv.contiguous()
    cos, sin, table_strides = angles(cos, sin)
    B, T, H, D = q.shape
    table = (cos.shape[-1], *table_strides)
    what = forward_launch(qkv.device, B, T, H, num_kv_heads, D, qkv.stride()[:2], table)
    operator.launch(what, qkv, cos, sin, q, k, v)
    return q, k, v


def first_given(*gradients: Tensor | None) -> Tensor:
    return next(gradient for gradient in gradients if gradient is not None)


def backward_outputs(
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    num_kv_heads: int,
) -> Tensor:
    given = first_given(dq, dk, dv)
    B, T, _, D = given.shape
    return torch.empty((B, T, (num_heads + 2 * num_kv_heads) * D), device=given.device, dtype=given.dtype)


@operator.remembered
def backward_launch(
    device: torch.device,
    B: int,
    T: int,
    H: int,
    K: int,
    D: int,
    strides: tuple[int, ...],
    table: tuple[int, int, int],
    has: tuple[bool, bool, bool],
) -> Launch:
    """`strides`: three of each of dq, dk, dv; `has`: whether they are there; `table` as in `forward_launch`."""
    (align, units), (table_align, table_units) = in_units(D, *strides), in_units(*table)
    shape = launch.rotary(T, H, K, D)
    constants = {"H": H, "K": K, "D": D, "ALIGN": align, "TABLE_ALIGN": table_align} | shape.constants()
    constants |= dict(zip(("HAS_DQ", "HAS_DK", "HAS_DV"), has, strict=True))
    return Launch(rotary_backward, (shape.programs(B, T, H, K),), device, *units, *table_units, T, **constants)


def backward(
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    num_kv_heads: int,
) -> Tensor:
    """The packed gradient; zeros where an output has none."""
    dqkv = backward_outputs(dq, dk, dv, cos, sin, num_heads, num_kv_heads)
    given = first_given(dq, dk, dv)
    # An absent gradient's place is taken by one that is there; the kernel does not touch it.
    sources = [given if gradient is None else gradient for gradient in (dq, dk, dv)]
    sources = [source if source.stride(-1) == 1 else source.contiguous() for source in sources]
    strides = tuple([stride for source in sources for stride in source.stride()[:3]])
    cos, sin, table_strides = angles(cos, sin)
    B, T, _, D = given.shape
    table = (cos.shape[-1], *table_strides)
    has = dq is not None, dk is not None, dv is not None
    what = backward_launch(dqkv.device, B, T, num_heads, num_kv_heads, D, strides, table, has)
    operator.launch(what, *sources, cos, sin, dqkv)
    return dqkv


def save(ctx: Any, inputs: tuple, output: tuple) -> None:
    _, cos, sin, *ctx.heads = inputs
    ctx.save_for_backward(cos, sin)


def gradients(run: Callable, ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    return run(*grads, *ctx.saved_tensors, *ctx.heads), None, None, None, None


_rotary = operator.differentiable(
    operator.Operator("rotary", forward, forward_outputs),
    operator.Operator("rotary_backward", backward, backward_outputs),
    save,
    gradients,
)


def check(qkv: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int) -> None:
    operator.check_tensors("rotary", qkv=qkv, cos=cos, sin=sin)
    for name, table in {"cos": cos, "sin": sin}.items():
        if table.dtype != torch.float32:
            raise TypeError(f"rotary: {name} is {table.dtype}; it must be float32: narrower angles drift with position")
        if table.requires_grad:
            raise ValueError(f"rotary: {name} requires grad, but the tables get none: pass {name}.detach()")
    heads = num_heads + 2 * num_kv_heads
    if num_heads < 1 or num_kv_heads < 1:
        raise ValueError(f"rotary: num_heads={num_heads}, num_kv_heads={num_kv_heads}: both must be at least 1")
    if qkv.dim() != 3 or qkv.shape[-1] == 0 or qkv.shape[-1] % (2 * heads):
        raise ValueError(
            f"rotary: qkv {tuple(qkv.shape)} must be (B, T, {heads} * D), D even: "
            f"{num_heads} heads of q, {num_kv_heads} of k and {num_kv_heads} of v"
        )
    B, T, width = qkv.shape
    table_shape = T, width // heads // 2
    if cos.shape != sin.shape or tuple(cos.shape) not in (table_shape, (B, *table_shape)):
        raise ValueError(
            f"rotary: qkv {tuple(qkv.shape)} with {heads} heads in all needs cos and sin of shape {table_shape} or "
            f"{(B, *table_shape)}, not {tuple(cos.shape)} and {tuple(sin.shape)}"
        )


def rotary(
    qkv: Tensor, cos: Tensor, sin: Tensor, *, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q and k rotated by their tokens' angles, and v, out of the packed projection.

    qkv (B, T, (H + 2K) * D) in bf16, fp16 or fp32, in the order q, k, v; cos, sin (T, D/2) or (B, T, D/2) in fp32
    -> q (B, T, H, D), k and v (B, T, K, D) in qkv's dtype, new and contiguous. Positions are the tables' rows, which
    get no gradient. Raises TypeError for other dtypes; ValueError for shapes that do not fit, several devices, or
    tables that require grad; RuntimeError if differentiated twice.
    """
    check(qkv, cos, sin, num_heads, num_kv_heads)
    return _rotary(qkv, cos, sin, num_heads, num_kv_heads)
