"""What is logged and when; and the stop when the numbers are no longer numbers."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from minillm import distributed
from minillm.callbacks.throughput import Throughput
from minillm.errors import OtherRankError, UserError
from minillm.module import LlamaModule

# Lower loss scales that a GradScaler may still try: 2^16 / 2^24 is far below what any healthy run needs.
SCALER_PATIENCE = 24


@dataclass(frozen=True)
class Readout:
    """A step's loss and gradient norm on their way from the device to the host."""

    step: int
    values: Tensor  # (3,) fp32: loss, gradient norm, this rank's part of the loss
    index: Tensor  # (n,) the step's sample ids
    arrived: torch.cuda.Event | None
    row: dict[str, Any] | None  # what else is logged of this step; None: nothing is logged

    def ready(self) -> bool:
        return self.arrived is None or self.arrived.query()


def read_out(step: int, values: Tensor, index: Tensor, row: dict[str, Any] | None) -> Readout:
    if not values.is_cuda:
        return Readout(step, values, index, None, row)
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return Readout(step, host, index, event, row)


class Metrics(Callback):
    """Logs a row every `every` steps and after each validation, and stops a run whose loss or gradients are not finite.

    Numbers are read when the device has passed them, a few steps late, so the host never waits; rows keep their own
    step. The late look is safe: a step whose gradient norm is not finite changed no weight (`skip_unless_finite`).
    """

    def __init__(self, throughput: Throughput, every: int, last_checkpoint: Callable[[], str]) -> None:
        """last_checkpoint() names the last good one, for the message."""
        self.throughput, self.every, self.last_checkpoint = throughput, every, last_checkpoint
        self.pending: deque[Readout] = deque()
        self.latest: dict[str, Any] = {}  # for the progress bar and the summary
        self.skipped_in_a_row = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LlamaModule)
        step = trainer.global_step
        logged = step % self.every == 0 or step == trainer.max_steps
        row = {"train/lr": outputs["lr"], "tokens": pl_module.tokens, **self.throughput.row()} if logged else None
        values = torch.stack((outputs["loss"], outputs["grad_norm"], outputs["own_loss"]))
        self.pending.append(read_out(step, values, batch["index"], row))
        self.poll(trainer, wait=step == trainer.max_steps)

    def poll(self, trainer: Trainer, wait: bool = False) -> None:
        """Log the readouts that have arrived; with `wait` all of them."""
        while self.pending and (wait or self.pending[0].ready()):
            readout = self.pending.popleft()
            if readout.arrived is not None:
                readout.arrived.synchronize()
            loss, grad_norm, own_loss = readout.values.tolist()
            self.check(trainer, readout, loss, grad_norm, own_loss)
            self.latest["train/loss"] = loss
            if readout.row is not None:
                self.emit(trainer, {"train/loss": loss, "train/grad_norm": grad_norm, **readout.row}, readout.step)

    def check(self, trainer: Trainer, readout: Readout, loss: float, grad_norm: float, own_loss: float) -> None:
        """Raise UserError if the step's numbers are not finite; OtherRankError if it was not this rank's part.

        fp16 gradients may overflow: the scaler skips the step and lowers the scale. That fails only if it never ends.
        """
        self.skipped_in_a_row = 0 if math.isfinite(grad_norm) else self.skipped_in_a_row + 1
        patience = SCALER_PATIENCE if getattr(trainer.precision_plugin, "scaler", None) else 0
        if math.isfinite(loss) and self.skipped_in_a_row <= patience:
            return
        elsewhere = math.isfinite(own_loss) and not math.isfinite(loss)
        samples = "another rank's samples" if elsewhere else f"samples {readout.index.tolist()}"
        if math.isfinite(loss) and distributed.world_size() > 1:  # only the mean of the ranks' gradients is known
            samples += " or another rank's"
        raise (OtherRankError if elsewhere else UserError)(
            f"the training went wrong at step {readout.step}: loss {loss}, gradient norm {grad_norm} ({samples}); the "
            f"weights were not updated with it; {self.last_checkpoint()}; "
            "try a lower optim.lr, more optim.warmup_steps or optim.clip_norm=1.0"
        )

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.poll(trainer, wait=True)  # rows are logged in the order of their steps

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LlamaModule)
        row = pl_module.validation_row()
        self.emit(trainer, row, trainer.global_step)
        loss = row["val/loss"]
        if loss is not None and not math.isfinite(loss):
            raise UserError(
                f"the validation loss after step {trainer.global_step} is {loss}; {self.last_checkpoint()}; "
                "try a lower optim.lr or more optim.warmup_steps"
            )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.poll(trainer, wait=True)  # nothing is saved of steps that were not looked at

    def emit(self, trainer: Trainer, row: dict[str, Any], step: int) -> None:
        self.latest |= row
        for logger in trainer.loggers:
            logger.log_metrics(row, step)
