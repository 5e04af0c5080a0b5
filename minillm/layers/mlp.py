"""The MLP's second half by name: SwiGLU and the projection that follows it (Shazeer 2020).

swiglu_linear(gate_up (..., 2F), weight (d, F)) -> (silu(gate) * up) @ weight.T (..., d), gate first

The projection is part of it so that an implementation need not keep the activation (..., F) for backward.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

import kernels

SwigluLinear = Callable[[Tensor, Tensor], Tensor]


def eager(gate_up: Tensor, weight: Tensor) -> Tensor:
    """Plain PyTorch; keeps gate_up, silu(gate) and the activation."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, weight)


def triton(gate_up: Tensor, weight: Tensor) -> Tensor:
    """Ours: keeps gate_up alone. The product runs in gate_up's dtype, which is autocast's where that is on."""
    return kernels.swiglu_linear(gate_up, weight)


IMPLEMENTATIONS: dict[str, SwigluLinear] = {"eager": eager, "triton": triton}
