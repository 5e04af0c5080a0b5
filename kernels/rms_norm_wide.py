"""RMSNorm kernels that read a row twice, the second time from the caches as far as they reach: for rows too wide to
hold, and forward from 4096 on, where that is faster (`launch_norm.py` decides).

Forward, one program has a row. Backward, a kernel computes each row's statistic; in a second one a program owns a strip
of columns of many rows, so that its part of dweight stays in registers.
"""

import triton
import triton.language as tl

from kernels.rms_norm_tile import load_scale, rsqrt


@triton.jit
def load_stream(
    x_ptr, residual_ptr, stream_ptr, columns, N: tl.constexpr, HAS_RESIDUAL: tl.constexpr, POLICY: tl.constexpr
):
    """Part of one row of what is to be normalised, in fp32 but rounded to the stream's dtype.

    POLICY: whether the caches should keep it. Told so, they gain 2% at 8192 and 5 to 17% up to 65536.
    """
    x = tl.load(x_ptr + columns, mask=columns < N, other=0.0, eviction_policy=POLICY).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + columns, mask=columns < N, other=0.0, eviction_policy=POLICY).to(tl.float32)
        x = (x + residual).to(stream_ptr.dtype.element_ty).to(tl.float32)
    return x


@triton.jit(do_not_specialize=["M"])
def rms_norm_forward_wide(
    x_ptr,
    residual_ptr,
    weight_ptr,
    y_ptr,
    stream_ptr,
    rstd_ptr,
    x_stride,  # in units of ALIGN elements; times an int64 first: it may pass 2^31
    residual_stride,
    M,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    eps: tl.constexpr,
    offset: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    for first in tl.range(tl.program_id(0), M, tl.num_programs(0)):
        row = tl.cast(first, tl.int64)
        x_row, residual_row, stream_row = (
            x_ptr + row * x_stride * ALIGN,
            residual_ptr + row * residual_stride * ALIGN,
            stream_ptr + row * N,
        )
        square = tl.zeros((BLOCK_N,), tl.float32)
        for start in tl.range(0, N, BLOCK_N):
            columns = start + tl.arange(0, BLOCK_N)
            x = load_stream(x_row, residual_row, stream_ptr, columns, N, HAS_RESIDUAL, "evict_last")
            square += x * x
        rstd = rsqrt(tl.sum(square, 0) / N + eps)
        tl.store(rstd_ptr + row, rstd)
        for start in tl.range(0, N, BLOCK_N):
            columns = start + tl.arange(0, BLOCK_N)
            x = load_stream(x_row, residual_row, stream_ptr, columns, N, HAS_RESIDUAL, "evict_first")
            if HAS_RESIDUAL:
                tl.store(stream_row + columns, x.to(stream_ptr.dtype.element_ty), mask=columns < N)
            y = x * rstd * load_scale(weight_ptr, columns, N, offset, HAS_WEIGHT)
            tl.store(y_ptr + row * N + columns, y.to(y_ptr.dtype.element_ty), mask=columns < N)


@triton.jit
def rms_norm_backward_statistics(
    dy_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    mean_dot_ptr,
    dy_stride,
    x_stride,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    offset: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """mean(g * x_hat) of a row, g = dy * (offset + weight)."""
    row = tl.program_id(0).to(tl.int64)
    dot = tl.zeros((BLOCK_N,), tl.float32)
    for start in tl.range(0, N, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        dy = tl.load(dy_ptr + row * dy_stride * ALIGN + columns, mask=columns < N, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + row * x_stride * ALIGN + columns, mask=columns < N, other=0.0).to(tl.float32)
        dot += dy * x * load_scale(weight_ptr, columns, N, offset, HAS_WEIGHT)
    tl.store(mean_dot_ptr + row, tl.sum(dot, 0) * tl.load(rstd_ptr + row) / N)


@triton.jit(do_not_specialize=["M"])
def rms_norm_backward_strips(
    dy_ptr,
    dstream_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    mean_dot_ptr,
    dx_ptr,
    dresidual_ptr,
    dweight_ptr,  # (programs of a strip, N)
    dy_stride,
    dstream_stride,
    x_stride,
    M,
    N: tl.constexpr,
    ALIGN: tl.constexpr,
    offset: tl.constexpr,
    HAS_DSTREAM: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEEDS_DX: tl.constexpr,
    NEEDS_DRESIDUAL: tl.constexpr,
    NEEDS_DWEIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    scale = load_scale(weight_ptr, columns, N, offset, HAS_WEIGHT)[None, :]
    dweight = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.num_programs(1) * BLOCK_M
    for first in tl.range(tl.program_id(1) * BLOCK_M, M, step, num_stages=STAGES):
        rows = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_M)
        mask = (rows < M)[:, None] & (columns < N)[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
        mean_dot = tl.load(mean_dot_ptr + rows, mask=rows < M, other=0.0)[:, None]
        dy = tl.load(dy_ptr + rows[:, None] * dy_stride * ALIGN + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + rows[:, None] * x_stride * ALIGN + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        dweight += dy * (x * rstd)
        dx = rstd * (dy * scale - x * (rstd * mean_dot))
        if HAS_DSTREAM:
            offsets = rows[:, None] * dstream_stride * ALIGN + columns[None, :]
            dx += tl.load(dstream_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        offsets = rows[:, None] * N + columns[None, :]
        if NEEDS_DX:
            tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        if NEEDS_DRESIDUAL:
            tl.store(dresidual_ptr + offsets, dx.to(dresidual_ptr.dtype.element_ty), mask=mask)
    if NEEDS_DWEIGHT:
        tl.store(dweight_ptr + tl.program_id(1) * N + columns, tl.sum(dweight, 0), mask=columns < N)
