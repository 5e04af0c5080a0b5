"""Which blocks an optimizer step sees: a pure function of the step, so that a resumed run goes on exactly."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler


class StepSampler(Sampler[list[int]]):
    """Yields one list of block numbers an optimizer step, for the steps `start_step` to `max_steps - 1` of a run.

    Step s belongs to epoch s // steps_per_epoch and takes its slice of that epoch's permutation, which is seeded by
    (seed, epoch). The last step of an epoch takes what is left, so that no batch mixes two epochs.

    With several ranks a step's slice is dealt out in turn, and an epoch leaves out the fewer than `world_size` blocks
    (others in each epoch) that would give the ranks unequal batches.
    """

    def __init__(
        self,
        num_blocks: int,
        batch_size: int,
        max_steps: int | None = None,
        *,
        start_step: int = 0,
        seed: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """
        Args:
            batch_size: blocks a step on each rank.
            max_steps: length of the run; None: one epoch.
            seed: None keeps the blocks' own order, as validation does.

        Raises:
            ValueError: fewer blocks than ranks.
        """
        if num_blocks < world_size:
            raise ValueError(f"{num_blocks} blocks cannot be shared out among {world_size} ranks")
        self.num_blocks, self.seed = num_blocks, seed
        self.rank, self.world_size = rank, world_size
        self.used_blocks = num_blocks - num_blocks % world_size  # in an epoch, by all ranks
        self.global_batch = batch_size * world_size
        self.steps_per_epoch = math.ceil(self.used_blocks / self.global_batch)
        self.start_step = start_step
        self.max_steps = self.steps_per_epoch if max_steps is None else max_steps

    def __len__(self) -> int:
        """Steps of the whole run, those before `start_step` included: Lightning goes on counting where it was."""
        return self.max_steps

    def __iter__(self) -> Iterator[list[int]]:
        epoch, order = -1, np.empty(0, dtype=np.int64)
        for step in range(self.start_step, self.max_steps):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                order = self._order(epoch)
            start = step % self.steps_per_epoch * self.global_batch
            yield order[start : start + self.global_batch][self.rank :: self.world_size].tolist()

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self.seed is None:
            return np.arange(self.used_blocks)
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_blocks)[: self.used_blocks]
