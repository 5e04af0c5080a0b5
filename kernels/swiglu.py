"""SwiGLU, alone and with the projection that follows it (Shazeer 2020).

    h = silu(gate) * up,    silu(gate) = gate * sigmoid(gate),    out = h @ weight.T

    dgate = sigmoid * (1 + gate * (1 - sigmoid)) * up * dh,    dup = silu(gate) * dh
    dh = dout @ weight,    dweight = dout.T @ h

Floor, bytes an element of h in bf16: swiglu 6 forward (gate, up; h) and 10 backward (dh, gate, up; dgate, dup), one
kernel each. Kept for backward: gate_up. swiglu_linear keeps gate_up and the weight; the kernel that reads gate_up for
its gradient writes h anew, so that backward moves 12 bytes beside its two matrix products.

Inside the kernels everything is fp32, with one rounding at each store. gate and up are one tensor, and so are their
gradients, because autograd would concatenate separate ones.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from kernels import launch, operator
from kernels.operator import Launch


@triton.jit
def tile(M, N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows (BLOCK_M, 1), columns (1, BLOCK_N), what of them exists) of this program; neighbours share their rows."""
    TILES: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N  # tl.cdiv would make it a tensor
    program = tl.program_id(0)
    rows = (program // TILES).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # int64: rows x stride passes 2^31
    columns = (program % TILES) * BLOCK_N + tl.arange(0, BLOCK_N)
    return rows[:, None], columns[None, :], (rows < M)[:, None] & (columns < N)[None, :]


@triton.jit(do_not_specialize=["stride", "M"])
def swiglu_forward(
    gate_up_ptr,  # (M, 2N)
    h_ptr,  # (M, N)
    stride,  # in units of ALIGN elements
    M,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows, columns, mask = tile(M, N, BLOCK_M, BLOCK_N)
    gate_ptr = gate_up_ptr + rows * stride * ALIGN + columns
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + N, mask=mask, other=0.0).to(tl.float32)
    h = gate * tl.sigmoid(gate) * up
    tl.store(h_ptr + rows * N + columns, h.to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["dh_stride", "stride", "M"])
def swiglu_backward(
    dh_ptr,  # (M, N)
    gate_up_ptr,  # (M, 2N)
    dgate_up_ptr,  # (M, 2N)
    h_ptr,  # (M, N)
    dh_stride,  # in units of ALIGN elements
    stride,
    M,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    NEEDS_H: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows, columns, mask = tile(M, N, BLOCK_M, BLOCK_N)
    gate_ptr = gate_up_ptr + rows * stride * ALIGN + columns
    gate = tl.load(gate_ptr, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + N, mask=mask, other=0.0).to(tl.float32)
    dh = tl.load(dh_ptr + rows * dh_stride * ALIGN + columns, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    dgate = sigmoid * (1.0 + gate * (1.0 - sigmoid)) * up * dh  # sigmoid first: it may be 0 where the rest is vast
    dgate_ptr = dgate_up_ptr + rows * (2 * N) + columns
    tl.store(dgate_ptr, dgate.to(dgate_up_ptr.dtype.element_ty), mask=mask)
    tl.store(dgate_ptr + N, (silu * dh).to(dgate_up_ptr.dtype.element_ty), mask=mask)
    if NEEDS_H:
        tl.store(h_ptr + rows * N + columns, (silu * up).to(h_ptr.dtype.element_ty), mask=mask)


def activation_outputs(gate_up: Tensor) -> Tensor:
    return torch.empty((*gate_up.shape[:-1], gate_up.shape[-1] // 2), device=gate_up.device, dtype=gate_up.dtype)


@operator.remembered
def forward_launch(device: torch.device, M: int, N: int, stride: int) -> Launch:
    shape, align = launch.swiglu(M, N), operator.alignment(stride)
    constants = {"N": N, "ALIGN": align} | shape.constants()
    return Launch(swiglu_forward, (shape.programs(M, N),), device, stride // align, M, **constants)


def activation(gate_up: Tensor) -> Tensor:
    """h."""
    h = activation_outputs(gate_up)
    rows, stride = operator.rows_of(gate_up)
    N = h.shape[-1]
    operator.launch(forward_launch(h.device, gate_up.numel() // (2 * N), N, stride), rows, h)
    return h


def backward_outputs(dh: Tensor, gate_up: Tensor) -> Tensor:
    return torch.empty(gate_up.shape, device=gate_up.device, dtype=gate_up.dtype)


@operator.remembered
def backward_launch(device: torch.device, M: int, N: int, dh_stride: int, stride: int, needs_h: bool) -> Launch:
    shape, align = launch.swiglu(M, N), operator.alignment(dh_stride, stride)
    constants = {"N": N, "ALIGN": align, "NEEDS_H": needs_h} | shape.constants()
    grid = (shape.programs(M, N),)
    return Launch(swiglu_backward, grid, device, dh_stride // align, stride // align, M, **constants)


def activation_backward(dh: Tensor, gate_up: Tensor, needs_h: bool) -> tuple[Tensor, Tensor]:
    """dgate_up, and h where it is needed (empty where not), by one kernel."""
    dgate_up = backward_outputs(dh, gate_up)
    h = activation_outputs(gate_up) if needs_h else gate_up.new_empty(0)
    N = dh.shape[-1]
    (dh, dh_stride), (gate_up, stride) = operator.rows_of(dh), operator.rows_of(gate_up)
    what = backward_launch(dh.device, gate_up.numel() // (2 * N), N, dh_stride, stride, needs_h)
    operator.launch(what, dh, gate_up, dgate_up, h)
    return dgate_up, h


def backward(dh: Tensor, gate_up: Tensor) -> Tensor:
    """dgate_up."""
    return activation_backward(dh, gate_up, needs_h=False)[0]


def save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def gradients(run: Callable, ctx: Any, dh: Tensor) -> Tensor:
    return run(dh, *ctx.saved_tensors)


def linear_outputs(gate_up: Tensor, weight: Tensor) -> Tensor:
    return torch.empty((*gate_up.shape[:-1], weight.shape[0]), device=gate_up.device, dtype=gate_up.dtype)


def linear(gate_up: Tensor, weight: Tensor) -> Tensor:
    """out."""
    h = activation(gate_up)
    with torch.autocast(h.device.type, enabled=False):  # it would choose another dtype for the product
        return F.linear(h, weight.to(h.dtype))


def linear_backward_outputs(
    dout: Tensor, gate_up: Tensor, weight: Tensor, needs_dgate_up: bool, needs_dweight: bool
) -> tuple[Tensor, Tensor]:
    dgate_up = torch.empty(gate_up.shape if needs_dgate_up else (0,), device=gate_up.device, dtype=gate_up.dtype)
    dweight = torch.empty(weight.shape if needs_dweight else (0,), device=weight.device, dtype=weight.dtype)
    return dgate_up, dweight


def linear_backward(
    dout: Tensor, gate_up: Tensor, weight: Tensor, needs_dgate_up: bool, needs_dweight: bool
) -> tuple[Tensor, Tensor]:
    """dgate_up, dweight; empty where not needed."""
    dgate_up, dweight = gate_up.new_empty(0), weight.new_empty(0)
    with torch.autocast(dout.device.type, enabled=False):
        if needs_dgate_up:
            dh = dout @ weight.to(dout.dtype)
            dgate_up, h = activation_backward(dh, gate_up, needs_h=needs_dweight)
        else:
            h = activation(gate_up)
        if needs_dweight:
            dout, h = (t.reshape(-1, t.shape[-1]) for t in (dout, h))
            dweight = product(dout.t(), h, weight.dtype)
    return dgate_up, dweight


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b, multiplied in their dtype, summed in fp32 and rounded once, to `dtype`."""
    if dtype == a.dtype:
        return a @ b
    if a.dtype == torch.float32 or a.device.type == "cpu":  # where PyTorch has no product into another dtype
        return (a.float() @ b.float()).to(dtype)
    return torch.mm(a, b, out_dtype=torch.float32).to(dtype)


def linear_gradients(run: Callable, ctx: Any, dout: Tensor) -> tuple[Tensor | None, Tensor | None]:
    needs_dgate_up, needs_dweight = ctx.needs_input_grad
    dgate_up, dweight = run(dout, *ctx.saved_tensors, needs_dgate_up, needs_dweight)
    return dgate_up if needs_dgate_up else None, dweight if needs_dweight else None


_swiglu = operator.differentiable(
    operator.Operator("swiglu", activation, activation_outputs),
    operator.Operator("swiglu_backward", backward, backward_outputs),
    save,
    gradients,
)
_swiglu_linear = operator.differentiable(
    operator.Operator("swiglu_linear", linear, linear_outputs),
    operator.Operator("swiglu_linear_backward", linear_backward, linear_backward_outputs),
    save,
    linear_gradients,
)


def check(name: str, gate_up: Tensor, weight: Tensor | None) -> None:
    operator.check_tensors(name, gate_up=gate_up, weight=weight)
    if gate_up.dim() == 0 or gate_up.shape[-1] == 0 or gate_up.shape[-1] % 2:
        raise ValueError(f"{name}: gate_up {tuple(gate_up.shape)} needs a last dimension of 2F, gate first, then up")
    F = gate_up.shape[-1] // 2
    if weight is not None and (weight.dim() != 2 or weight.shape[1] != F or not len(weight)):
        raise ValueError(
            f"{name}: gate_up {tuple(gate_up.shape)} needs a weight of shape (d, {F}), d at least 1, not "
            f"{tuple(weight.shape)}"
        )


def swiglu(gate_up: Tensor) -> Tensor:
    """h = silu(gate) * up, gate the first half of the last dimension and up the second.

    gate_up (..., 2F) in bf16, fp16 or fp32 -> h (..., F) in its dtype, a new tensor. Raises TypeError for other dtypes;
    ValueError for a last dimension that is no 2F; RuntimeError if differentiated twice.
    """
    check("swiglu", gate_up, None)
    return _swiglu(gate_up)


def swiglu_linear(gate_up: Tensor, weight: Tensor) -> Tensor:
    """swiglu(gate_up) @ weight.T, h computed again in backward instead of kept.

    gate_up (..., 2F), weight (d, F), in any mix of bf16, fp16 and fp32 -> out (..., d) in gate_up's dtype, in which the
    products are taken (autocast or not); a new tensor. Each gradient has its input's dtype; a frozen input costs none
    of its work. Raises as `swiglu`, and ValueError for a weight that does not fit or on another device.
    """
    check("swiglu_linear", gate_up, weight)
    return _swiglu_linear(gate_up, weight)
