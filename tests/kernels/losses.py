"""What the tests of linear_cross_entropy share: inputs, and one check of losses and gradients against float64."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import linear_cross_entropy, reference
from kernels.operator import as_rows
from tests.accuracy import assert_accurate
from tests.kernels.norms import DEVICE, FP32, draw, leaf

Inputs = tuple[Tensor, Tensor, Tensor]


def draw_inputs(
    tokens: int | tuple[int, ...] = 30,
    vocabulary: int = 100,
    hidden_size: int = 16,
    dtype: torch.dtype = FP32,
    weight_dtype: torch.dtype | None = None,
) -> Inputs:
    """hidden, weight, target; the logits are about normally distributed."""
    shape = (tokens,) if isinstance(tokens, int) else tokens
    weight = leaf((draw(vocabulary, hidden_size) * hidden_size**-0.5).to(weight_dtype or dtype))
    return draw(*shape, hidden_size, dtype=dtype), weight, torch.randint(vocabulary, shape, device=DEVICE)


def in_pytorch(hidden: Tensor, weight: Tensor, target: Tensor, z_loss: float = 0.0, **settings: Any) -> Tensor:
    """Losses (tokens,) from PyTorch's own parts: logits in hidden's dtype, the rest in fp32."""
    logits, targets = F.linear(as_rows(hidden), weight.to(hidden.dtype)).float(), target.flatten()
    kept = targets != settings.get("ignore_index", -100)
    losses = F.cross_entropy(logits, targets, reduction="none", **settings)
    return losses + (z_loss * logits.logsumexp(-1).square()).where(kept, 0.0)


def gradients(loss: Callable[..., Tensor], inputs: Inputs, upstream: Tensor) -> tuple[Tensor, ...]:
    """(losses, dhidden, dweight) of loss(hidden, weight, target)."""
    hidden, weight, target = leaf(inputs[0]), leaf(inputs[1]), inputs[2]
    found = loss(hidden, weight, target)
    return found.detach(), *torch.autograd.grad(found, (hidden, weight), upstream.to(found.dtype).view_as(found))


def check_loss(*inputs: Tensor, upstream: Tensor | None = None, reduction: str = "mean", **settings: Any) -> None:
    """Losses and gradients are accurate and have the right dtypes. upstream: of the loss; drawn unless given."""
    hidden, weight, target = inputs
    kept = target != settings.get("ignore_index", -100)
    shape = target.shape if reduction == "none" else ()
    upstream = torch.rand(shape, device=DEVICE) + 0.5 if upstream is None else upstream
    loss, *found = gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction, **settings), inputs, upstream)
    assert [t.dtype for t in (loss, *found)] == [FP32, hidden.dtype, weight.dtype]

    losses = linear_cross_entropy(*inputs, reduction="none", **settings).detach()
    total = losses.double().sum() / (kept.sum() if reduction == "mean" else 1)
    torch.testing.assert_close(loss.double(), losses.double() if reduction == "none" else total, rtol=1e-6, atol=1e-6)

    per_token = (upstream / kept.sum() if reduction == "mean" else upstream).expand(target.shape).double()
    wide = hidden.detach().double(), weight.detach().double(), target
    exact = gradients(lambda *t: reference.linear_cross_entropy(*t, reduction="none", **settings), wide, per_token)
    best = gradients(lambda *t: in_pytorch(*t, **settings).view_as(target), inputs, per_token)

    logits = as_rows(wide[0]) @ wide[1].T
    lse, targets = logits.logsumexp(-1, keepdim=True), target.where(kept, 0).flatten()
    dlogits = (1 + 2 * settings.get("z_loss", 0.0) * lse.abs()) * logits.softmax(-1) + F.one_hot(targets, len(weight))
    dlogits *= (kept * per_token.abs()).flatten()[:, None]  # the size of what is added up, whatever its sign
    terms_hidden = (dlogits @ wide[1].abs()).view_as(hidden)
    terms_weight = dlogits.T @ as_rows(wide[0]).abs()
    assert_accurate("losses", losses, exact[0], best[0], logits.abs().amax(-1).view_as(target))
    assert_accurate("dhidden", found[0], exact[1], best[1], terms_hidden)
    assert_accurate("dweight", found[1], exact[2], best[2], terms_weight)
