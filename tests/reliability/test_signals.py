"""The first signal ends a run in good order, wherever it finds it; the second at once."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm import distributed
from minillm import train as training
from minillm.compose import ROOT
from minillm.module import LlamaModule
from minillm.signals import Signals, Stopped, leave_to_owner
from tests.config.test_process import SMALL
from tests.reliability.conftest import Run, rows, state

NUMBERS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)


@NUMBERS
def test_in_training_the_step_is_ended_and_saved(
    run: Run, stop: Callable[..., Path], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = stop({"checkpoint.every_steps": 100}, at=2, number=number)
    assert state(folder)["global_step"] == 2
    assert [row["step"] for row in rows(folder)] == ["1", "2"]
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("stopped", 2)
    name = signal.Signals(number).name
    assert capsys.readouterr().err == f"stopped by {name} after step 2: type resume={folder} to go on\n"


def test_one_that_comes_while_the_ranks_agree_ends_the_next_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = [signal.SIGTERM]

    def struck(values: tuple[float, ...]) -> list[float]:
        if coming:
            signal.raise_signal(coming.pop())
        return list(values)

    monkeypatch.setattr(distributed, "highest", struck)
    with pytest.raises(Stopped):
        run({"checkpoint.every_steps": 100})
    assert state(tmp_path / "run")["global_step"] == 2


@NUMBERS
def test_in_a_validation_that_is_ended_too(
    run: Run, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = LlamaModule.validation_step

    def struck(self: LlamaModule, batch: dict, batch_idx: int) -> None:
        if batch_idx == 1:
            signal.raise_signal(number)
        validate(self, batch, batch_idx)

    monkeypatch.setattr(LlamaModule, "validation_step", struck)
    with pytest.raises(Stopped) as stopped:
        run({"checkpoint.every_steps": 100})
    assert stopped.value.code == 128 + number
    assert state(tmp_path / "run")["global_step"] == 4
    assert rows(tmp_path / "run")[-1]["val/loss"]


@NUMBERS
def test_in_the_preparation_of_data_it_ends_there(
    run: Run, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def struck(config: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(training, "prepare_corpus", struck)
    with pytest.raises(Stopped) as stopped:
        run()
    assert stopped.value.code == 128 + number
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"
    assert "there is no checkpoint yet" in capsys.readouterr().err
    monkeypatch.undo()
    assert run()[0]["status"] == "finished"  # nothing is in a new run's way


def test_after_the_last_step_a_run_ends_as_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(self: LlamaModule) -> None:
        if self.global_step == 6:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(LlamaModule, "on_validation_epoch_end", struck)
    assert run()[0]["status"] == "finished"


def test_the_handlers_of_before_are_put_back(run: Run) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def hang() -> None:
    with Signals() as signals:
        signals.defer()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_a_second_signal_ends_the_process_at_once() -> None:
    process = multiprocessing.get_context("fork").Process(target=hang)
    process.start()
    process.join(timeout=30)
    assert process.exitcode == -signal.SIGTERM


def work(ready: Any) -> None:
    leave_to_owner()
    ready.set()
    signal.pause()


def test_a_worker_is_ended_by_its_owners_sigterm_and_by_nobody_elses() -> None:
    """multiprocessing ends what still runs at a process's exit by SIGTERM, and then waits for it without an end."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    worker = context.Process(target=work, args=(ready,))
    worker.start()
    assert ready.wait(30)
    subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
    worker.join(timeout=0.5)
    assert worker.is_alive()
    worker.terminate()
    worker.join(timeout=30)
    assert worker.exitcode == 0


@pytest.mark.process
def test_the_command_line_exits_with_143_and_130_and_goes_on(tmp_path: Path) -> None:
    """Through Hydra, Lightning and the data loader's workers, which have handlers of their own; to the whole process
    group, as a terminal and `timeout` send them."""

    def command(*typed: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "train.py"), *typed],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def step() -> int:
        log = tmp_path / "run" / "metrics.csv"
        return int(rows(log.parent)[-1]["step"]) if log.exists() and rows(log.parent) else 0

    typed = [*SMALL.split(), "trainer.max_steps=100000", "trainer.log_every_steps=1", "data.num_workers=1"]
    first = command(*typed, "hydra.run.dir=run")
    second = None
    try:
        while first.poll() is None and step() < 3:
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGTERM)
        status, said, reached = first.wait(60), first.stderr.read(), step()
        sentence = f"stopped by {{}} after step {{}}: type resume={tmp_path}/run to go on\n"
        assert (status, said) == (143, sentence.format("SIGTERM", reached))
        assert state(tmp_path / "run")["global_step"] == reached
        second = command("resume=run")
        while second.poll() is None and step() < reached + 3:
            time.sleep(0.05)
        os.killpg(second.pid, signal.SIGINT)
        assert (second.wait(60), second.stderr.read()) == (130, sentence.format("SIGINT", step()))
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
    steps = [int(row["step"]) for row in rows(tmp_path / "run")]
    assert steps == list(range(1, steps[-1] + 1))
