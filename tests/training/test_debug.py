"""debug=fast|overfit|profile: what they set, and what comes of it."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.compose import check, read
from minillm.config import Config
from minillm.errors import UserError
from minillm.train import train

Run = Callable[..., tuple[dict[str, Any], Path]]
SMALL = (
    "data=synthetic data.synthetic_tokens=4000 data.sequence_length=16 model.hidden_size=32 model.num_layers=1 "
    "tokenizer.vocab_size=300 batch.micro=4 trainer=cpu logger=none trainer.progress_bar=false"
)


def typed(*more: str) -> Config:
    (config,) = check(read([*SMALL.split(), *more]))
    return config


def test_fast_does_everything_once(tmp_path: Path) -> None:
    result = train(typed("debug=fast"), tmp_path)
    assert (result["steps"], result["tokens"]) == (1, 4 * 16)
    assert None not in (result["train_loss"], result["val_loss"], result["tokens_per_sec"])
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()


def test_overfit_brings_the_loss_of_one_batch_near_zero(tmp_path: Path) -> None:
    assert train(typed("debug=overfit"), tmp_path)["train_loss"] < 0.05  # random tokens: nothing general is learned
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["train/loss"]) > 2


def test_profile_records_the_last_steps_and_its_timings_do_not_count(tmp_path: Path) -> None:
    result = train(typed("debug=profile"), tmp_path)
    assert result["timings_valid"] is False
    with gzip.open(tmp_path / "trace.json.gz", "rt") as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert names.count("Optimizer.step#AdamW.step") == 3


@pytest.mark.parametrize("group", ["debug=fast", "debug=overfit", "debug=profile"])
def test_it_is_laid_over_an_experiment_and_not_over_an_old_run(group: str, tmp_path: Path) -> None:
    (config,) = check(read(["experiment=norm_small", group, "seed=4"]))
    assert (config.model.name, config.seed) == ("15m", 4)
    assert config.trainer.max_steps in (1, 8) or config.data.train_blocks == 16
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="sets up a new run"):
        check(read([group, f"resume={tmp_path}"]))
