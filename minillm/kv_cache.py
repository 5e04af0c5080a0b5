"""What attention has seen: keys and values of earlier positions, which a new token then need not compute again."""

import torch
from torch import Tensor


class KVCache:
    """Keys and values of one layer, (B, K, length, D) each, in memory for `capacity` positions taken at the first."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.keys = self.values = torch.empty(0)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next positions (B, K, T, D), rotated already. Returns all so far, as views.

        Raises ValueError for more than one position after the first call (a causal mask would be needed), or than fit.
        """
        start, end = self.length, self.length + keys.shape[2]
        if end > self.capacity or (start and end > start + 1):
            raise ValueError(
                f"{end - start} positions after {start} in a cache of {self.capacity}: give one, within it"
            )
        if not start:
            self.keys, self.values = (x.new_empty(*x.shape[:2], self.capacity, x.shape[3]) for x in (keys, values))
        self.keys[:, :, start:end], self.values[:, :, start:end] = keys, values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
