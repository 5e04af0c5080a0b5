"""AdamW for bf16 parameters that loses no updates: computed in fp32, stored by stochastic rounding.

A bf16 number has 8 significant bits: an update below 1/512 of a weight disappears when it is rounded to nearest.
Rounded up with the probability that is its distance from below, the *expected* weight is the fp32 one (Gupta et al.
2015), at no bytes more: a step moves 14 bytes a parameter (p, m, v, g read; p, m, v written), against 28 in fp32.

The noise is a hash of (seed, step, parameter, element), not a generator's state: a resumed run rounds as the
uninterrupted one does, with nothing to save. On a GPU a parameter's step is one Triton kernel (`kernels/adamw.py`);
`update` is its specification and runs on a CPU.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import kernels

MASK = 0xFFFFFFFF


def mix(x: int) -> int:
    """A 32-bit integer hash (the constants of C. Wellons' lowbias32), on Python integers."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


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


def update(p: Tensor, g: Tensor, m: Tensor, v: Tensor, scalars: Tensor, found_inf: Tensor, key: Tensor) -> None:
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


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW over bf16 parameters (stochastic rounding) and fp32 ones (plain); moments in the parameter's dtype.

    bf16 second moments are rounded to nearest, so beta2 may be at most 0.99: a decay by 1 - beta2 below 1/512 would be
    rounded away. Raises ValueError above.
    """

    # GradScaler's protocol for fused optimizers: `found_inf` is read, and the step skipped, on the device.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        if betas[1] > 0.99:
            raise ValueError(f"beta2={betas[1]}: bf16 second moments cannot decay; at most 0.99")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.seed = seed

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        parameters = [p for group in self.param_groups for p in group["params"]]
        device = parameters[0].device
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None:
            found_inf = torch.zeros((), device=device)
        for p in parameters:
            if not self.state[p]:
                self.state[p].update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            self.state[p]["step"] += 1
        # One copy to the device for all keys, one a group for its numbers.
        seeds = [mix(mix(mix(self.seed & MASK) ^ self.state[p]["step"]) ^ i) for i, p in enumerate(parameters)]
        keys = iter(torch.tensor(seeds).to(device, non_blocking=True).unbind())
        run = kernels.adamw_stochastic if device.type == "cuda" and kernels.AVAILABLE else update
        for group in self.param_groups:
            scalars = self.scalars(group).to(device, non_blocking=True)
            for p, key in zip(group["params"], keys, strict=False):
                if p.grad is not None:
                    m, v = self.state[p]["exp_avg"], self.state[p]["exp_avg_sq"]
                    run(p.view(-1), p.grad.view(-1), m.view(-1), v.view(-1), scalars, found_inf, key)
        return result

    def scalars(self, group: dict[str, Any]) -> Tensor:
        """What `update` needs of a group, whose parameters have all taken the same number of steps."""
        t, (beta1, beta2) = self.state[group["params"][0]]["step"], group["betas"]
        values = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"], 1 - beta1**t, 1 - beta2**t)
        return torch.tensor(values, dtype=torch.float32)
