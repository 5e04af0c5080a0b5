"""A run that is stopped and resumed is the run that was not, and what cannot go on exactly is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.csv_log import CSVLog
from minillm.errors import UserError
from tests.reliability.conftest import Run, assert_same, rows, state

Stop = Callable[..., Path]
# An epoch is 5 steps of 4 sequences; nothing is saved but what the signal saves.
SAME = {
    "batch.micro": 2,
    "batch.accumulate": 2,
    "data.synthetic_tokens": 360,
    "trainer.max_steps": 9,
    "checkpoint.every_steps": 100,
}
# Stops after the first step, where there is a validation, at the end of an epoch.
MODES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "no workers": ({}, (1, 4, 5)),
    "two workers": ({"data.num_workers": 2}, (3,)),  # starting and ending workers takes seconds
    "bf16-true": ({"trainer.precision": "bf16-true"}, (1, 4, 5)),
    "bf16-mixed": ({"trainer.precision": "bf16-mixed"}, (1, 4, 5)),
}


@pytest.mark.parametrize(("mode", "stops"), MODES.values(), ids=MODES.keys())
def test_stopped_and_resumed_the_run_is_the_uninterrupted_one_bit_for_bit(
    run: Run, stop: Stop, mode: dict[str, Any], stops: tuple[int, ...]
) -> None:
    same = SAME | mode
    _, whole = run(SAME | mode | {"data.num_workers": 0}, "whole")
    for number, at in enumerate(stops):
        parts = stop(same | {"resume": "last" if number else None}, at=at)
        assert state(parts)["global_step"] == at
    run(same | {"resume": "last"})
    assert_same(whole, parts)


def test_what_the_run_has_been_through_is_recorded_and_where_it_goes_on_is_said(
    run: Run, stop: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(SAME, at=2)
    assert "steps   9 of 4 x" in capsys.readouterr().out
    result, _ = run(SAME | {"resume": "last", "norm.name": "torch"})
    said = capsys.readouterr().out
    assert "steps   3 to 9, each 4 x" in said and "rate " not in said
    assert [(start["step"], start["layers_ran"]["norm"]) for start in result["starts"]] == [(0, "eager"), (2, "torch")]


def test_another_number_of_steps_changes_the_learning_rates_course_and_that_is_said(
    run: Run, stop: Stop, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(SAME, at=2)
    run(SAME | {"resume": "last", "trainer.max_steps": 4})
    assert "its course is now that of 4 steps, not 9" in capsys.readouterr().out


CHANGES = {
    "model.hidden_size": 64,
    "data.sequence_length": 8,
    "seed": 1,
}


@pytest.mark.parametrize(("name", "value"), CHANGES.items(), ids=CHANGES.keys())
def test_what_would_change_the_data_or_the_shape_is_refused_by_name(
    run: Run, stop: Stop, name: str, value: object
) -> None:
    folder = stop(SAME, at=2)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(UserError, match=rf"{name}={value}, but the run to resume has"):
        run(SAME | {"resume": "last", name: value})
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


def test_another_number_of_sequences_a_step_is_refused_and_another_cut_of_the_same_goes_on(
    run: Run, stop: Stop, tmp_path: Path
) -> None:
    shutil.copytree(stop(SAME, at=2), tmp_path / "other")
    with pytest.raises(UserError, match=r"batch\.micro=4 .* make 8 sequences a step, but the run to resume has 4"):
        run(SAME | {"resume": "last", "batch.micro": 4})
    run(SAME | {"resume": "last", "batch.micro": 4, "batch.accumulate": 1})
    run(SAME | {"resume": "last"}, name="other")
    for name, weight in state(tmp_path / "run")["state_dict"].items():
        torch.testing.assert_close(weight, state(tmp_path / "other")["state_dict"][name], rtol=1e-3, atol=1e-5)


def test_other_data_is_refused(run: Run, stop: Stop) -> None:
    stop(SAME, at=2)
    with pytest.raises(UserError, match=r"trained on other data \(corpus \w+, now \w+\)"):
        run(SAME | {"resume": "last", "data.synthetic_tokens": 361})


def test_another_tokenizer_or_text_is_refused_and_the_same_from_another_folder_goes_on(
    run: Run, stop: Stop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    lines = "".join(f'{{"text": "document {number} of the text, a short one"}}\n' for number in range(99))
    Path("a.jsonl").write_text(lines)
    same = SAME | {"data.name": "text", "data.files": ["a.jsonl"], "model.vocab_size": None}
    folder = stop(same, at=2)
    assert f"- {tmp_path}/a.jsonl" in (folder / "config.yaml").read_text()
    with pytest.raises(UserError, match="trained on other data"):
        run(same | {"resume": "last", "tokenizer.vocab_size": 260})
    monkeypatch.chdir("/")
    run(same | {"resume": "last", "data.files": [f"{tmp_path}/a.jsonl"]})


def test_a_line_that_a_kill_cut_off_is_dropped_and_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    log = CSVLog(path, start_step=0)
    for step in range(1, 13):
        log.log_metrics({"train/loss": step}, step)
    log.finalize("failed")
    path.write_text(path.read_text()[: -len("2,12,,,,,,,,,,,\n")])  # of step 12 a "1" is left
    log = CSVLog(path, start_step=10)
    log.log_metrics({"train/loss": 0}, 11)
    log.finalize("success")
    assert [(row["step"], row["train/loss"]) for row in rows(tmp_path)][-2:] == [("10", "10"), ("11", "0")]


def test_a_copy_of_the_runs_folder_goes_on_too(run: Run, stop: Stop, tmp_path: Path) -> None:
    shutil.copytree(stop(SAME, at=2), tmp_path / "copy")
    result, _ = run(SAME | {"resume": "last"}, name="copy")
    assert result["steps"] == 9


@pytest.mark.gpu
def test_the_scalers_state_goes_on(run: Run, stop: Stop) -> None:
    same = SAME | {"trainer.accelerator": "gpu", "trainer.precision": "16-mixed"}
    _, whole = run(same, "whole")
    stop(same, at=5)
    _, parts = run(same | {"resume": "last"})
    assert state(whole)["MixedPrecision"] == state(parts)["MixedPrecision"]
    for name, weight in state(whole)["state_dict"].items():
        torch.testing.assert_close(state(parts)["state_dict"][name], weight, rtol=1e-3, atol=1e-4)
