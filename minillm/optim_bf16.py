"""AdamW for bf16 parameters that loses no updates: computed in fp32, stored by stochastic rounding.

A step moves 14 bytes a parameter (p, m, v, g read; p, m, v written), against 28 in fp32. On a GPU a parameter's step is
one kernel (`kernels/adamw.py`); its specification (`kernels/adamw_reference.py`) says what the rounding is for and runs
on a CPU. The noise is a hash of (seed, step, parameter, element): a resumed run rounds as the uninterrupted one does.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import kernels
from kernels import adamw_reference
from kernels.adamw_reference import MASK
from minillm.distributed import local, rank


def mix(x: int) -> int:
    """A 32-bit integer hash (the constants of C. Wellons' lowbias32), on Python integers."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW over bf16 parameters (stochastic rounding) and fp32 ones (plain); moments in the parameter's dtype.

    bf16 second moments are rounded to nearest, and a decay by 1 - beta2 below 1/512 to 1/256 would be rounded away, so
    beta2 may be at most 0.99, with a margin. Raises ValueError above. A step that `found_inf` skips is counted all the
    same, in the corrections of bias: the host does not know of it.
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
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            if group["betas"][1] > 0.99:
                raise ValueError(f"beta2={group['betas'][1]}: bf16 second moments would not decay; at most 0.99")
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
        place = rank() if isinstance(parameters[0], DTensor) else 0  # replicas round alike, parts each in its own way
        seed = mix((self.seed ^ (place << 16)) & MASK)
        seeds = [mix(mix(seed ^ self.state[p]["step"]) ^ i) for i, p in enumerate(parameters)]
        keys = iter(torch.tensor(seeds).to(device, non_blocking=True).unbind())
        fused = device.type == "cuda" and kernels.AVAILABLE
        run = kernels.adamw_stochastic if fused else adamw_reference.adamw_stochastic
        for group in self.param_groups:
            scalars = self.scalars(group).to(device, non_blocking=True)
            for p, key in zip(group["params"], keys, strict=False):
                if p.grad is not None:
                    state = self.state[p]
                    tensors = (p, p.grad, state["exp_avg"], state["exp_avg_sq"])
                    p_, grad, m, v = (local(tensor).view(-1) for tensor in tensors)
                    run(p_, grad, m, v, scalars, found_inf, key)
        return result

    def scalars(self, group: dict[str, Any]) -> Tensor:
        """What `adamw_stochastic` needs of a group, whose parameters have all taken the same number of steps."""
        t, (beta1, beta2) = self.state[group["params"][0]]["step"], group["betas"]
        values = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"], 1 - beta1**t, 1 - beta2**t)
        return torch.tensor(values, dtype=torch.float32)
