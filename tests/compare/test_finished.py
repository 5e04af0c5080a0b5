"""Finished runs are tabulated under the same rule, and never judged."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from minillm.compare import files
from minillm.compare.cli import main
from minillm.compare.finished import tabulated
from minillm.compare.report.tables import markdown
from minillm.compare.results import summarize
from minillm.errors import UserError
from tests.compare.made import ENV, measurement
from tests.training.conftest import make_config


def tabulate(runs: list[Path]) -> str:
    return markdown(tabulated(runs, "compare", "now"))


def finished_run(folder: Path, rate: float, overrides: dict[str, Any] | None = None, **summary: Any) -> Path:
    folder.mkdir()
    OmegaConf.save(make_config(overrides).model_dump(mode="json"), folder / "config.yaml")
    values = {
        "status": "finished", "tokens_per_sec": rate, "step_ms": {"median": 1.0}, "mfu": None, "train_loss": 3.0,
        "peak_allocated_gib": None, "val_loss": 3.1, "timings_valid": True, "env": ENV,
        "corpus": {"source": "made", "hash": "a"},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(values | summary))
    (folder / "metrics.csv").write_text("step,train/loss\n10,3.5\n20,3.0\n")
    return folder


def test_runs_that_differ_in_their_layers_are_a_table_without_a_verdict(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / "a", 100.0), finished_run(tmp_path / "b", 150.0, {"norm.name": "torch"})]
    text = tabulate(runs)
    assert "norm.name" in text and "1.50" in text
    assert "not interleaved" in text and "faster" not in text


def test_they_get_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [finished_run(tmp_path / "a", 100.0), finished_run(tmp_path / "b", 150.0, {"norm.name": "torch"})]
    folder = tmp_path / "result"
    assert main([f"runs={runs[0]},{runs[1]}", f"hydra.run.dir={folder}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(folder)
    content = json.loads((folder / "comparison.json").read_text())
    compared = summarize(measurement(), "finished")
    assert set(content) == {*compared, "measurement"}
    assert set(content["variants"][0]) == set(compared["variants"][0])
    page = (folder / "comparison.html").read_text()
    assert page.count("<svg") == 3 and "not interleaved" in page and '<ul class="verdicts">' not in page
    with pytest.raises(UserError, match="nothing to go on with"):
        files.read(folder)


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir(), (tmp_path / "2").mkdir()
    runs = [
        finished_run(tmp_path / "1" / "run", 1.0),
        finished_run(tmp_path / "2" / "run", 1.0, {"norm.name": "torch"}),
    ]
    assert all(str(run) in tabulate(runs) for run in runs)


def test_the_interpreters_runs_get_no_ratio(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / "a", 100.0), finished_run(tmp_path / "b", 150.0, timings_valid=False)]
    assert "1.50" not in tabulate(runs)


@pytest.mark.parametrize(
    ("overrides", "summary", "sentence"),
    [
        ({"optim.lr": 0.5}, {}, "optim.lr differs: 0.01 .*, 0.5"),
        ({"seed": 1}, {}, "seed differs"),
        ({}, {"corpus": {"source": "made", "hash": "b"}}, "corpus.hash differs: a .*, b"),
        ({}, {"env": ENV | {"torch": "2.14"}}, "env.torch differs"),
        ({}, {"status": "failed"}, "b/summary.json: its status is failed"),
    ],
)
def test_other_differences_are_refused(tmp_path: Path, overrides: dict, summary: dict, sentence: str) -> None:
    runs = [finished_run(tmp_path / "a", 100.0), finished_run(tmp_path / "b", 150.0, overrides, **summary)]
    with pytest.raises(UserError, match=sentence):
        tabulate(runs)


def test_a_folder_that_is_no_run_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"runs=.*a: .*cannot be read \(No such file.*\n.*runs=.*b: "):
        tabulate([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.yaml", "norm: [", r"config.yaml cannot be read \("),
        ("config.yaml", "norm: ${", r"config.yaml cannot be read \("),
        ("config.yaml", "- norm", r"config.yaml cannot be read \(it holds a list"),
        ("config.yaml", "17", r"config.yaml cannot be read \("),
        ("summary.json", "{", r"summary.json is not as .* writes it \(Invalid JSON"),
        ("summary.json", "[]", r"summary.json is not as .* writes it \(Input should be an object"),
        ("summary.json", "\udcff", r"summary.json is not as .* writes it \(Invalid JSON"),
        ("summary.json", "{}", r"summary.json is not as .* writes it \(status: Field required"),
        ("summary.json", '{"status": "finished"}', r"summary.json is not as .* writes it \(env: Field required"),
        ("metrics.csv", "step,train/lr\n10,3.5\n", r"metrics.csv has no column train/loss: "),
        ("metrics.csv", "step,train/loss\n10,much\n", r"metrics.csv, line 2, is no line of a run's log"),
    ],
)
def test_damage_is_a_sentence_that_names_the_file(tmp_path: Path, name: str, content: str, sentence: str) -> None:
    runs = [finished_run(tmp_path / "a", 100.0), finished_run(tmp_path / "b", 150.0, {"norm.name": "torch"})]
    (runs[1] / name).write_text(content, errors="surrogateescape")
    with pytest.raises(UserError, match=f"^runs={runs[1]}: {runs[1]}/{sentence}"):
        tabulate(runs)


@pytest.mark.parametrize("key", ["env", "corpus", "tokens_per_sec", "timings_valid", "step_ms"])
def test_a_summary_value_of_another_kind_is_a_sentence(tmp_path: Path, key: str) -> None:
    broken = finished_run(tmp_path / "b", 150.0, {"norm.name": "torch"}, **{key: "much"})
    with pytest.raises(UserError, match=rf"writes it \({key}: "):
        tabulate([finished_run(tmp_path / "a", 100.0), broken])


def test_a_loss_that_is_no_number_is_written_as_null(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / "a", 100.0), finished_run(tmp_path / "b", 150.0, {"norm.name": "torch"})]
    (runs[1] / "metrics.csv").write_text("step,train/loss\n10,nan\n")
    folder = tmp_path / "result"
    assert main([f"runs={runs[0]},{runs[1]}", f"hydra.run.dir={folder}"]) == 0
    assert json.loads((folder / "comparison.json").read_text())["variants"][1]["losses"] == {"0": {"10": None}}
