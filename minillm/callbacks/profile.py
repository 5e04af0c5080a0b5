"""What a few steps consist of: PyTorch's trace, and on a GPU who allocated which memory."""

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerActivity, profile

from minillm import distributed

ALLOCATIONS = 200_000  # the newest that are kept
TRACE, MEMORY = "trace.json.gz", "memory.pickle"


class Profile(Callback):
    """Records the last `steps` steps of a run into its folder, those of the first rank: `trace.json.gz` for
    ui.perfetto.dev, `memory.pickle` for pytorch.org/memory_viz."""

    def __init__(self, folder: Path, steps: int, gpu: bool) -> None:
        self.folder, self.steps, self.gpu = folder, steps, gpu
        self.profiler: profile | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        due = trainer.global_step >= trainer.max_steps - self.steps
        if not due or self.profiler is not None or distributed.rank():
            return
        activities = [ProfilerActivity.CPU]
        if self.gpu:
            torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS)
            activities.append(ProfilerActivity.CUDA)
        self.profiler = profile(activities=activities, record_shapes=True)
        self.profiler.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.profiler is None or trainer.global_step < trainer.max_steps:
            return
        if self.gpu:
            torch.cuda.synchronize()
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.folder / TRACE))
        if self.gpu:
            torch.cuda.memory._dump_snapshot(str(self.folder / MEMORY))
            torch.cuda.memory._record_memory_history(enabled=None)
        where = f"{self.folder / TRACE} (ui.perfetto.dev)"
        if (self.folder / MEMORY).exists():
            where += f", {self.folder / MEMORY} (pytorch.org/memory_viz)"
        print(f"profile of the last {self.steps} steps: {where}", flush=True)
