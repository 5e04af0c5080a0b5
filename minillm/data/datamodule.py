"""The corpus as Lightning's data loaders: one batch is one optimizer step."""

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader

from minillm.config import BatchConfig
from minillm.data.corpus import Corpus
from minillm.data.packing import Batch, Blocks
from minillm.data.sampler import PassSampler, StepSampler
from minillm.signals import leave_to_owner


class BlocksDataModule(LightningDataModule):
    """Batches `{"tokens": (n, T + 1), "index": (n,)}`, int64.

    A training batch is a whole optimizer step of this rank: n = batch.micro * batch.accumulate.
    Lightning's "epoch" is the whole run: the loader's length is `max_steps`, its iteration starts at `start_step`,
    which may be set until the loader is asked for. A validation batch has batch.micro blocks, the last one the rest, in
    fixed order.

    The sampler deals out to the ranks itself: the Trainer needs `use_distributed_sampler=False`.
    """

    def __init__(
        self,
        corpus: Corpus,
        batch: BatchConfig,
        *,
        max_steps: int,
        seed: int,
        start_step: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__()
        self.corpus, self.batch = corpus, batch
        self.max_steps, self.seed, self.start_step = max_steps, seed, start_step
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.rank, self.world_size = rank, world_size

    def train_dataloader(self) -> DataLoader[Batch]:
        sampler = StepSampler(
            len(self.corpus.train),
            self.batch.micro * self.batch.accumulate,
            self.max_steps,
            start_step=self.start_step,
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
        )
        return self._loader(self.corpus.train, sampler)

    def val_dataloader(self) -> DataLoader[Batch]:
        blocks = self.corpus.val
        sampler = PassSampler(len(blocks), self.batch.micro, rank=self.rank, world_size=self.world_size)
        return self._loader(blocks, sampler)

    def _loader(self, blocks: Blocks, sampler: StepSampler | PassSampler) -> DataLoader[Batch]:
        return DataLoader(
            blocks,
            sampler=sampler,
            batch_size=None,  # the sampler gives lists and the blocks give batches: nothing is left to collate
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            worker_init_fn=leave_to_owner,
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # its own: otherwise each pass draws from the global one
        )
