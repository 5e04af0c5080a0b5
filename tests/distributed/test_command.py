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

from minillm.compose import ROOT, check, read
from minillm.train import train
from tests.config.test_process import SMALL
from tests.distributed.test_ranks import sample_lines
from tests.reliability.conftest import rows, state

pytestmark = pytest.mark.process
TWO = [*SMALL.replace("trainer=cpu ", "").split(), "trainer.accelerator=cpu", "trainer.devices=2"]
ENDLESS = ["trainer.max_steps=100000", "trainer.log_every_steps=1", "checkpoint.every_steps=2"]
TEXT = (
    "data=text data.files=text.jsonl data.val_fraction=0.3 data.sequence_length=16 tokenizer.vocab_size=300 "
    "model.hidden_size=32 model.num_layers=1 trainer.max_steps=2 logger=none"
)


def command(*typed: str) -> subprocess.Popen[str]:
    """The reader of its standard output goes away at once, which ends no rank."""
    run = subprocess.Popen([sys.executable, *typed], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout
    run.stdout.close()
    return run


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


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `text.jsonl`, in `runs` one of two ranks on it, named by the time, and what was `printed`."""
    home = tmp_path_factory.mktemp("torchrun")
    lines = [json.dumps({"text": f"story {number} with\ntwo lines, é\n" * 4}) for number in range(40)]
    (home / "text.jsonl").write_text("\n".join(lines))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]  # a port of its own
    ranks = ["trainer=fsdp", "trainer.accelerator=cpu", "trainer.devices=2", "batch.micro=4"]
    typed = [str(ROOT / "scripts" / "train.py"), *TEXT.split(), *ranks, "hydra.run.dir=runs/${now:%S%f}"]
    environment = os.environ | {"MINILLM_CACHE": str(home / "cache")}
    with (home / "printed").open("w") as printed:
        run = subprocess.run(
            [sys.executable, *launcher, *typed],
            cwd=home,
            env=environment,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    return home


def test_under_torchrun_the_run_has_one_folder(torchrun: Path) -> None:
    (folder,) = (torchrun / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "finished"


def test_all_ranks_draw_the_sample_of_one_process_and_one_of_them_tells_it(
    torchrun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(torchrun)
    monkeypatch.setenv("MINILLM_CACHE", str(torchrun / "cache"))
    (config,) = check(read([*TEXT.split(), "trainer=cpu", "batch.micro=8"]))
    train(config, tmp_path)
    (told,) = sample_lines(capsys.readouterr().out)
    printed = (torchrun / "printed").read_text()
    assert printed.count("sample:") == 1  # the lines of two ranks could run into each other
    assert sample_lines(printed) == [told]
    (together,) = torchrun.glob("runs/*/samples.txt")
    assert len(together.read_text().split("\n")) == 2  # of the one validation
    assert together.read_text() == (tmp_path / "samples.txt").read_text()
