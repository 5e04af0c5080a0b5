"""The real command line, from another folder."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from minillm.compose import ROOT

pytestmark = pytest.mark.process
SMALL = (
    "data=synthetic data.synthetic_tokens=20000 data.sequence_length=16 model.hidden_size=32 model.num_layers=1 "
    "tokenizer.vocab_size=300 trainer.max_steps=1 trainer=cpu logger=none"
)


def train(typed: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MINILLM_CACHE": str(folder / "cache")} | environment
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *typed.split()]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_a_mistake_ends_the_command_with_status_2_and_no_stack(tmp_path: Path) -> None:
    done = train(f"trainer.lrr=1 norm=foo hydra.run.dir={tmp_path}/run", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(" is unknown")[0] for line in done.stderr.splitlines()] == [
        "error: norm=foo",
        "error: trainer.lrr",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_stack_is_shown_on_demand(tmp_path: Path) -> None:
    done = train("norm=foo", tmp_path, HYDRA_FULL_ERROR="1")
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_help_and_cfg_say_what_there_is(tmp_path: Path) -> None:
    assert "norm: compiled, custom, eager" in train("--help", tmp_path).stdout
    assert "name: triton\n" in train("norm=triton --cfg job", tmp_path).stdout


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed_here") / "sweep"
    done = train(f"-m norm=eager,torch {SMALL} hydra.sweep.dir={folder}", folder.parent)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_sweep_makes_a_folder_a_job_and_one_group(sweep: Path) -> None:
    configs = {path.parent.name: OmegaConf.load(path) for path in sweep.glob("*/config.yaml")}
    assert {name: config.norm.name for name, config in configs.items()} == {
        "0_tiny_eager": "eager",
        "1_tiny_norm-torch": "torch",
    }
    assert {config.logger.group for config in configs.values()} == {"sweep"}


def test_a_finished_run_is_left_alone_by_a_new_one_and_goes_on_with_another_norm(sweep: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sweep / "0_tiny_eager", tmp_path / "first")
    before = {file.name: file.read_bytes() for file in folder.glob("*.*")}
    refused = train(f"{SMALL} optim.lr=0.5 hydra.run.dir=first", tmp_path)
    assert (refused.returncode, refused.stderr.count("error: ")) == (1, 1)
    assert {file.name: file.read_bytes() for file in folder.glob("*.*")} == before
    done = train("resume=first norm=torch trainer.max_steps=2", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(folder)
    assert OmegaConf.load(folder / "config.yaml").norm.name == "torch"


def test_a_reader_that_has_gone_does_not_end_the_run(tmp_path: Path) -> None:
    """`train.py ... | head -1`"""
    script = str(ROOT / "scripts" / "train.py")
    command = [sys.executable, script, *SMALL.split(), "trainer.max_steps=30", "hydra.run.dir=run"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout and run.stderr and run.stdout.readline()
        run.stdout.close()
        said = run.stderr.read()
    assert (run.returncode, "Traceback" in said) == (0, False), said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"
