"""Cross-entropy of rows of logits, and its gradient in their place."""

import torch
import triton
import triton.language as tl

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)  # not -inf: its difference with itself is no number


@triton.jit
def cross_entropy_rows(
    logits_ptr,
    target_ptr,
    upstream_ptr,
    loss_ptr,
    M,
    ignore_index,
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    label_smoothing: tl.constexpr,
    z_loss: tl.constexpr,
    unit: tl.constexpr,
    NEEDS_GRADIENT: tl.constexpr,
    HAS_UPSTREAM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """loss (M,) of logits (M, V); with NEEDS_GRADIENT logits become unit * upstream * dloss/dlogits.

    Rows are STRIDE long. What lies between V and STRIDE may be anything and is written over: with STRIDE a multiple of
    16 every access is of 16 bytes, whatever V.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = rows < M
    columns = tl.arange(0, BLOCK_N)
    row_ptrs = logits_ptr + rows.to(tl.int64) * STRIDE  # int64: rows x STRIDE may pass 2^31
    target = tl.load(target_ptr + rows, mask=inside, other=ignore_index)
    kept = target != ignore_index
    target_logit = tl.load(row_ptrs + target, mask=kept, other=0.0).to(tl.float32)

    # Each lane loads 8 neighbours at a time and keeps their maximum and the sum relative to it: a rescaling for every 8
    # exponentials, and nothing to exchange before the row's end.
    LANES: tl.constexpr = BLOCK_N // 8
    eight = tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :]
    highest = tl.full((BLOCK_M, LANES), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M, LANES), tl.float32)
    plain_sum = tl.zeros((BLOCK_M, LANES), tl.float32)
    for start in range(0, V, BLOCK_N):
        cols = (start + eight)[None, :, :]
        mask = inside[:, None, None] & (cols < STRIDE)
        x = tl.load(row_ptrs[:, None, None] + cols, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        x = tl.where(cols < V, x, float("-inf"))
        higher = tl.maximum(highest, tl.max(x, 2))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher[:, :, None]), 2)
        highest = higher
        if label_smoothing > 0:
            plain_sum += tl.sum(tl.where(cols < V, x, 0.0), 2)
    row_highest = tl.max(highest, 1)
    logsumexp = row_highest + tl.log(tl.sum(total * tl.exp(highest - row_highest[:, None]), 1))

    loss = logsumexp - (1 - label_smoothing) * target_logit + z_loss * logsumexp * logsumexp
    if label_smoothing > 0:
        loss -= label_smoothing / V * tl.sum(plain_sum, 1)
    tl.store(loss_ptr + rows, tl.where(kept, loss, 0.0), mask=inside)

    if NEEDS_GRADIENT:
        factor = tl.full((BLOCK_M,), unit, tl.float32)
        if HAS_UPSTREAM:
            factor *= tl.load(upstream_ptr + rows, mask=inside, other=0.0)
        softmax_factor = 1 + 2 * z_loss * logsumexp
        target_column = target.to(tl.int32)
        for start in range(0, V, BLOCK_N):  # the second reading: from L2, as long as the rows in flight fit there
            cols = start + columns
            ptrs = row_ptrs[:, None] + cols[None, :]
            mask = inside[:, None] & (cols < STRIDE)[None, :]
            x = tl.load(ptrs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
            x = tl.where((cols < V)[None, :], x, float("-inf"))
            softmax = tl.exp(x - logsumexp[:, None])
            hit = tl.where(cols[None, :] == target_column[:, None], 1 - label_smoothing, 0.0)
            dlogits = softmax_factor[:, None] * softmax - hit - label_smoothing / V
            # Chosen, not multiplied by 0: an ignored row may hold anything.
            tl.store(ptrs, tl.where(kept[:, None], factor[:, None] * dlogits, 0.0), mask=mask)
