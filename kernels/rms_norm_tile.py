"""RMSNorm kernels that hold whole rows in registers, at most 16384 wide: read once.

A program works on tiles of BLOCK_M rows. Backward, a tile is a tuple of PIECES blocks of BLOCK_N columns, so
that a row of 3 x 256 needs no padding.
"""

import triton
import triton.language as tl


@triton.jit
def rsqrt(x):
    """Rounded to nearest, once a row: the hardware's approximation would be most of the error of an fp32 result, so a
    step of Newton's follows. (sqrt_rn and div_rn are calls, and their registers cost an SM half of its programs.)
    """
    y = tl.rsqrt(x)
    y64 = y.to(tl.float64)
    return tl.where(x < float("inf"), (y64 * (1.5 - 0.5 * x.to(tl.float64) * y64 * y64)).to(tl.float32), y)


@triton.jit
def tile_mask(rows, columns, M, N: tl.constexpr, WIDTH: tl.constexpr):
    """What of a tile of WIDTH columns exists. No mask of columns where none is needed: it would cost registers."""
    if WIDTH == N:
        return (rows < M)[:, None]
    else:
        return (rows < M)[:, None] & (columns < N)[None, :]


@triton.jit
def load_scale(weight_ptr, columns, N: tl.constexpr, offset: tl.constexpr, HAS_WEIGHT: tl.constexpr):
    """offset + weight of these columns, in fp32; 1 without a weight."""
    if HAS_WEIGHT:
        return tl.load(weight_ptr + columns, mask=columns < N, other=0.0).to(tl.float32) + offset
    else:
        return tl.full(columns.shape, 1.0, tl.float32)


@triton.jit(do_not_specialize=["M"])
def rms_norm_forward(
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
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    mask = tile_mask(rows, columns, M, N, BLOCK_N)
    x = tl.load(x_ptr + rows[:, None] * x_stride * ALIGN + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(
            residual_ptr + rows[:, None] * residual_stride * ALIGN + columns[None, :], mask=mask, other=0.0
        )
        stream = (x + residual.to(tl.float32)).to(stream_ptr.dtype.element_ty)
        tl.store(stream_ptr + rows[:, None] * N + columns[None, :], stream, mask=mask)
        x = stream.to(tl.float32)  # what is normalised is what the next layer will read: the rounded stream
    scale = load_scale(weight_ptr, columns[None, :], N, offset, HAS_WEIGHT)
    rstd = rsqrt(tl.sum(x * x, 1) / N + eps)
    y = x * rstd[:, None] * scale
    tl.store(y_ptr + rows[:, None] * N + columns[None, :], y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(rstd_ptr + rows, rstd, mask=rows < M)


@triton.jit
def load_tile(ptr, rows, stride, M, N: tl.constexpr, ALIGN: tl.constexpr, BLOCK_N: tl.constexpr, PIECES: tl.constexpr):
    tile = ()
    for i in tl.static_range(PIECES):
        columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
        mask = tile_mask(rows, columns, M, N, PIECES * BLOCK_N)
        tile = tile + (
            tl.load(ptr + rows[:, None] * stride * ALIGN + columns[None, :], mask=mask, other=0.0).to(tl.float32),
        )
    return tile


@triton.jit(do_not_specialize=["M"])
def rms_norm_backward(
    dy_ptr,
    dstream_ptr,
    x_ptr,
    weight_ptr,
    rstd_ptr,
    dx_ptr,
    dresidual_ptr,
    dweight_ptr,  # (programs, N): each program's part
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
    NEEDS_DRESIDUAL: tl.constexpr,  # the same values as dx, in another dtype
    NEEDS_DWEIGHT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PIECES: tl.constexpr,
    STAGES: tl.constexpr,
):
    dweight, scale = (), ()
    for i in tl.static_range(PIECES):
        dweight = dweight + (tl.zeros((BLOCK_M, BLOCK_N), tl.float32),)
        # before the loop: inside, its loads would be pipelined and take shared memory from those of dy and x
        columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
        scale = scale + (load_scale(weight_ptr, columns, N, offset, HAS_WEIGHT)[None, :],)
    step = tl.num_programs(0) * BLOCK_M
    for first in tl.range(tl.program_id(0) * BLOCK_M, M, step, num_stages=STAGES):
        rows = tl.cast(first, tl.int64) + tl.arange(0, BLOCK_M)  # int64: rows x stride passes 2^31
        rstd = tl.load(rstd_ptr + rows, mask=rows < M, other=0.0)[:, None]
        dy = load_tile(dy_ptr, rows, dy_stride, M, N, ALIGN, BLOCK_N, PIECES)
        x = load_tile(x_ptr, rows, x_stride, M, N, ALIGN, BLOCK_N, PIECES)
        if HAS_DSTREAM:
            dstream = load_tile(dstream_ptr, rows, dstream_stride, M, N, ALIGN, BLOCK_N, PIECES)

        # dweight first: then only dy and x, not their product, live through the reduction
        dot = tl.zeros((BLOCK_M,), tl.float32)
        new_dweight = ()
        for i in tl.static_range(PIECES):
            product = dy[i] * (x[i] * rstd)
            new_dweight = new_dweight + (dweight[i] + product,)
            dot += tl.sum(product * scale[i], 1)
        dweight = new_dweight

        if NEEDS_DX or NEEDS_DRESIDUAL:
            mean_dot = (dot / N)[:, None]
            for i in tl.static_range(PIECES):
                columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
                mask = tile_mask(rows, columns, M, N, PIECES * BLOCK_N)
                dx = rstd * (dy[i] * scale[i] - x[i] * (rstd * mean_dot))
                if HAS_DSTREAM:
                    dx += dstream[i]
                offsets = rows[:, None] * N + columns[None, :]
                if NEEDS_DX:
                    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)
                if NEEDS_DRESIDUAL:
                    tl.store(dresidual_ptr + offsets, dx.to(dresidual_ptr.dtype.element_ty), mask=mask)
    if NEEDS_DWEIGHT:
        for i in tl.static_range(PIECES):
            columns = i * BLOCK_N + tl.arange(0, BLOCK_N)
            tl.store(dweight_ptr + tl.program_id(0) * N + columns, tl.sum(dweight[i], 0), mask=columns < N)


@triton.jit
def sum_parts(parts_ptr, sum_ptr, P: tl.constexpr, N: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    """parts (P, N) fp32 -> sum over P in the dtype of sum_ptr; BLOCK_P >= P."""
    parts = tl.arange(0, BLOCK_P)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (parts < P)[:, None] & (columns < N)[None, :]
    values = tl.load(parts_ptr + parts[:, None] * N + columns[None, :], mask=mask, other=0.0)
    tl.store(sum_ptr + columns, tl.sum(values, 0).to(sum_ptr.dtype.element_ty), mask=columns < N)
