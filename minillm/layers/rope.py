"""Rotary positions by name: from the packed projection to rotated queries and keys (Su et al. 2021, RoFormer).

rope(qkv (B, T, (H + 2K) * D), cos, sin, num_heads=H, num_kv_heads=K) -> q (B, T, H, D), k, v (B, T, K, D)

Half-split layout, as Hugging Face's: element i turns with element i + D/2. cos and sin (T, D/2) are fp32, and so is the
rotation; q, k and v have qkv's dtype. Packed, because separate inputs would cost autograd a concatenation.
"""

from typing import Protocol

import torch
from torch import Tensor

import kernels


class Rope(Protocol):
    def __call__(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, *, num_heads: int, num_kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]: ...


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (x_i, x_{i + D/2}) by their position's angles. x (B, T, heads, D); computed in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]  # (T, 1, D/2): the same for every head
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def eager(qkv: Tensor, cos: Tensor, sin: Tensor, *, num_heads: int, num_kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Plain PyTorch; v is a view of qkv."""
    heads = qkv.unflatten(-1, (num_heads + 2 * num_kv_heads, -1))  # (B, T, H + 2K, D)
    q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=2)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def triton(
    qkv: Tensor, cos: Tensor, sin: Tensor, *, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ours: one kernel each way."""
    return kernels.rotary(qkv, cos, sin, num_heads=num_heads, num_kv_heads=num_kv_heads)


IMPLEMENTATIONS: dict[str, Rope] = {"eager": eager, "triton": triton}
