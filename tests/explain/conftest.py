"""The command run once, in a process of its own: where kernels are compiled they cannot be interpreted."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.compose import ROOT

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU counts as it runs, and measures")


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    folder: Path
    printed: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "explain.json").read_text())
        return found


def explained(folder: Path, *arguments: str) -> Done:
    command = [sys.executable, "-W", "ignore", "scripts/explain.py", *arguments, f"hydra.run.dir={folder}"]
    environment = {**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert result.returncode == 0, result.stderr[-2000:]
    return Done(folder, result.stdout)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """The teaching example."""
    names = "norm=textbook,eager,triton_simple,triton"
    return explained(tmp_path_factory.mktemp("explain") / "example", names, "shape=2x3x512")


@pytest.fixture(scope="session")
def of_model(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """At the shape of a model whose norm's figures are recorded."""
    folder = tmp_path_factory.mktemp("explain") / "model"
    return explained(folder, "experiment=norm_110m", "norm=eager,torch,triton", "logger=none")
