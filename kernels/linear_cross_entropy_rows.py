"""Cross-entropy of rows of logits, and its gradient in their place."""

import math

import torch
import triton
import triton.language as tl

LOWEST = tl.constexpr(torch.finfo(torch.float32).min)  # not -inf: its difference with itself is no number
LOG2E = tl.constexpr(math.log2(math.e))  # exponents are to base 2: exp2(a * LOG2E - b) is two instructions
LN2 = tl.constexpr(math.log(2))


@triton.jit
def add_exponentials(x, highest, total):
    """Take x (.., 8) into the largest of x * LOG2E so far and the sum of exp2(x * LOG2E - highest), each (..)."""
    higher = tl.maximum(highest, tl.max(x, 2) * LOG2E)
    total = total * tl.exp2(highest - higher) + tl.sum(tl.exp2(x * LOG2E - higher[:, :, None]), 2)
    return higher, total


@triton.jit
def write_gradient(ptrs, mask, exists, kept, logsumexp2, factor, shift):
    """Replace logits by factor * softmax - shift, and by 0 in rows that are not kept.

    exists: which of them are logits; None for all. The last four have a value a row, logsumexp2 = log2 sum exp(x).
    """
    x = tl.load(ptrs, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
    if exists is not None:
        x = tl.where(exists, x, float("-inf"))
    dlogits = factor[:, None] * tl.exp2(x * LOG2E - logsumexp2[:, None]) - shift[:, None]
    # Chosen, not multiplied by 0: an ignored row may hold anything.
    tl.store(ptrs, tl.where(kept[:, None], dlogits, 0.0), mask=mask)


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
    """loss (M,) of logits (M, V); with NEEDS_GRADIENT logits become unit * upstream * dloss/dlogits. A target outside
    [0, V) that is not ignore_index makes both nan.

    Rows are STRIDE long. What lies between V and STRIDE may be anything and is written over: with STRIDE a multiple of
    16 every access is of 16 bytes, whatever V. Both readings take whole blocks first, which need no masks of columns,
    then the rest: arithmetic counts here as memory does (with twice the instructions it took 8% longer at 128256).
    """
    WHOLE: tl.constexpr = V // BLOCK_N * BLOCK_N
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = rows < M
    columns = tl.arange(0, BLOCK_N)
    row_ptrs = logits_ptr + rows.to(tl.int64) * STRIDE  # int64: rows x STRIDE may pass 2^31
    target = tl.load(target_ptr + rows, mask=inside, other=ignore_index)
    kept = target != ignore_index
    exists_target = kept & (target >= 0) & (target < V)  # one that does not must touch no other row
    target_logit = tl.load(row_ptrs + target, mask=exists_target, other=float("nan")).to(tl.float32)

    # Each lane loads 8 neighbours at a time and keeps their maximum and the sum relative to it: a rescaling for every 8
    # exponentials, and nothing to exchange before the row's end.
    LANES: tl.constexpr = BLOCK_N // 8
    eight = (tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :])[None, :, :]
    eight_ptrs = row_ptrs[:, None, None] + eight
    highest = tl.full((BLOCK_M, LANES), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M, LANES), tl.float32)
    plain_sum = tl.zeros((BLOCK_M, LANES), tl.float32)
    for start in range(0, WHOLE, BLOCK_N):
        mask = inside[:, None, None]
        x = tl.load(eight_ptrs + start, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        highest, total = add_exponentials(x, highest, total)
        if label_smoothing > 0:
            plain_sum += tl.sum(x, 2)
    if WHOLE < V:
        exists = WHOLE + eight < V
        mask = inside[:, None, None] & (WHOLE + eight < STRIDE)
        x = tl.load(eight_ptrs + WHOLE, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        highest, total = add_exponentials(tl.where(exists, x, float("-inf")), highest, total)
        if label_smoothing > 0:
            plain_sum += tl.sum(tl.where(exists, x, 0.0), 2)
    row_highest = tl.max(highest, 1)
    logsumexp2 = row_highest + tl.log2(tl.sum(total * tl.exp2(highest - row_highest[:, None]), 1))
    logsumexp = logsumexp2 * LN2

    loss = logsumexp - (1 - label_smoothing) * target_logit + z_loss * logsumexp * logsumexp
    if label_smoothing > 0:
        loss -= label_smoothing / V * tl.sum(plain_sum, 1)
    tl.store(loss_ptr + rows, tl.where(kept, loss, 0.0), mask=inside)

    if NEEDS_GRADIENT:
        scale = tl.full((BLOCK_M,), unit, tl.float32)
        if HAS_UPSTREAM:
            scale *= tl.load(upstream_ptr + rows, mask=inside, other=0.0)
        factor = tl.where(exists_target, scale * (1 + 2 * z_loss * logsumexp), float("nan"))
        shift = scale * (label_smoothing / V)
        ptrs = row_ptrs[:, None] + columns[None, :]
        for start in range(0, WHOLE, BLOCK_N):  # the second reading: from L2, as long as the rows in flight fit there
            write_gradient(ptrs + start, inside[:, None], None, kept, logsumexp2, factor, shift)
        if WHOLE < V:
            mask = inside[:, None] & (WHOLE + columns < STRIDE)[None, :]
            write_gradient(ptrs + WHOLE, mask, (WHOLE + columns < V)[None, :], kept, logsumexp2, factor, shift)
        # The target's, in its place: to look for it at every column would cost as much as the exponential.
        tl.debug_barrier()  # another thread has written there
        softmax = tl.exp2(target_logit * LOG2E - logsumexp2)
        dtarget = factor * softmax - shift - scale * (1 - label_smoothing)
        tl.store(row_ptrs + target, dtarget, mask=exists_target)
