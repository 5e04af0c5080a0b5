"""The progress bar on a terminal; elsewhere a line a validation."""

import sys
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from tqdm import tqdm

from minillm import distributed
from minillm.callbacks.metrics import Metrics


class Progress(Callback):
    """Optimizer steps, loss, tokens/s and memory, as of the last logged row: nothing is read from the device for it."""

    def __init__(self, metrics: Metrics, bar: bool) -> None:
        self.metrics = metrics
        self.wanted = bar and sys.stderr.isatty() and distributed.rank() == 0
        self.bar: tqdm | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.wanted:
            self.bar = tqdm(total=trainer.max_steps, initial=trainer.global_step, unit="step", dynamic_ncols=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(self.text(), refresh=False)
            self.bar.update()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.bar is None:
            print(f"step {trainer.global_step}/{trainer.max_steps}  {self.text()}", flush=True)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def text(self) -> str:
        latest = self.metrics.latest
        parts = (
            ("loss", "train/loss", "{:.3f}"),
            ("val", "val/loss", "{:.3f}"),
            ("tokens/s", "perf/tokens_per_sec", "{:,.0f}"),
            ("GiB", "memory/peak_allocated_gib", "{:.1f}"),
        )
        return "  ".join(
            f"{name} {form.format(latest[key])}" for name, key, form in parts if latest.get(key) is not None
        )
