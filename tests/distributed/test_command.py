"""Ranks from the command line: their signals, their loss, and torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.compose import ROOT
from tests.config.test_process import SMALL
from tests.reliability.conftest import rows, state

pytestmark = pytest.mark.process
TWO = [*SMALL.replace("trainer=cpu ", "").split(), "trainer.accelerator=cpu", "trainer.devices=2"]
ENDLESS = ["trainer.max_steps=100000", "trainer.log_every_steps=1", "checkpoint.every_steps=2"]


def command(*typed: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *typed], env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def second_rank(parent: int) -> int:
    """Its process id: the last of the two that were spawned. From /proc, as ps may cut its lines off."""
    spawned = [int(p.parent.name) for p in Path("/proc").glob("[0-9]*/cmdline") if b"spawn_main" in p.read_bytes()]
    return sorted(pid for pid in spawned if f"\nPPid:\t{parent}\n" in Path(f"/proc/{pid}/status").read_text())[1]


@pytest.fixture
def struck(tmp_path: Path) -> Callable[[str, int], tuple[int, str]]:
    """struck(strategy, signal) sends it to the second rank after some steps: (exit status, what was said)."""

    def struck(strategy: str, number: int) -> tuple[int, str]:
        script, folder = str(ROOT / "scripts" / "train.py"), tmp_path / "run"
        run = command(script, *TWO, *ENDLESS, f"trainer={strategy}", f"hydra.run.dir={folder}")
        try:
            while run.poll() is None and not (folder / "checkpoints" / "last.ckpt").exists():
                time.sleep(0.05)
            os.kill(second_rank(run.pid), number)
            _, said = run.communicate(timeout=60)
        finally:
            run.kill()
        return run.returncode, said

    return struck


def test_a_lost_rank_ends_the_run_with_a_sentence(struck: Callable, tmp_path: Path) -> None:
    status, said = struck("fsdp", signal.SIGKILL)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    sentence = f"rank 1 of 2 was lost (SIGKILL), and the others were ended; the last good checkpoint is {last}"
    assert (status, said) == (1, f"error: {sentence}\n")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", sentence)


def test_a_signal_to_one_rank_stops_all_at_one_step(struck: Callable, tmp_path: Path) -> None:
    run = tmp_path / "run"
    status, said = struck("ddp", signal.SIGTERM)
    step = state(run)["global_step"]
    assert (status, said) == (143, f"stopped by SIGTERM after step {step}: type resume={run} to go on\n")
    assert step == int(rows(run)[-1]["step"])
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"


def test_under_torchrun_the_run_has_one_folder(tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "train.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]  # a port of its own
    named_by_time = f"hydra.run.dir={tmp_path}/${{now:%S%f}}"
    run = command(*torchrun, script, *TWO, "trainer=fsdp", named_by_time)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"
