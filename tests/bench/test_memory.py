"""What a call takes beside its inputs and results, on an allocator that is made up."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from minillm.bench.roofs import extra_bytes


def test_a_result_that_is_a_view_of_an_input_is_not_taken_for_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """As eager's v is of the packed projection."""
    x = torch.zeros(100)
    held: Iterator[int] = iter([1000, 1000 + 400])  # before the call; after it, its one new result of 400 bytes
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(held))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1000 + 400 + 64)
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)

    def call(given: Tensor) -> tuple[Tensor, ...]:
        return given + 1, given[50:]

    assert extra_bytes(call, x, [x]) == (64, 0)
