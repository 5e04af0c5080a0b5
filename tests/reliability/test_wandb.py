"""A W&B run that was killed goes on with no step twice and none missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.test_loggers import SCRIPT, history, train

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
def test_after_a_kill_wandb_gets_no_step_twice_and_none_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", KILLED + SCRIPT, str(folder), '{"checkpoint.every_steps": 3}']
    environment = os.environ | {"WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert killed.returncode == -9  # after step 5; the checkpoint is of step 3
    train(folder, '{"trainer.max_steps": 7, "resume": "last"}', WANDB_MODE="offline")
    assert [row["_step"] for row in history(folder)] == [1, 2, 3, 4, 5, 6, 7]
