"""kills.py: a job that is killed at random moments and resumed ends as the uninterrupted one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minillm.compose import ROOT


def kills(folder: Path, *options: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.reliability.kills", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["equal"]
    found: list[dict[str, object]] = result["kills"]
    return found


@pytest.mark.process
def test_four_kills_change_nothing(tmp_path: Path) -> None:
    assert len(kills(tmp_path, "--sigkill=2", "--sigterm=2")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_twenty_kills_change_nothing(tmp_path: Path, workers: int) -> None:
    found = kills(tmp_path, "--sigkill=10", "--sigterm=10", f"--workers={workers}")
    assert len(found) == 20
    assert any(kill["half_a_checkpoint"] for kill in found)
