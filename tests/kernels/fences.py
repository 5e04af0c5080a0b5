"""Outputs with fences around them: a kernel that writes beside its own output is seen."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.norms import DEVICE

WIDTH, MARK = 1024, 7.0  # elements on each side, and what they hold


class Fences:
    """From here on `torch.empty` hands out memory between two fences."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fences: dict[int, tuple[Tensor, Tensor]] = {}  # by the address of what lies between
        monkeypatch.setattr(torch, "empty", self.empty)

    def empty(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: Any) -> Tensor:
        size = torch.Size(shape).numel()
        memory = torch.full((size + 2 * WIDTH,), MARK, dtype=dtype, device=DEVICE)
        inside = memory[WIDTH : WIDTH + size].view(shape)
        self.fences[inside.data_ptr()] = (memory[:WIDTH], memory[WIDTH + size :])
        return inside

    def intact_around(self, *outputs: Tensor) -> bool:
        """Every output lies between fences, and no fence was written to."""
        inside = all(output.data_ptr() in self.fences for output in outputs)
        return inside and all((fence == MARK).all() for pair in self.fences.values() for fence in pair)
