"""Two processes over gloo train as one does, with every layer fused, and their checkpoints are anybody's."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.train import train
from tests.reliability.conftest import assert_same, rows, state
from tests.training.conftest import make_config
from tests.training.test_sample import text as text  # the fixture

pytestmark = pytest.mark.process
SAME = {
    **{f"{layer}.name": "triton" for layer in ("norm", "rope", "mlp", "loss")},
    "trainer.max_steps": 4,
    "trainer.val_every_steps": 4,
    "checkpoint.every_steps": 2,
}
ONE = SAME | {"batch.micro": 4, "trainer.val_batches": 2}
TWO = SAME | {"batch.micro": 1, "batch.accumulate": 2, "trainer.val_batches": 4, "trainer.devices": 2}
FSDP = TWO | {"trainer.strategy": "fsdp", "model.activation_checkpointing": "block"}
ON = {"resume": "last"}


def run(folder: Path, changes: dict[str, Any]) -> Path:
    assert train(make_config(changes), folder)["tokens"] == 4 * 4 * 16
    return folder


def at_step_2(folder: Path, copy: Path) -> Path:
    """The run as it was after its second step, for somebody to go on with."""
    shutil.copytree(folder, copy)
    for path in (copy / "checkpoints").iterdir():
        if path.name != "step_00000002.ckpt":
            path.unlink()
    return copy


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("ranks") / "one", ONE)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("ranks") / "sharded", FSDP)


def assert_close(found: Path, expected: Path) -> None:
    """The log (losses, the global gradient norm, tokens) and all that a checkpoint holds, to a few roundings."""
    assert [row["step"] for row in rows(found)] == [row["step"] for row in rows(expected)]
    for row, other in zip(rows(found), rows(expected), strict=True):
        for key in ("train/loss", "train/grad_norm", "val/loss", "tokens"):
            assert bool(row[key]) == bool(other[key])
            assert float(row[key] or 0) == pytest.approx(float(other[key] or 0), rel=2e-6)
    for key in ("state_dict", "optimizer_states", "global_step", "tokens"):
        torch.testing.assert_close(state(found)[key], state(expected)[key], rtol=1e-3, atol=2e-5)


def test_ddp_from_a_checkpoint_of_one_process_ends_as_one_process(one: Path, tmp_path: Path) -> None:
    assert_close(run(at_step_2(one, tmp_path / "run"), TWO | ON | {"trainer.strategy": "ddp"}), one)


def test_one_process_from_a_checkpoint_of_two_sharded_ones_ends_as_one_process(
    one: Path, sharded: Path, tmp_path: Path
) -> None:
    assert_close(run(at_step_2(sharded, tmp_path / "run"), ONE | ON), one)


def test_sharded_it_trains_as_one_process(one: Path, sharded: Path) -> None:
    assert_close(sharded, one)


def test_sharded_it_resumes_to_the_bit(sharded: Path, tmp_path: Path) -> None:
    assert_same(run(at_step_2(sharded, tmp_path / "run"), FSDP | ON), sharded)


@pytest.mark.slow  # test_command.py has it under torchrun
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_draw_a_sample_together_and_one_of_them_tells_it(
    strategy: str, text: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text |= {f"{layer}.name": "eager" for layer in ("norm", "rope", "mlp", "loss")}  # interpreted, 28 tokens take long
    alone = run(tmp_path / "alone", ONE | text)
    (told,) = sample_lines(capfd.readouterr().out)
    together = run(tmp_path / "together", TWO | text | {"trainer.strategy": strategy})
    assert sample_lines(capfd.readouterr().out) == [told]
    samples = (alone / "samples.txt").read_text()
    assert len(samples.split("\n")) == 2  # of the one validation
    assert (together / "samples.txt").read_text() == samples


def sample_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("sample:")]
