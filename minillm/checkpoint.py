"""Checkpoints: when they are written, and which are kept. What can be resumed from them is resume.py's to say."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from minillm import distributed
from minillm.config import Config
from minillm.distributed import local
from minillm.errors import UserError
from minillm.module import LlamaModule
from minillm.signals import Signals
from minillm.whole import link, whole_file


class Checkpoints(Callback):
    """Writes `step_<n>.ckpt` into `folder` and keeps the newest `checkpoint.keep`, also when a signal ends the run.

    `last.ckpt` is the newest, `best.ckpt` the one with the lowest validation loss: other names of the same files. Where
    a step is validated it is saved afterwards: a run that goes on from there has that validation's row, or makes it.
    `last.ckpt` gets its file after `best.ckpt`: a run that was killed between goes on from before and names both anew.
    """

    def __init__(self, folder: Path, config: Config, facts: dict[str, Any], signals: Signals) -> None:
        """facts: plain data that every checkpoint holds besides the training's state (see resume.Saved)."""
        self.folder, self.config, self.facts, self.signals = folder, config, facts, signals
        self.best_loss = float("inf")
        self.saved_step: int | None = None
        self.saved_at = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.signals.defer()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == trainer.max_steps:
            trainer.should_stop = True  # the last step: Lightning validates before it stops
        elif step % self.config.trainer.val_every_steps:
            self.end_step(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LlamaModule)
        loss = pl_module.validation_row()["val/loss"]
        if loss is not None and loss < self.best_loss:
            self.best_loss = loss
            self.save(trainer, "best.ckpt")
        self.end_step(trainer)

    def end_step(self, trainer: Trainer) -> None:
        """The step, and its validation where there is one, is over: save if that is due, stop if a signal has come."""
        step, config, last = trainer.global_step, self.config.checkpoint, trainer.global_step == trainer.max_steps
        overdue = config.every_minutes is not None and time.monotonic() - self.saved_at >= 60 * config.every_minutes
        signal, due = distributed.highest((self.signals.received or 0, overdue))  # of any rank, so that all act alike
        if signal:  # else leave it: one may have come meanwhile, which the others do not know of
            self.signals.received = int(signal)
        if step % config.every_steps == 0 or due or last or signal:
            self.save(trainer)
        if signal and not last:  # after the last step the run is finished
            self.signals.stop_if_received()

    def save(self, trainer: Trainer, *names: str) -> None:
        """Write this step's checkpoint, which gets these names and last.ckpt, unless it is there."""
        if self.saved_step == trainer.global_step:
            return
        self.check_weights(trainer)
        path = self.folder / f"step_{trainer.global_step:08d}.ckpt"
        trainer.save_checkpoint(path)  # all ranks take part, the first one writes
        self.saved_step, self.saved_at = trainer.global_step, time.monotonic()
        if trainer.is_global_zero:
            for name in (*names, "last.ckpt"):
                link(path, self.folder / name)
            self.remove_older(path)

    def check_weights(self, trainer: Trainer) -> None:
        """Raise UserError if a weight is no longer finite: an update can do that whose loss and gradient were. Before
        anything is written: what was saved before is still good."""
        parameters = [local(p.detach()) for p in trainer.lightning_module.parameters()]
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(parameters)])
        (lost,) = distributed.highest([not norms.isfinite().all().item()])
        if lost:
            raise UserError(
                f"the weights are no longer finite after step {trainer.global_step}, and were not saved; "
                f"{last_good(self.folder.parent)}; try a lower optim.lr or more optim.warmup_steps"
            )

    def remove_older(self, path: Path) -> None:
        """Keep `path`, which is whole, and the newest others. By age, not by step: a run that was resumed from an older
        checkpoint meets its own later ones."""
        others = sorted(
            (file for file in self.folder.glob("step_*.ckpt") if file != path),
            key=lambda file: (file.stat().st_mtime_ns, file.name),
            reverse=True,
        )
        for old in others[self.config.checkpoint.keep - 1 :]:
            old.unlink()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint.update(self.facts)

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_loss = state_dict["best_loss"]


class SyncedIO(TorchCheckpointIO):
    """Lightning's reading; the writing is whole or not at all, and on the disk when it returns."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with whole_file(Path(path), "wb") as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:  # torch's complaint about the bytes that are missing after a failed write
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from error
                raise


def last_good(folder: Path) -> str:
    """The newest checkpoint of the run in `folder`, as a clause for a message."""
    last = folder / "checkpoints" / "last.ckpt"
    return f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"
