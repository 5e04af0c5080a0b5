"""Lightning's Trainer: what is left to it, and what it may say."""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning import Trainer
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, Strategy

from minillm import hardware
from minillm.config import Config
from minillm.sharded import Sharded


def build_trainer(config: Config, folder: Path, *, plugins: Sequence[Any] = (), **parts: Any) -> Trainer:
    """Lightning's Trainer from the config. Its epoch is the whole run; callbacks of ours save, log and draw the bar.

    With a strategy for several devices this process is one of the ranks, which have met (`distributed.group`).
    """
    precision = hardware.precision(config)
    return Trainer(
        accelerator=hardware.accelerator(config),
        devices=config.trainer.devices,
        strategy=strategy(config),
        plugins=[*plugins, *([] if config.trainer.strategy == "single" else [TorchElasticEnvironment()])],
        inference_mode=config.trainer.strategy != "fsdp",  # FSDP2's gathered weights must be able to train again
        precision="32-true" if precision == "bf16-true" else precision,  # see apply.to_bf16
        max_steps=config.trainer.max_steps,
        max_epochs=-1,
        val_check_interval=config.trainer.val_every_steps,
        check_val_every_n_epoch=None,
        limit_val_batches=config.trainer.val_batches,
        num_sanity_val_steps=0,
        log_every_n_steps=1,  # when it lets loggers save; what is logged, and when, is Metrics'
        deterministic=config.trainer.deterministic,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **parts,
    )


def strategy(config: Config) -> Strategy | str:
    """How Lightning is told that devices share the work."""
    match config.trainer.strategy:
        case "ddp":
            return DDPStrategy(gradient_as_bucket_view=True)  # else there is a second copy of all gradients
        case "fsdp":
            return Sharded(config.trainer.devices)
        case _:
            return "auto"


def quiet_lightning() -> None:
    """Silence what Lightning says about itself, each warning by its text."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for text in (
        "The '.*_dataloader' does not have many workers",  # reading memory-mapped blocks takes microseconds
        "GPU available but not used",  # trainer=cpu was asked for
        "`isinstance.treespec, LeafSpec.` is deprecated",  # its own use of torch
        "You're resuming from a checkpoint that ended before the epoch ended",  # our sampler starts at the right step
    ):
        warnings.filterwarnings("ignore", text)
