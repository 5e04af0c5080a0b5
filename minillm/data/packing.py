"""Blocks: a stream of tokens cut into pieces of one length, so that every token is a target exactly once.

With T = 4 and E the end token, which also stands before the first document:

    stream   E a b c E d e f g h E
    block 0  E a b c E                inputs E a b c, targets a b c E
    block 1          E d e f g        stride T: the last target is the next block's first input
    rest                      (h E)   fewer than T targets: counted and left out
"""

import sys
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

Tokens = npt.NDArray[np.unsignedinteger]


class Batch(TypedDict):
    """Inputs are `tokens[:, :-1]`, targets `tokens[:, 1:]`."""

    tokens: torch.Tensor  # (n, T + 1) int64
    index: torch.Tensor  # (n,) int64: the blocks' numbers


class Blocks(Dataset[Batch]):
    """The blocks of a stream of tokens, read by list of numbers: `blocks[[4, 0, 7]]` is a batch of three."""

    def __init__(self, chunks: Sequence[Tokens], sequence_length: int, limit: int | None = None) -> None:
        """
        Args:
            chunks: the stream in pieces of any length, (n,) each; memory-mapped arrays are read where they lie.
            sequence_length: T, the targets of a block.
            limit: blocks that there are at most, the first ones.
        """
        self.sequence_length, self.limit = sequence_length, limit
        self.chunks = [chunk for chunk in chunks if chunk.size]
        self.ends = np.cumsum([chunk.size for chunk in self.chunks], dtype=np.int64)

    @property
    def num_targets(self) -> int:
        """Every token but the stream's first, which nothing precedes."""
        return max(0, int(self.ends[-1]) - 1) if self.chunks else 0

    @property
    def remainder(self) -> int:
        """Targets after the last whole block, which are left out."""
        return self.num_targets % self.sequence_length

    def __len__(self) -> int:
        return min(self.num_targets // self.sequence_length, self.limit or sys.maxsize)

    def __getitem__(self, numbers: Sequence[int]) -> Batch:
        tokens = np.empty((len(numbers), self.sequence_length + 1), dtype=np.int64)
        for row, number in zip(tokens, numbers, strict=True):
            if not 0 <= number < len(self):
                raise IndexError(f"block {number} of {len(self)}")
            self._read(number * self.sequence_length, row)
        return {"tokens": torch.from_numpy(tokens), "index": torch.tensor(numbers, dtype=torch.int64)}

    def targets(self, count: int) -> npt.NDArray[np.int64]:
        """Of the first `count` blocks, (count * T,), in the stream's order."""
        tokens = np.empty(count * self.sequence_length, dtype=np.int64)
        if count:
            self._read(1, tokens)
        return tokens

    def _read(self, start: int, row: npt.NDArray[np.int64]) -> None:
        """Fill `row` with the stream from `start` on; it may reach over several chunks."""
        which = int(np.searchsorted(self.ends, start, side="right"))
        offset = start - int(self.ends[which]) + self.chunks[which].size
        filled = 0
        while filled < row.size:
            piece = self.chunks[which][offset : offset + row.size - filled]
            row[filled : filled + piece.size] = piece
            filled += piece.size
            which, offset = which + 1, 0
