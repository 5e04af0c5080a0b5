"""Whole runs of a tiny model: what they leave behind, and that they can be resumed."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm import summary
from minillm.csv_log import KEYS
from minillm.errors import UserError

Run = Callable[..., tuple[dict[str, Any], Path]]


def rows(folder: Path, *columns: str) -> list[tuple[str, ...]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [tuple(row[column] for column in columns) for row in csv.DictReader(file)]


def checkpoint(folder: Path, name: str = "last.ckpt") -> dict[str, Any]:
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def assert_equal(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


LOGGED = ("step", "train/loss", "train/grad_norm", "train/lr", "val/loss", "tokens")


def test_a_run_takes_n_optimizer_steps_and_says_so_everywhere(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    result, folder = run({"batch.micro": 2, "batch.accumulate": 2})
    assert (result["steps"], result["tokens"]) == (6, 6 * 4 * 16)
    assert [row[0] for row in rows(folder, "step")] == ["1", "2", "3", "4", "5", "6"]
    assert [step for step, loss in rows(folder, "step", "val/loss") if loss] == ["4", "6"]  # and at the end
    state = checkpoint(folder)["optimizer_states"][0]["state"]
    assert {int(s["step"]) for s in state.values()} == {6}
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == str(folder)
    assert len(output) <= 30


def test_summary_has_every_key_and_null_for_what_is_not_known(run: Run) -> None:
    _, folder = run()
    written = json.loads((folder / "summary.json").read_text())
    assert set(written) == set(summary.KEYS)
    assert written["status"] == "finished"
    assert written["timings_valid"] is True
    assert set(written["step_ms"]) == {"median", "p10", "p90"}
    assert written["layers_ran"] == {"norm": "eager", "rope": "eager", "mlp": "eager", "loss": "eager"}
    for unknown in ("mfu", "peak_flops", "gpu_idle_share", "peak_allocated_gib", "val_bits_per_byte"):
        assert written[unknown] is None, unknown


def test_csv_has_the_same_columns_in_every_run(run: Run) -> None:
    _, folder = run()
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header == ["step", *KEYS]


def test_a_failed_run_leaves_a_summary_that_says_why(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        run({"data.sequence_length": 5000})
    written = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert written["status"] == "failed"
    assert "sequence_length" in written["error"]


@pytest.mark.parametrize("stop_at", [2, 4, 5], ids=["between", "at a validation", "at an epoch's end"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(run: Run, stop_at: int, precision: str) -> None:
    # an epoch is 5 steps of 4 blocks
    same = {
        "trainer.precision": precision,
        "data.synthetic_tokens": 360,
        "optim.schedule": "constant",
        "trainer.max_steps": 7,
        "checkpoint.every_steps": 1,
        "checkpoint.keep": 9,
    }
    result, whole = run(same, name="whole")
    assert result["corpus"]["train_blocks"] == 20
    run(same | {"trainer.max_steps": stop_at}, name="parts")
    resumed, parts = run(same | {"resume": "last"}, name="parts")
    assert_equal(checkpoint(whole)["state_dict"], checkpoint(parts)["state_dict"])
    ends_early = str(stop_at)  # the first part validated at its own end as well
    assert [r for r in rows(whole, *LOGGED) if r[0] != ends_early] == [
        r for r in rows(parts, *LOGGED) if r[0] != ends_early
    ]
    assert (resumed["steps"], resumed["tokens"]) == (result["steps"], result["tokens"])


def test_a_checkpoint_of_any_norm_goes_on_with_any_other(run: Run) -> None:
    for number, norm in enumerate(("eager", "textbook", "torch", "triton", "eager")):
        steps = 2 * (number + 1)
        result, _ = run({"norm.name": norm, "trainer.max_steps": steps, "resume": "last" if number else None})
        assert result["steps"] == steps
        assert result["layers_ran"]["norm"] == norm


def test_the_newest_checkpoints_are_kept_and_last_and_best_are_whole(run: Run) -> None:
    _, folder = run({"checkpoint.every_steps": 1, "checkpoint.keep": 2, "trainer.max_steps": 8, "optim.lr": 0.9})
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt", "step_00000007.ckpt", "step_00000008.ckpt"]
    assert checkpoint(folder)["global_step"] == 8
    losses = {int(step): float(loss) for step, loss in rows(folder, "step", "val/loss") if loss}
    assert checkpoint(folder, "best.ckpt")["global_step"] == min(losses, key=losses.__getitem__)


def test_resuming_a_finished_run_or_another_shape_is_refused_naming_the_field(run: Run) -> None:
    _, folder = run()
    finished = (folder / "summary.json").read_text()
    with pytest.raises(UserError, match=r"trainer\.max_steps=12"):
        run({"resume": "last"})
    with pytest.raises(UserError, match=r"model\.hidden_size=64.* has 32"):
        run({"resume": "last", "model.hidden_size": 64, "trainer.max_steps": 9})
    with pytest.raises(UserError, match=r"elsewhere cannot be resumed: it has no checkpoints"):
        run({"resume": "last"}, name="elsewhere")
    assert (folder / "summary.json").read_text() == finished


def test_rows_after_the_checkpoint_are_cut_when_a_killed_run_goes_on(run: Run) -> None:
    run({"trainer.max_steps": 3, "checkpoint.keep": 9})
    _, folder = run({"trainer.max_steps": 5, "resume": "last", "checkpoint.keep": 9})
    path = folder / "checkpoints"
    (path / "last.ckpt").unlink()
    (path / "step_00000003.ckpt").rename(path / "last.ckpt")  # as if the steps since then had not been saved
    run({"trainer.max_steps": 6, "resume": "last"})
    assert [row[0] for row in rows(folder, "step")] == ["1", "2", "3", "4", "5", "6"]


def test_a_new_run_in_the_folder_of_an_old_one_is_refused_and_writes_nothing(run: Run) -> None:
    _, folder = run()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="resume="):
        run()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_later_checkpoints_do_not_crowd_out_those_of_a_run_that_went_back(run: Run) -> None:
    same = {"checkpoint.every_steps": 1, "checkpoint.keep": 2}
    _, folder = run(same | {"checkpoint.keep": 9})
    last = folder / "checkpoints" / "last.ckpt"
    last.write_bytes((folder / "checkpoints" / "step_00000002.ckpt").read_bytes())
    run(same | {"resume": "last", "trainer.max_steps": 4})
    assert checkpoint(folder)["global_step"] == 4
    assert {path.name for path in last.parent.glob("step_*")} == {"step_00000003.ckpt", "step_00000004.ckpt"}


def test_16_mixed_is_refused_on_a_cpu(run: Run) -> None:
    with pytest.raises(UserError, match=r"16-mixed needs a GPU"):
        run({"trainer.precision": "16-mixed"})
