"""Real workers: real training, a few steps of it."""

from pathlib import Path

import pytest

from minillm.compare.plan import Options, Plan, Variant
from minillm.compare.process import Worker, WorkerError
from minillm.compare.records import Measurement, Schedule
from minillm.compare.results import summarize
from minillm.compare.runner import measure
from minillm.compare.worker import Job
from tests.training.conftest import make_config

pytestmark = pytest.mark.process


def test_a_round_of_a_norm_a_slower_and_a_broken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_US", "3000")
    names = [f"tests.compare.planted:{name}" for name in ("Plain", "Slowed", "Broken")]
    variants = [Variant(name=name, config=make_config({"norm.name": name})) for name in names]
    plan = Plan(varied=["norm"], variants=variants, options=Options(rounds=4))
    schedule = Schedule(rounds=1, sweeps=2, steps=10, together=True, seconds=0)
    start = Measurement(plan=plan, command="", started="", schedule=schedule)
    result = summarize(measure(start, tmp_path, lambda so_far: None, lambda text: None), "finished")
    plain, slowed, broken = result["variants"]
    assert plain["losses"] == slowed["losses"]
    assert len(plain["losses"]["0"]) == 3 + 3 + 2 * 10 > make_config().trainer.max_steps
    assert slowed["parity"]["text"] == "loss +0: the same training, to the last bit"
    # 5 norms wait for 3 ms each in a step: no speed is asserted, but that the wait is in the steps
    assert slowed["step_ms"]["p10"] > 15
    assert (broken["status"], broken["error"]) == ("failed", "planted")
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_worker_ends_when_the_runner_does(tmp_path: Path) -> None:
    worker = Worker(Job(config=make_config(), folder=tmp_path), tmp_path / "log.txt")
    ready = worker.ready()
    assert ready.warmup.losses and ready.corpus["hash"]
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # as the runner's end does, whatever ended it
    assert worker.process.wait(60) == 0


def test_a_worker_that_cannot_run_here_says_so(tmp_path: Path) -> None:
    config = make_config({"trainer.precision": "16-mixed"})
    worker = Worker(Job(config=config, folder=tmp_path), tmp_path / "log.txt")
    with pytest.raises(WorkerError, match="16-mixed needs a GPU") as caught:
        worker.ready()
    assert caught.value.failed.refused
    worker.stop()


def test_a_worker_that_is_killed_leaves_its_last_words(tmp_path: Path) -> None:
    worker = Worker(Job(config=make_config(), folder=tmp_path), tmp_path / "log.txt")
    worker.kill()
    worker.log.write_text("this\nwas last\n\n")
    with pytest.raises(WorkerError, match="status -9: was last"):
        worker.ready()
