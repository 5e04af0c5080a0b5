"""The command: what it writes and says, and how it ends."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from minillm.compare import cli
from minillm.compare.cli import main, measured
from minillm.compare.files import read, write
from minillm.compare.process import WorkerError
from minillm.compare.records import Failed
from minillm.compare.report import tables, tracking
from tests.compare.made import Workshop, measurement
from tests.reliability.test_state import hold


def test_the_results_are_shown_written_and_named(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(measurement(), tmp_path) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("starting 2 variants, a process each")
    assert "4 rounds of 2 variants" in shown.splitlines()[1]  # how long it takes comes first
    assert (tmp_path / "comparison.md").read_text() in shown
    assert shown.splitlines()[-1] == str(tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_comparison_is_kept_and_one_command_goes_on(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, status: int
) -> None:
    def stop() -> None:
        if len(read(tmp_path).rounds if (tmp_path / "comparison.json").exists() else []) == 2:
            os.kill(os.getpid(), number)

    shop.before_turn = stop
    assert measured(measurement(), tmp_path) == status
    assert (json.loads((tmp_path / "comparison.json").read_text())["status"], shop.living) == ("interrupted", [])
    assert f"compare.resume={tmp_path}" in capsys.readouterr().out
    shop.before_turn = lambda: None
    assert main([f"compare.resume={tmp_path}"]) == 0
    assert len(read(tmp_path).rounds) == 4


def test_two_processes_do_not_measure_in_one_folder(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(measurement(), tmp_path)
    before = (tmp_path / "comparison.json").read_bytes()
    context = get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, release))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(SystemExit):
            main([f"compare.resume={tmp_path}"])
        assert f"process {other.pid} on " in capsys.readouterr().err
    finally:
        other.kill()
        other.join()
    assert (tmp_path / "comparison.json").read_bytes() == before


def test_it_goes_on_from_what_another_process_has_just_left(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(measurement(), tmp_path)
    done, told = read(tmp_path), len(shop.log)

    @contextmanager
    def another_ended_before(folder: Path) -> Iterator[None]:
        write(folder, done, "finished")
        yield

    monkeypatch.setattr(cli, "alone_in", another_ended_before)
    write(tmp_path, done.model_copy(update={"rounds": done.rounds[:2]}), "running")
    assert main([f"compare.resume={tmp_path}"]) == 0
    assert len(shop.log) == told


def test_a_comparison_that_cannot_be_written_is_refused(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, measurement(), "interrupted")
    monkeypatch.setattr(os, "access", lambda path, how: False)
    with pytest.raises(SystemExit) as caught:
        main([f"compare.resume={tmp_path}"])
    assert caught.value.code == 2
    assert f"{tmp_path} is no folder that you may write to: get the permission" in capsys.readouterr().err
    assert shop.log == []


def test_a_finished_comparison_can_be_given_more_rounds_but_not_fewer(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(measurement(), tmp_path)
    with pytest.raises(SystemExit):
        main([f"compare.resume={tmp_path}", "compare.rounds=3"])
    assert "compare.rounds=3, but 4 rounds are there already: type 4 or more" in capsys.readouterr().err
    assert main([f"compare.resume={tmp_path}", "compare.rounds=6"]) == 0
    assert len(read(tmp_path).rounds) == 6
    assert main([f"compare.resume={tmp_path}"]) == 0  # nothing is left to do
    assert len(read(tmp_path).rounds) == 6


def test_what_is_not_decided_comes_with_the_command_for_more_rounds(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "verdicts", lambda result: [tables.Line("b", "undecided", "not decided")])
    measured(measurement(), tmp_path)
    assert f"compare.resume={tmp_path} compare.rounds=N" in capsys.readouterr().out


def test_a_finished_comparison_says_where_its_wandb_runs_are(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "track", lambda result, folder: f"{result['status']}: there")
    measured(measurement(), tmp_path)
    assert capsys.readouterr().out.splitlines()[-2:] == ["finished: there", str(tmp_path)]


def test_what_is_not_comparable_ends_with_status_1_and_a_sentence(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.env = {"torch": {"torch": "2.14"}}
    with pytest.raises(SystemExit) as caught:
        measured(measurement(), tmp_path)
    assert caught.value.code == 1
    assert capsys.readouterr().err.startswith("error: not comparable: env.torch differs")


def test_a_variant_that_cannot_run_here_ends_it_before_a_step_is_measured(
    shop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.fails = {"torch": (0, WorkerError(Failed(error="it needs a GPU", refused=True)))}
    with pytest.raises(SystemExit) as caught:
        measured(measurement(), tmp_path)
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: norm=torch: it needs a GPU\n"
    assert [told for _, told in shop.log] == ["start", "start"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[]", "Input should be an object"),
        (b"17", "Input should be an object"),
        (b'"a"', "Input should be an object"),
        (b"\xff", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"{}", "measurement: Field required"),
        (b'{"measurement": 17}', "measurement: Input should be an object"),
        (b'{"measurement": {}}', "measurement.plan: Field required"),
    ],
)
def test_a_damaged_comparison_is_a_sentence(
    tmp_path: Path, content: bytes, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comparison.json").write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main([f"compare.resume={tmp_path}"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}/comparison.json is not as this version of minillm writes it ({reason}")
    assert (tmp_path / "comparison.json").read_bytes() == content


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["norm=eager"], "nothing to compare"),
        (["-m", "norm=eager,torch"], "lists need no -m"),
        (["runs=a,b", "norm=eager"], "runs= brings its own configuration"),
        (["compare.resume=a", "norm=eager"], "compare.resume= brings its own configuration"),
        (["compare.resume=nowhere"], "nowhere/comparison.json cannot be read (No such file"),
    ],
)
def test_a_mistake_is_a_sentence_before_any_work(
    shop: Workshop, typed: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(typed)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err
    assert shop.log == []
