"""Checkpoints: when they are written, which are kept, and what can be resumed from one."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from minillm.config import CheckpointConfig, Config
from minillm.errors import UserError
from minillm.module import LlamaModule


class Checkpoints(Callback):
    """Writes `step_<n>.ckpt` into `folder` and keeps the newest `keep`.

    `last.ckpt` is the newest, `best.ckpt` the one with the lowest validation loss. Both are hard links: no bytes of
    their own, whole after the other name has gone.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder, self.config = folder, config
        self.best_loss = float("inf")
        self.saved_step: int | None = None
        self.saved_at = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step, minutes = trainer.global_step, self.config.every_minutes
        if step == trainer.max_steps:
            trainer.should_stop = True  # the last step: Lightning validates before it stops
        overdue = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        if step % self.config.every_steps == 0 or step == trainer.max_steps or overdue:
            self.save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LlamaModule)
        loss = pl_module.validation_row()["val/loss"]
        if loss is not None and loss < self.best_loss:
            self.best_loss = loss
            link(self.save(trainer), self.folder / "best.ckpt")

    def save(self, trainer: Trainer) -> Path:
        """Write this step's checkpoint unless it is there; returns its path."""
        path = self.folder / f"step_{trainer.global_step:08d}.ckpt"
        if self.saved_step != trainer.global_step:
            trainer.save_checkpoint(path)
            link(path, self.folder / "last.ckpt")
            self.saved_step, self.saved_at = trainer.global_step, time.monotonic()
            # By age, not by step: a run that was resumed from an older checkpoint meets its own later ones.
            files = sorted(self.folder.glob("step_*.ckpt"), key=lambda file: (file.stat().st_mtime_ns, file.name))
            for old in files[: -self.config.keep]:
                old.unlink()
        return path

    def last_good(self) -> str:
        """The newest checkpoint, as a clause for a message."""
        last = self.folder / "last.ckpt"
        return f"the last good checkpoint is {last}" if last.exists() else "there is no checkpoint yet"

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_loss = state_dict["best_loss"]


def link(path: Path, name: Path) -> None:
    """Make `name` another name of the file `path`, at once: whoever opens it finds the old file or the new one."""
    temporary = name.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, temporary)
    os.replace(temporary, name)


def resumable_step(path: Path, config: Config) -> int:
    """The step that the checkpoint was written after. Raises UserError, naming the field, if `config` does not fit it.

    A vocabulary size that `config` leaves open is the tokenizer's: pass the config again when that is known.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: resume= needs a run's folder with checkpoints/last.ckpt")
    checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # no tensor of it is read
    old, new = checkpoint["config"], config.model_dump(mode="json")
    for section, fields in (
        ("model", set(new["model"]) - {"name", "residual_dtype", "init_std"}),
        ("data", {"sequence_length"}),
        ("batch", {"micro", "accumulate"}),
    ):
        for field in sorted(fields):
            before, now = old[section].get(field), new[section][field]
            if before != now and (field, now) != ("vocab_size", None):
                raise UserError(
                    f"{section}.{field}={now}, but the run to resume has {before}: leave it, or start a new run"
                )
    step: int = checkpoint["global_step"]
    if step >= config.trainer.max_steps:
        raise UserError(
            f"the run has already taken its {step} steps: type trainer.max_steps={2 * step} (or any more) to go on"
        )
    return step
