"""The worker's side of taking turns: train for some steps, say what they took, wait until told to go on."""

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from minillm.callbacks.throughput import Throughput
from minillm.compare.records import Losses, Ready, Window


class Turnkeeper(Protocol):
    """Who says when."""

    def report(self, record: Ready | Window) -> None:
        """Hand over what was measured."""

    def steps(self) -> int:
        """Block until it is our turn; how many steps it has. 0: no more."""


class Turns(Callback):
    """Reports `Ready` after the warm-up, then a `Window` a turn.

    The device is waited for at both ends of a window and never inside it: losses and sample ids stay where they are
    until it is over. `throughput` has the steps' times; it must not count the warm-up.
    """

    def __init__(
        self, keeper: Turnkeeper, throughput: Throughput, warmup_steps: int, ready: Callable[[Losses], Ready]
    ) -> None:
        self.keeper, self.throughput, self.ready = keeper, throughput, ready
        self.left = warmup_steps
        self.warm = False
        self.steps_before = 0
        self.counted_before = 0
        self.losses: list[Tensor] = []
        self.indices: list[Tensor] = []
        self.samples = hashlib.sha256()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(outputs["loss"])
        self.indices.append(batch["index"])
        self.left -= 1
        if self.left:
            return
        if self.throughput.gpu:
            torch.cuda.synchronize()
        trained = self.trained()
        self.keeper.report(self.window(trained) if self.warm else self.ready(trained))
        self.warm = True
        self.left = self.keeper.steps()
        if not self.left:
            trainer.should_stop = True

    def trained(self) -> Losses:
        """Of the steps since the last turn."""
        for index in self.indices:
            self.samples.update(index.cpu().numpy().tobytes())
        losses = torch.stack(self.losses).tolist()
        first_step = self.steps_before + 1
        self.steps_before += len(losses)
        self.losses, self.indices = [], []
        return Losses(first_step=first_step, losses=losses, samples=self.samples.hexdigest()[:16])

    def window(self, trained: Losses) -> Window:
        self.throughput.collect()
        steps = self.throughput.counted[self.counted_before :]
        self.counted_before += len(steps)
        return Window(
            step_ms=[step.ms for step in steps],
            wait_ms=[step.wait_ms for step in steps],
            tokens=sum(step.tokens for step in steps),
            memory=self.throughput.memory(),
            trained=trained,
        )
