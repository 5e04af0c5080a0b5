"""A norm and the same norm slowed down: the truth that a comparison has to find.

PLANTED_US=30 python scripts/compare.py norm=tests.compare.planted:Plain,tests.compare.planted:Slowed

makes every forward pass of every norm 30 us longer (on a GPU: of its clock's cycles at 1.98 GHz).
"""

import os
import time

import torch
from torch import Tensor, nn

MICROSECONDS = float(os.environ.get("PLANTED_US", "0"))


class Plain(nn.Module):
    """fp32 inside."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Slowed(Plain):
    """The same, and a wait."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            torch.cuda._sleep(int(1980 * MICROSECONDS))
        else:
            end = time.perf_counter() + MICROSECONDS / 1e6
            while time.perf_counter() < end:
                pass
        return super().forward(x)


class Broken(Plain):
    """Fails in its tenth forward pass."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        if self.passes == 10:
            raise RuntimeError("planted\nin the middle")
        return super().forward(x)
