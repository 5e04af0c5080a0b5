"""Norms with one fault each, and one without: what the checks have to tell apart."""

from typing import Any

import torch
from torch import Tensor, nn

from kernels.reference import rms_norm


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def right(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, weight, eps=eps)


def weight_gradient_1_percent_off(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, Scaled.apply(weight, 1.01), eps=eps)


def zero_x_gradient(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(Scaled.apply(x, 0.0), weight, eps=eps)


def result_1_percent_off(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = rms_norm(x, weight, eps=eps)
    return y + 0.01 * y.detach()


def one_element_off(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    fault = torch.zeros_like(x)
    fault[-1:, -1:] = 0.1
    return rms_norm(x, weight, eps=eps) + fault


def ignores_strides(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = x.as_strided(x.shape, (x.shape[-1], 1))
    return rms_norm(x + (rows - x).detach(), weight, eps=eps)


def overwrites_x(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = rms_norm(x, weight, eps=eps)
    x.data.mul_(2.0)
    return y


class RoundedTerms(torch.autograd.Function):
    """RMSNorm in float64, but for 8 fp32 roundings in the first of the two terms of dX."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return rms_norm(x.double(), weight.double(), eps=eps).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = (t.double() for t in ctx.saved_tensors)
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
        x_hat, dx_hat = x * rstd, dy * weight
        dx = rstd * (dx_hat * (1 + 8 * 2**-24) - x_hat * (dx_hat * x_hat).mean(-1, keepdim=True))
        return dx.to(dy.dtype), (dy * x_hat).sum(0).to(dy.dtype), None


def rounded_terms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return RoundedTerms.apply(x, weight, eps)


class RightClass(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps)
