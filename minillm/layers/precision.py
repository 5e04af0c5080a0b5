"""The dtype that a layer computes in."""

import torch
from torch import Tensor


def activation_dtype(x: Tensor) -> torch.dtype:
    """The dtype that this precision mode computes in: autocast's where it is on, else that of x."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
