"""Runs of the tiny model, and what stops them at a given step."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.csv_log import whole_rows
from minillm.module import LlamaModule
from minillm.signals import Stopped
from tests.training.conftest import run as run  # the fixture

Run = Callable[..., tuple[dict[str, Any], Path]]
MEASURED = ("perf/", "memory/")


@pytest.fixture
def stop(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """stop(overrides, at=4) runs until a signal arrives within step 4. Returns the folder."""
    step_of = LlamaModule.training_step

    def stop(overrides: dict[str, Any], at: int, name: str = "run", number: int = signal.SIGTERM) -> Path:
        def struck(self: LlamaModule, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, Any]:
            if self.global_step == at - 1:
                signal.raise_signal(number)
            return step_of(self, batch, batch_idx)

        with monkeypatch.context() as patch:
            patch.setattr(LlamaModule, "training_step", struck)
            with pytest.raises(Stopped) as stopped:
                run(overrides, name)
        assert stopped.value.code == 128 + number
        return tmp_path / name

    return stop


def rows(folder: Path) -> list[dict[str, str]]:
    """The log without what differs from run to run."""
    return [
        {key: value for key, value in row.items() if not key.startswith(MEASURED)}
        for row in whole_rows(folder / "metrics.csv")
    ]


def state(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return content


def assert_same(first: Path, second: Path) -> None:
    """Weights, the optimizer's and the scaler's state to the bit, every row of the log."""
    one, other = state(first), state(second)
    for key in ("state_dict", "optimizer_states", "global_step", "tokens"):
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=0)
    assert one.get("MixedPrecision") == other.get("MixedPrecision")
    assert rows(first) == rows(second)
