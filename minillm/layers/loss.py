"""The loss by name: from the last hidden state, through the vocabulary projection, to a sum over tokens.

loss(hidden (B, T, d), weight (V, d), targets (B, T) int64) -> the sum of the tokens' cross-entropy, fp32, in nats

A sum, so that the caller can divide by the tokens of a whole optimizer step: micro-batches then need not be of equal
size. The projection runs in the activations' dtype (autocast's where it is on), whatever the weight's.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from minillm.config import LossConfig
from minillm.errors import UserError
from minillm.layers.precision import activation_dtype

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def eager(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Full logits, then F.cross_entropy."""
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def torch_chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """PyTorch's own, the logits by chunks of tokens.

    It returns its loss in the activations' dtype, where a sum over thousands of tokens keeps 8 bits (bf16) or overflows
    (fp16). So each token's loss is asked for and summed here in fp32, at the price of computing the logits again in
    backward.
    """
    dtype = activation_dtype(hidden)
    losses = F.linear_cross_entropy(
        hidden.flatten(0, 1).to(dtype),
        weight.to(dtype),
        targets.flatten(),
        reduction="none",
        options=nn.LinearCrossEntropyOptions(),
    )
    return losses.sum(dtype=torch.float32)


def triton(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Ours: never holds all logits, sums both gradients in fp32."""
    return kernels.linear_cross_entropy(hidden.to(activation_dtype(hidden)), weight, targets, reduction="sum")


IMPLEMENTATIONS: dict[str, Loss] = {"eager": eager, "torch": torch_chunked, "triton": triton}


def build_loss(config: LossConfig) -> Loss:
    """The loss of that name. Raises UserError where this PyTorch has none."""
    if config.name == "torch" and not hasattr(nn, "LinearCrossEntropyOptions"):
        raise UserError(
            f"loss=torch needs PyTorch's chunked F.linear_cross_entropy, which torch {torch.__version__} does not have "
            "(2.13 does): use loss=triton or loss=eager"
        )
    return IMPLEMENTATIONS[config.name]
