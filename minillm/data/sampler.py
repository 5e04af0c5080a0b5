"""Which blocks an optimizer step sees: a pure function of the step, so that a resumed run goes on exactly."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from torch.utils.data import Sampler


class StepSampler(Sampler[list[int]]):
    """Yields one list of block numbers an optimizer step, for the steps `start_step` to `max_steps - 1` of a run.

    A run's order is one permutation of the blocks after another, each seeded by (seed, epoch), and step s takes the
    positions s G to (s + 1) G - 1 of it. So every step has G blocks, whatever the epoch's length, no block is left
    out, and the order does not depend on how many ranks share a step: they are dealt its blocks in turn.
    """

    def __init__(
        self,
        num_blocks: int,
        batch_size: int,
        max_steps: int,
        *,
        start_step: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """batch_size: blocks a step on each rank; G is `batch_size * world_size`."""
        self.num_blocks, self.seed = num_blocks, seed
        self.rank, self.world_size = rank, world_size
        self.global_batch = batch_size * world_size
        self.start_step, self.max_steps = start_step, max_steps

    def __len__(self) -> int:
        """Steps of the whole run, those before `start_step` included: Lightning goes on counting where it was."""
        return self.max_steps

    def __iter__(self) -> Iterator[list[int]]:
        blocks = self._blocks_from(self.start_step * self.global_batch)
        for _ in range(self.start_step, self.max_steps):
            yield list(islice(blocks, self.global_batch))[self.rank :: self.world_size]

    def _blocks_from(self, position: int) -> Iterator[int]:
        """The run's order from a position on, without end."""
        epoch, start = divmod(position, self.num_blocks)
        while True:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.num_blocks)
            yield from map(int, order[start:])
            epoch, start = epoch + 1, 0


class PassSampler(Sampler[list[int]]):
    """Yields all blocks once, in their own order, `batch_size` a batch on each rank; the last batch has the rest.

    Ranks take part in every batch, since a sharded model computes together: a rest that would leave one of them without
    a block goes to the batch before.
    """

    def __init__(self, num_blocks: int, batch_size: int, *, rank: int = 0, world_size: int = 1) -> None:
        """Raises ValueError for fewer blocks than ranks."""
        if num_blocks < world_size:
            raise ValueError(f"{num_blocks} blocks cannot be shared out among {world_size} ranks")
        self.num_blocks, self.global_batch = num_blocks, batch_size * world_size
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        whole, rest = divmod(self.num_blocks, self.global_batch)
        return max(1, whole + (rest >= self.world_size))

    def __iter__(self) -> Iterator[list[int]]:
        ends = [*range(self.global_batch, len(self) * self.global_batch, self.global_batch), self.num_blocks]
        for start, end in zip([0, *ends], ends, strict=False):
            yield list(range(start, end))[self.rank :: self.world_size]
