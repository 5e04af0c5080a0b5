"""docs/use_elsewhere.md: the module that it shows trains."""

from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from tests.guides.test_extend import code_of


class Losses(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.values.append(outputs["loss"].item())


@pytest.mark.filterwarnings("ignore:`isinstance.treespec", "ignore:The '.*_dataloader'")  # Lightning's about itself
def test_the_guides_module_trains() -> None:
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(code_of("use_elsewhere.md"), names)
    torch.manual_seed(0)
    losses, batch = Losses(), torch.arange(18).repeat(2, 1)
    trainer = Trainer(
        max_steps=40, devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[losses],
    )  # fmt: skip
    trainer.fit(names["Mine"](vocabulary=32, dim=16), DataLoader([batch] * 40, batch_size=None))
    assert losses.values[-1] < losses.values[0] / 2
