"""A W&B run that was killed goes on with no step twice and none missing."""

from pathlib import Path

import pytest

from tests.reliability.conftest import Run
from tests.training.test_loggers import history, started

KILLED = """
import os, signal
from minillm.module import LlamaModule
step_of = LlamaModule.training_step
def killed(self, batch, batch_idx):
    if self.global_step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return step_of(self, batch, batch_idx)
LlamaModule.training_step = killed
"""


@pytest.mark.process
def test_after_a_kill_wandb_gets_no_step_twice_and_none_is_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    killed = started(tmp_path / "run", before=KILLED, WANDB_MODE="offline")
    assert killed.returncode == -9  # after step 5; the checkpoint is of step 3
    _, folder = run({"logger.name": "wandb", "trainer.max_steps": 7, "resume": "last"})
    assert [row["_step"] for row in history(folder)] == [1, 2, 3, 4, 5, 6, 7]
