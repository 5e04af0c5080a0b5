"""A finished comparison in W&B: offline all is written, side by side, and one command uploads it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import wandb

from minillm.compare.files import workers
from minillm.compare.report import tracking
from minillm.compare.report.tracking import track
from minillm.csv_log import KEYS, CSVLog
from tests.compare.made import NORMS


def read_back(file: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [json.loads(line) for line in lines]


def of(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records if record["type"] == kind]


def about(records: list[dict[str, Any]]) -> dict[str, Any]:
    return of(records, "run")[0]


def offline_files(folder: Path) -> list[Path]:
    return list(folder.glob("wandb/offline-run-*/*.wandb"))


def content(folder: Path, path: str) -> dict[str, Any]:
    """Of a table, by the path in its record; it has a hash of the content in it."""
    file = next(folder.glob(f"wandb/offline-run-*/files/{path}"))
    return json.loads(file.read_text())


def wanted(result: dict[str, Any]) -> dict[str, Any]:
    for variant in result["variants"]:
        variant["config"]["logger"]["name"] = "wandb"
    return result


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_PROJECT", "WANDB_ENTITY", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")


@pytest.mark.process
def test_offline_everything_is_written_and_one_command_uploads_it(result: dict[str, Any], tmp_path: Path) -> None:
    log = workers(tmp_path, "round_0") / "1"
    log.mkdir(parents=True)
    CSVLog(log / "metrics.csv", 0).log_metrics({"train/loss": 3.5, "train/lr": 0.01, "tokens": 640}, 10)
    line = track(wanted(result), tmp_path)
    assert line == f"W&B is offline; to upload: wandb sync {tmp_path}/wandb/offline-run-*"
    runs = {about(records)["display_name"]: records for records in map(read_back, offline_files(tmp_path))}
    *variants, comparison = (runs[name] for name in [*(v["name"] for v in result["variants"]), "norm compared"])
    assert len(runs) == 4
    assert {(about(run)["project"], about(run)["run_group"]) for run in runs.values()} == {
        ("minillm", f"now_{tmp_path.name}")
    }
    assert [set(about(run)["tags"]) >= {f"norm={norm}", "test"} for run in variants for norm in NORMS].count(True) == 3
    assert about(variants[1])["config"]["update"]["layers_ran"] == {"norm": "torch"}
    assert [of(run, "exit")[0]["exit_code"] for run in variants] == [0, 0, 1]

    rows = [record["item"] for record in of(variants[1], "history")]
    assert [row["_step"] for row in rows] == list(range(1, len(rows) + 1))
    assert (
        {key for row in rows[:-1] for key in row if key[0] != "_"} == {"train/loss", "train/lr", "tokens"} < set(KEYS)
    )
    assert (rows[9]["train/loss"], rows[9]["train/lr"]) == (3.5, 0.01)
    rounds, seeds = content(tmp_path, rows[-1]["rounds.path"]), content(tmp_path, rows[-1]["seeds.path"])
    assert [row[1] for row in rounds["data"]] == [0, 1, 2, 0]
    assert rounds["data"][1][-1] == "1 other process(es) on the GPU"
    assert len(seeds["data"]) == 3 * len(rows)
    summary = {key: value for record in of(variants[1], "summary") for key, value in record["update"].items()}
    assert summary["compare/speed"].startswith("1.27x faster")
    assert summary["perf/tokens_per_sec"] == result["variants"][1]["tokens_per_sec"]["median"]

    (row,) = [record["item"] for record in of(comparison, "history")]
    lines = content(tmp_path, row["compare/table.path"])
    assert [line[0] for line in lines["data"]] == [variant["name"] for variant in result["variants"]]
    pictures = {key for key, value in row.items() if value == "image-file"}
    assert pictures == {f"compare/{name}._type" for name in ("ratio", "throughput", "loss", "loss_difference")}


@pytest.mark.process
def test_more_rounds_take_the_place_of_the_runs_that_were_there(result: dict[str, Any], tmp_path: Path) -> None:
    track(wanted(result), tmp_path)
    before = sorted(about(read_back(file))["run_id"] for file in offline_files(tmp_path))
    for variant in result["variants"]:
        variant["rounds"] *= 2
    track(result, tmp_path)
    runs = {about(records)["run_id"]: records for records in map(read_back, offline_files(tmp_path))}
    assert sorted(runs) == before and len(before) == len(offline_files(tmp_path)) == 4
    last = [of(runs[run_id], "history")[-1]["item"] for run_id in before[:2]]
    assert [len(content(tmp_path, row["rounds.path"])["data"]) for row in last] == [8, 8]


def test_without_a_logger_nothing_is_written(result: dict[str, Any], tmp_path: Path) -> None:
    assert track(result, tmp_path) is None
    assert not (tmp_path / "wandb").exists()


def test_with_a_key_the_line_is_the_link_to_the_group(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = MagicMock(offline=False, project_url="https://wandb.ai/me/minillm", group="a b")
    run.__enter__.return_value = run
    monkeypatch.setattr(tracking, "start_wandb", lambda folder, logger, **about: run)
    assert track(wanted(result), tmp_path) == "W&B: https://wandb.ai/me/minillm/groups/a%20b"


def test_a_server_that_fails_is_a_line_and_loses_nothing(
    result: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(folder: Path, logger: Any, **about: Any) -> None:
        raise wandb.errors.AuthenticationError("planted")

    monkeypatch.setattr(tracking, "start_wandb", refused)
    assert track(wanted(result), tmp_path) == "W&B failed: planted"
