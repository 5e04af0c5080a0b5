"""What is written: complete, honest about what is not known, and the same after it was read back."""

import json
import math
from pathlib import Path

import pytest

from minillm.compare import files
from minillm.compare.process import WorkerError
from minillm.compare.records import Failed, Measurement
from minillm.compare.report.tables import markdown, predictions
from minillm.compare.results import summarize
from minillm.compare.runner import measure
from tests.compare.made import NORMS, Workshop, make_plan, measurement


def run(folder: Path, norms: tuple[str, ...] = NORMS[:2]) -> Measurement:
    return measure(measurement(make_plan(norms)), folder, lambda so_far: None, lambda text: None)


def test_the_file_is_json_and_holds_the_measurement(shop: Workshop, tmp_path: Path) -> None:
    done = run(tmp_path)
    shown = files.write(tmp_path, done, "finished")
    content = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert files.read(tmp_path) == done
    assert content["variants"][1]["verdict"] == shown["variants"][1]["verdict"]
    assert content["differences"] == {"norm.name": ["eager", "torch"]}
    assert done.schedule is not None
    assert {len(losses) for losses in content["variants"][0]["losses"].values()} == {3 + 3 + 2 * done.schedule.steps}


def test_a_loss_that_is_no_number_is_null(shop: Workshop, tmp_path: Path) -> None:
    shop.offset = {"torch": math.nan}
    files.write(tmp_path, run(tmp_path), "finished")
    content = json.loads((tmp_path / "comparison.json").read_text(), parse_constant=pytest.fail)
    assert content["variants"][1]["loss"] is None
    assert math.isnan(files.read(tmp_path).rounds[0].ready[1].warmup.losses[0])


def test_the_interpreters_timings_get_no_verdict(shop: Workshop, tmp_path: Path) -> None:
    shop.valid, shop.speed = False, {"torch": 2.0}
    result = summarize(run(tmp_path), "finished")
    assert (result["variants"][1]["verdict"], result["variants"][1]["ratio"]) == (None, None)
    assert "in Triton's interpreter" in markdown(result)


def test_people_read_the_verdict_the_trouble_and_the_failure(shop: Workshop, tmp_path: Path) -> None:
    shop.speed = {"torch": 1.5}
    shop.fails = {"textbook": (0, WorkerError(Failed(error="planted")))}
    text = (tmp_path / "comparison.md", files.write(tmp_path, run(tmp_path, NORMS), "finished"))[0].read_text()
    assert "1.50x faster [1.50, 1.50]" in text
    assert "failed: planted" in text
    assert "norm.name |" in text


def test_nothing_measured_is_said_and_not_guessed(tmp_path: Path) -> None:
    result = files.write(tmp_path, measurement(), "interrupted")
    assert [variant["tokens_per_sec"] for variant in result["variants"]] == [None, None]
    assert result["variants"][1]["verdict"] is None
    assert files.read(tmp_path) == measurement()


def test_what_explain_predicts_stands_beside_what_is_measured(shop: Workshop, tmp_path: Path) -> None:
    shop.speed = {"torch": 2.0}
    plan = make_plan().model_copy(update={"layer_ms": {"norm=eager": 70.0, "norm=torch": 15.0, "norm=triton": 3.0}})
    result = files.write(tmp_path, measure(measurement(plan), tmp_path, lambda _: None, lambda _: None), "finished")
    base, other = (variant["step_ms"]["median"] for variant in result["variants"])
    (row,) = predictions(result).rows
    assert row == ["norm=torch", "55.00", f"{base - other:.2f}", f"{base - other - 55:.2f}"]
    assert "predicts" in (tmp_path / "comparison.md").read_text()
    assert "predicted by explain.py" in (tmp_path / "comparison.html").read_text()


def test_without_a_prediction_for_all_that_is_compared_there_is_none(shop: Workshop, tmp_path: Path) -> None:
    plan = make_plan().model_copy(update={"layer_ms": {"norm=eager": 70.0}})
    result = files.write(tmp_path, measure(measurement(plan), tmp_path, lambda _: None, lambda _: None), "finished")
    assert predictions(result).rows == []
