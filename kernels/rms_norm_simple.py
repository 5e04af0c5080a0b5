"""RMSNorm as one kernel, one program a row: the idea of fusion in fifteen lines. Read this file first.

    y = x * rstd * weight,    rstd = 1 / sqrt(mean(x^2) + eps)        (Zhang & Sennrich 2019)

Eager PyTorch runs a kernel for each operation, and each streams the whole tensor through device memory. Here a program
loads its row once, does everything in registers and writes the result once. A tensor of 2 x 3 rows is launched over the
grid (6,). `rms_norm.py` is the same idea made fast: several rows a program, dW fused, wide rows.

Bytes an element in bf16: forward 4 (read x, write y), backward 6 (read dy and x, write dx) and what PyTorch spends on
dW. Kept for backward: x, the weight and one fp32 number a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import MAX_BLOCK_SIZE, operator
from kernels.operator import Launch


@triton.jit
def rms_norm_simple_forward(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, N: tl.constexpr, eps: tl.constexpr, BLOCK_N: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)  # int64: row * N passes 2^31
    columns = tl.arange(0, BLOCK_N)  # a power of two, so the last lanes may hold nothing
    x = tl.load(x_ptr + row * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    tl.store(y_ptr + row * N + columns, (x * rstd * weight).to(y_ptr.dtype.element_ty), mask=columns < N)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def rms_norm_simple_backward(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, N: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK_N)
    dy = tl.load(dy_ptr + row * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row * N + columns, mask=columns < N, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    x_hat, dx_hat = x * rstd, dy * weight
    dx = rstd * (dx_hat - x_hat * tl.sum(dx_hat * x_hat, 0) / N)
    tl.store(dx_ptr + row * N + columns, dx.to(dx_ptr.dtype.element_ty), mask=columns < N)


def forward(x: Tensor, weight: Tensor, eps: float, block_size: int, num_warps: int) -> tuple[Tensor, Tensor]:
    y, rstd = forward_outputs(x, weight, eps, block_size, num_warps)
    rows, N = x.reshape(-1, x.shape[-1]).contiguous(), x.shape[-1]
    constants = {"N": N, "eps": eps, "BLOCK_N": block_size, "num_warps": num_warps}
    launch = Launch(rms_norm_simple_forward, (rows.shape[0],), x.device, **constants)
    operator.launch(launch, rows, weight.contiguous(), y, rstd)
    return y, rstd


def forward_outputs(x: Tensor, weight: Tensor, eps: float, block_size: int, num_warps: int) -> tuple[Tensor, Tensor]:
    rstd = torch.empty(x.numel() // x.shape[-1], device=x.device, dtype=torch.float32)
    return torch.empty(x.shape, device=x.device, dtype=x.dtype), rstd


def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, block_size: int, num_warps: int) -> Tensor:
    dx = backward_outputs(dy, x, weight, rstd, block_size, num_warps)
    dy, x = dy.reshape(-1, dy.shape[-1]).contiguous(), x.reshape(-1, x.shape[-1]).contiguous()
    constants = {"N": x.shape[-1], "BLOCK_N": block_size, "num_warps": num_warps}
    launch = Launch(rms_norm_simple_backward, (x.shape[0],), x.device, **constants)
    operator.launch(launch, dy, x, weight.contiguous(), rstd, dx)
    return dx


def backward_outputs(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, block_size: int, num_warps: int) -> Tensor:
    return torch.empty(x.shape, device=x.device, dtype=x.dtype)


def save(ctx, inputs, output) -> None:
    x, weight, _, *ctx.launch = inputs
    ctx.save_for_backward(x, weight, output[1])
    ctx.mark_non_differentiable(output[1])


def gradients(run, ctx, dy, _) -> tuple[Tensor | None, ...]:
    x, weight, rstd = ctx.saved_tensors
    dx = run(dy, x, weight, rstd, *ctx.launch) if ctx.needs_input_grad[0] else None
    dweight = None
    if ctx.needs_input_grad[1]:  # summed by PyTorch, in fp32: a sum over rows is what one program a row cannot do
        N = x.shape[-1]
        dweight = (dy.float() * x.float()).reshape(-1, N).mul(rstd[:, None]).sum(0).to(weight.dtype)
    return dx, dweight, None, None, None


_rms_norm_simple = operator.differentiable(
    operator.Operator("rms_norm_simple", forward, forward_outputs),
    operator.Operator("rms_norm_simple_backward", backward, backward_outputs),
    save,
    gradients,
)


def rms_norm_simple(
    x: Tensor, weight: Tensor, eps: float = 1e-6, block_size: int | None = None, num_warps: int | None = None
) -> Tensor:
    """RMSNorm over the last dimension, one program a row.

    x (..., N), weight (N,) -> y (..., N) in x's dtype; bf16, fp16 or fp32, statistics in fp32. `block_size` (a power of
    two, at least N) and `num_warps` (another, 1 to 32) are the shape of a program. Raises TypeError for other
    dtypes, ValueError for shapes, devices, a row wider than its block or another shape of a program.
    """
    operator.check_tensors("rms_norm_simple", x=x, weight=weight)
    N = x.shape[-1] if x.dim() else 0
    if N < 1 or weight.shape != (N,):
        raise ValueError(
            f"rms_norm_simple: x {tuple(x.shape)} needs a weight of shape ({N},), not {tuple(weight.shape)}"
        )
    if block_size is None:
        block_size = triton.next_power_of_2(N)
    if block_size < N or block_size & (block_size - 1) or block_size > MAX_BLOCK_SIZE:
        raise ValueError(
            f"rms_norm_simple: rows of {N} in a block of {block_size}: a block is a power of two from {N} to "
            f"{MAX_BLOCK_SIZE} (wider rows: rms_norm)"
        )
    if num_warps is None:
        num_warps = min(max(block_size // 1024, 1), 32)  # 32 elements a thread
    if num_warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"rms_norm_simple: num_warps={num_warps} must be 1, 2, 4, 8, 16 or 32")
    return _rms_norm_simple(x, weight, eps, block_size, num_warps)[0]
