"""AdamW for one parameter as one kernel, storing bf16 by stochastic rounding so that no update is lost.

Bytes a parameter: 14 in bf16 (p, m, v, g read; p, m, v written), 28 in fp32, and nothing else. Its specification in
plain PyTorch, and what the rounding is for, are in `adamw_reference.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import operator
from kernels.operator import Launch

BLOCK = 1024


@triton.jit
def adamw_stochastic_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, scalars_ptr, found_inf_ptr, key_ptr, numel, BLOCK: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # int64: a parameter may pass 2^31 elements
    inside = i < numel
    lr, beta1, beta2 = tl.load(scalars_ptr), tl.load(scalars_ptr + 1), tl.load(scalars_ptr + 2)
    eps, weight_decay = tl.load(scalars_ptr + 3), tl.load(scalars_ptr + 4)
    correction1, correction2 = tl.load(scalars_ptr + 5), tl.load(scalars_ptr + 6)
    if tl.load(found_inf_ptr) == 0:
        g = tl.load(g_ptr + i, inside).to(tl.float32)
        m = beta1 * tl.load(m_ptr + i, inside).to(tl.float32) + (1 - beta1) * g
        v = beta2 * tl.load(v_ptr + i, inside).to(tl.float32) + (1 - beta2) * g * g
        step = m / correction1 / (tl.sqrt(v / correction2) + eps)
        p = tl.load(p_ptr + i, inside).to(tl.float32) * (1 - lr * weight_decay) - lr * step
        if p_ptr.dtype.element_ty == tl.bfloat16:
            x = i.to(tl.uint32) ^ tl.load(key_ptr).to(tl.uint32)  # the noise: a hash of element and key
            x = (x ^ (x >> 16)) * 0x7FEB352D
            x = (x ^ (x >> 15)) * 0x846CA68B
            bits = (p.to(tl.uint32, bitcast=True) + (x >> 16)) & 0xFFFF0000
            # nan is 0x7fffffff on these devices: it would carry into the sign and become -0
            p = tl.where(p == p, bits.to(tl.float32, bitcast=True), p)
        tl.store(p_ptr + i, p.to(p_ptr.dtype.element_ty), inside)
        tl.store(m_ptr + i, m.to(m_ptr.dtype.element_ty), inside)
        tl.store(v_ptr + i, v.to(v_ptr.dtype.element_ty), inside)


@operator.remembered
def step_launch(device: torch.device, numel: int) -> Launch:
    grid = (triton.cdiv(numel, BLOCK),)
    return Launch(adamw_stochastic_kernel, grid, device, numel, BLOCK=BLOCK, num_warps=4)


def adamw_stochastic(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, scalars: Tensor, found_inf: Tensor, key: Tensor
) -> None:
    """One AdamW step of a parameter, in place (Loshchilov & Hutter 2019, algorithm 2).

    p, g, m, v: flat, contiguous, of one dtype (bf16 or fp32), on one CUDA device. scalars (7,) fp32: lr, beta1, beta2,
    eps, weight decay, 1 - beta1^t, 1 - beta2^t. found_inf () fp32: not zero changes nothing. key (): int64 below 2^32,
    the noise's. Raises TypeError for other dtypes, ValueError for other shapes or devices.
    """
    operator.check_tensors("adamw_stochastic", p=p, g=g, m=m, v=v, scalars=scalars, found_inf=found_inf)
    if p.dtype == torch.float16 or not p.dtype == g.dtype == m.dtype == v.dtype:
        dtypes = f"p {p.dtype}, g {g.dtype}, m {m.dtype}, v {v.dtype}"
        raise TypeError(f"adamw_stochastic: {dtypes}; all must be bfloat16, or all float32")
    if not all(t.shape == (p.numel(),) and t.is_contiguous() for t in (p, g, m, v)):
        raise ValueError("adamw_stochastic: p, g, m and v must be flat, contiguous and of one size")
    if scalars.dtype != torch.float32 or found_inf.dtype != torch.float32 or key.dtype != torch.int64:
        dtypes = f"scalars {scalars.dtype}, found_inf {found_inf.dtype}, key {key.dtype}"
        raise TypeError(f"adamw_stochastic: {dtypes}; they must be float32, float32 and int64")
    if scalars.shape != (7,) or not scalars.is_contiguous() or found_inf.numel() != 1 or key.numel() != 1:
        raise ValueError("adamw_stochastic: scalars must be (7,) and contiguous, found_inf and key a number each")
    if key.device != p.device:
        raise ValueError(f"adamw_stochastic: p on {p.device}, but key on {key.device}")
    operator.launch(step_launch(p.device, p.numel()), p, g, m, v, scalars, found_inf, key)
    torch.autograd.graph.increment_version((p, m, v))  # backward through a graph that has kept one is then refused
