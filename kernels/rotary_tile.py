"""The kernels of `rotary`, one each way.

A program turns BLOCK_H heads of BLOCK_T tokens of one sequence. A sequence has T tokens; a token H heads of q, K of k
and K of v; a head D elements. In the names of strides, b is the sequence, t the token and h the head.
"""

import triton
import triton.language as tl


@triton.jit
def place(T, H: tl.constexpr, K: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr):
    """(tile of heads, sequence, tokens (BLOCK_T,)) of this program: the tiles of q, then of k, then of v.

    Neighbours share their tokens, hence their angles. int64, since tokens x stride passes 2^31.
    """
    TILES: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H + 2 * ((K + BLOCK_H - 1) // BLOCK_H)
    program = tl.program_id(0)
    block = program // TILES
    blocks = tl.cdiv(T, BLOCK_T)  # of a sequence
    tokens = (block % blocks).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    return program % TILES, (block // blocks).to(tl.int64), tokens


@triton.jit
def load_angles(ptr, rows, exists, HALF: tl.constexpr, BLOCK_D: tl.constexpr):
    """cos or sin of the tokens, (BLOCK_T, 1, BLOCK_D); rows (BLOCK_T,): where each token's are."""
    columns = tl.arange(0, BLOCK_D)
    mask = exists[:, None] & (columns < HALF)[None, :]
    return tl.load(ptr + rows[:, None] + columns[None, :], mask=mask, other=0.0)[:, None, :]


@triton.jit
def turn(
    source_ptr,
    source_rows,  # (BLOCK_T,): where head 0 of each token is
    source_head_stride,
    target_ptr,
    target_rows,
    cos,
    sin,
    exists,  # (BLOCK_T,)
    tile,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    HAS_SOURCE: tl.constexpr,  # absent: the target is filled with zeros
    ROTATE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    heads = (tile.to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H))[None, :, None]
    columns = tl.arange(0, BLOCK_D)[None, None, :]
    mask = exists[:, None, None] & (heads < HEADS) & (columns < HALF)
    if HAS_SOURCE:
        source = source_ptr + (source_rows[:, None, None] + heads * source_head_stride + columns)
        x1 = tl.load(source, mask=mask, other=0.0).to(tl.float32)
        x2 = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    else:
        x1 = tl.zeros(mask.shape, tl.float32)
        x2 = x1
    if ROTATE:
        y1, y2 = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    else:
        y1, y2 = x1, x2
    target = target_ptr + (target_rows[:, None, None] + heads * D + columns)
    tl.store(target, y1.to(target_ptr.dtype.element_ty), mask=mask)
    tl.store(target + HALF, y2.to(target_ptr.dtype.element_ty), mask=mask)


# Strides and T are not specialised on: a length would otherwise compile anew. ALIGN says what their divisors are.
@triton.jit(do_not_specialize=["b_stride", "t_stride", "table_b_stride", "table_t_stride", "T"])
def rotary_forward(
    qkv_ptr,  # (B, T, (H + 2K) * D)
    cos_ptr,
    sin_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    b_stride,  # in units of ALIGN elements
    t_stride,
    table_b_stride,  # in units of TABLE_ALIGN elements; 0 where all sequences share the table
    table_t_stride,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    ALIGN: tl.constexpr,
    TABLE_ALIGN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    Q_TILES: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    K_TILES: tl.constexpr = (K + BLOCK_H - 1) // BLOCK_H
    tile, b, t = place(T, H, K, BLOCK_T, BLOCK_H)
    exists = t < T
    qkv = b * b_stride * ALIGN + t * t_stride * ALIGN
    out = b * T + t
    if tile < Q_TILES + K_TILES:
        angles = b * table_b_stride * TABLE_ALIGN + t * table_t_stride * TABLE_ALIGN
        cos = load_angles(cos_ptr, angles, exists, D // 2, BLOCK_D)
        sin = load_angles(sin_ptr, angles, exists, D // 2, BLOCK_D)
        if tile < Q_TILES:
            turn(qkv_ptr, qkv, D, q_ptr, out * (H * D), cos, sin, exists, tile, H, D, True, True, BLOCK_H, BLOCK_D)
        else:
            tile -= Q_TILES
            qkv += H * D
            turn(qkv_ptr, qkv, D, k_ptr, out * (K * D), cos, sin, exists, tile, K, D, True, True, BLOCK_H, BLOCK_D)
    else:
        tile -= Q_TILES + K_TILES
        qkv += (H + K) * D
        turn(qkv_ptr, qkv, D, v_ptr, out * (K * D), None, None, exists, tile, K, D, True, False, BLOCK_H, BLOCK_D)


@triton.jit(
    do_not_specialize=[
        *("dq_b_stride", "dq_t_stride", "dq_h_stride", "dk_b_stride", "dk_t_stride", "dk_h_stride"),
        *("dv_b_stride", "dv_t_stride", "dv_h_stride", "table_b_stride", "table_t_stride", "T"),
    ]
)
def rotary_backward(
    dq_ptr,  # (B, T, H, D)
    dk_ptr,
    dv_ptr,
    cos_ptr,
    sin_ptr,
    dqkv_ptr,  # (B, T, (H + 2K) * D)
    dq_b_stride,  # in units of ALIGN elements
    dq_t_stride,
    dq_h_stride,
    dk_b_stride,
    dk_t_stride,
    dk_h_stride,
    dv_b_stride,
    dv_t_stride,
    dv_h_stride,
    table_b_stride,  # in units of TABLE_ALIGN elements
    table_t_stride,
    T,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    ALIGN: tl.constexpr,
    TABLE_ALIGN: tl.constexpr,
    HAS_DQ: tl.constexpr,
    HAS_DK: tl.constexpr,
    HAS_DV: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    Q_TILES: tl.constexpr = (H + BLOCK_H - 1) // BLOCK_H
    K_TILES: tl.constexpr = (K + BLOCK_H - 1) // BLOCK_H
    tile, b, t = place(T, H, K, BLOCK_T, BLOCK_H)
    exists = t < T
    out = (b * T + t) * ((H + 2 * K) * D)
    if tile < Q_TILES + K_TILES:
        angles = b * table_b_stride * TABLE_ALIGN + t * table_t_stride * TABLE_ALIGN
        cos = load_angles(cos_ptr, angles, exists, D // 2, BLOCK_D)
        sin = -load_angles(sin_ptr, angles, exists, D // 2, BLOCK_D)
        if tile < Q_TILES:
            dq = b * dq_b_stride * ALIGN + t * dq_t_stride * ALIGN
            h_stride = tl.cast(dq_h_stride, tl.int64) * ALIGN
            turn(dq_ptr, dq, h_stride, dqkv_ptr, out, cos, sin, exists, tile, H, D, HAS_DQ, HAS_DQ, BLOCK_H, BLOCK_D)
        else:
            tile -= Q_TILES
            out += H * D
            dk = b * dk_b_stride * ALIGN + t * dk_t_stride * ALIGN
            h_stride = tl.cast(dk_h_stride, tl.int64) * ALIGN
            turn(dk_ptr, dk, h_stride, dqkv_ptr, out, cos, sin, exists, tile, K, D, HAS_DK, HAS_DK, BLOCK_H, BLOCK_D)
    else:
        tile -= Q_TILES + K_TILES
        out += (H + K) * D
        dv = b * dv_b_stride * ALIGN + t * dv_t_stride * ALIGN
        h_stride = tl.cast(dv_h_stride, tl.int64) * ALIGN
        turn(dv_ptr, dv, h_stride, dqkv_ptr, out, None, None, exists, tile, K, D, HAS_DV, False, BLOCK_H, BLOCK_D)
