"""The loss: from the last hidden state, through the vocabulary projection, to a sum over tokens."""

import torch
import torch.nn.functional as F


def eager(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy over full logits.

    hidden (B, T, d), weight (V, d), targets (B, T) int64 -> the sum over tokens, a scalar in fp32 (nats). A sum, so
    that the caller can divide by the tokens of a whole optimizer step: micro-batches then need not be of equal size.
    """
    logits = F.linear(hidden, weight)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
