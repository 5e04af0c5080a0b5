"""`adamw_stochastic` in plain PyTorch: the specification of the kernel in `adamw.py`, and what runs without a GPU.

A bf16 number has 8 significant bits: an update below 1/512 of a weight disappears when it is rounded to nearest.
Rounded up with the probability that is its distance from below, the *expected* weight is the fp32 one (Gupta et al.
2015). The noise is a hash of a key and the element's number, not a generator's state: nothing has to be saved.
"""

import torch
from torch import Tensor

MASK = 0xFFFFFFFF


def noise(numel: int, key: Tensor) -> Tensor:
    """`numel` int32 uniform in [0, 2^16): upper half of the hash of element number and `key` (0-d int64 < 2^32)."""
    x = (torch.arange(numel, device=key.device, dtype=torch.int64) & MASK) ^ key
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK  # int64 products keep their low 32 bits, which is all that counts
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return (x >> 16).to(torch.int32)


def round_stochastically(x: Tensor, key: Tensor) -> Tensor:
    """fp32 x, flat -> bf16, up or down with the probability that makes the mean exact; infinities and nan stay.

    A bf16 is the upper half of an fp32: adding 16 random bits to the lower half and cutting it off carries into the
    upper half as often as the lower half is large.
    """
    bits = x.view(torch.int32) + noise(x.numel(), key)
    rounded = (bits & -65536).view(torch.float32)  # -65536: the upper 16 bits
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)


def adamw_stochastic(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, scalars: Tensor, found_inf: Tensor, key: Tensor
) -> None:
    """One AdamW step (Loshchilov & Hutter 2019, algorithm 2) of one flat parameter, in place.

    p bf16 or fp32; g, m, v in p's dtype, the moments rounded to nearest. scalars (7,) fp32: lr, beta1, beta2, eps,
    weight decay, 1 - beta1^t, 1 - beta2^t. found_inf (): not zero changes nothing. key (): int64 below 2^32.
    """
    lr, beta1, beta2, eps, weight_decay, correction1, correction2 = scalars.unbind()
    skip = found_inf != 0
    g32, m32, v32, p32 = g.float(), m.float(), v.float(), p.float()
    m_new = beta1 * m32 + (1 - beta1) * g32
    v_new = beta2 * v32 + (1 - beta2) * g32 * g32
    step = m_new / correction1 / ((v_new / correction2).sqrt() + eps)
    p_new = p32 * (1 - lr * weight_decay) - lr * step
    stored = round_stochastically(p_new, key) if p.dtype == torch.bfloat16 else p_new
    p.copy_(torch.where(skip, p, stored))
    m.copy_(torch.where(skip, m, m_new.to(m.dtype)))
    v.copy_(torch.where(skip, v, v_new.to(v.dtype)))
