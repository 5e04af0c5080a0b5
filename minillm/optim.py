"""AdamW, its parameter groups, gradient clipping and the learning-rate schedule."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from minillm.config import OptimConfig
from minillm.distributed import add_up, local
from minillm.optim_bf16 import StochasticAdamW


def lr_factor(step: int, max_steps: int, config: OptimConfig) -> float:
    """Learning rate of optimizer step `step` (0-based, of `max_steps`) as a part of the top one: in [0, 1].

    A pure function of the step, so nothing about it needs to be saved. With W warm-up steps:
    - step i < W: (i + 1) / W, so the first step already learns and step W - 1 is at the top (W = 0: no warm-up);
    - cosine (Loshchilov & Hutter 2017): from there half a cosine down to `min_lr_ratio`, reached in the last step;
    - wsd (warm-up, stable, decay; Hu et al. 2024): 1, then over the last `decay_fraction` of the steps a straight line
      down to `min_lr_ratio`, reached in the last step;
    - constant: 1.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    decay_steps = max_steps - config.warmup_steps
    if config.schedule == "wsd":
        decay_steps = min(decay_steps, round(config.decay_fraction * max_steps))
    done = step + 1 - (max_steps - decay_steps)  # decay steps taken, this one included
    if done <= 0:
        return 1.0
    part = min(done / decay_steps, 1.0)
    height = (1 + math.cos(math.pi * part)) / 2 if config.schedule == "cosine" else 1 - part
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * height


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices decay, the embedding and the output projection among them; vectors (the norms' weights) do not.

    A tied matrix is one parameter and appears once.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimConfig, seed: int) -> torch.optim.Optimizer:
    """PyTorch's fused AdamW; where there are bf16 parameters, ours, which rounds them stochastically.

    `seed` determines that rounding, with the step, and nothing else.
    """
    groups = parameter_groups(model, config.weight_decay)
    betas = (config.beta1, config.beta2)
    if any(p.dtype == torch.bfloat16 for p in model.parameters()):
        return StochasticAdamW(groups, lr=config.lr, betas=betas, eps=config.eps, seed=seed)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True)


def set_hyperparameters(optimizer: torch.optim.Optimizer, config: OptimConfig) -> None:
    """Those of `config`, in place of those that a checkpoint brought along with the optimizer's state."""
    for group in optimizer.param_groups:
        decays = any(p.ndim >= 2 for p in group["params"])
        group["weight_decay"] = config.weight_decay if decays else 0.0
        group["betas"], group["eps"] = (config.beta1, config.beta2), config.eps


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients so that their global L2 norm is at most `max_norm`; None only measures.

    Sharded gradients count with the other ranks' parts. Returns the norm before clipping, an fp32 scalar on the
    gradients' device: the host waits for nothing.
    """
    by_dtype: dict[torch.dtype, list[Tensor]] = {}  # one fused launch needs one dtype
    sharded = False
    for p in parameters:
        if p.grad is not None:
            by_dtype.setdefault(p.grad.dtype, []).append(local(p.grad))
            sharded |= isinstance(p.grad, DTensor)
    # fp32 whatever the gradients' dtype: a bf16 norm has 3 digits.
    norms = [n for grads in by_dtype.values() for n in torch._foreach_norm(grads, 2.0, dtype=torch.float32)]
    if not norms:
        raise ValueError("no parameter has a gradient: there is nothing to clip")
    norm = torch.linalg.vector_norm(torch.stack(norms))
    if sharded:
        norm = add_up(norm.square()).sqrt()
    if max_norm is not None:
        for grads in by_dtype.values():
            torch._foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def skip_unless_finite(optimizer: torch.optim.Optimizer, grad_norm: Tensor) -> None:
    """Make the next `step()` leave weights and moments alone where `grad_norm` is not finite, decided on the device.

    `found_inf` is how `GradScaler` tells fused optimizers to skip a step; it stays in place until the next call.
    """
    optimizer.found_inf = (~torch.isfinite(grad_norm)).float()  # type: ignore[attr-defined]
