"""A workshop in place of processes, and a machine that nobody else uses."""

from pathlib import Path
from typing import Any

import pytest

from minillm.compare import crew, files
from minillm.compare.process import WorkerError
from minillm.compare.records import Failed, Machine
from minillm.compare.runner import measure
from tests.compare.made import NORMS, Workshop, make_plan, measurement

NASTY = "<script>document.title = 'taken'</script>&"


class QuietMachine:
    def begin(self, pids: list[int]) -> None:
        pass

    def end(self, pids: list[int], gpu: str | None) -> Machine:
        return Machine()


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    """The workers that `runner.measure` gets."""
    workshop = Workshop()
    monkeypatch.setattr(crew, "Worker", workshop)
    monkeypatch.setattr(crew, "Watch", QuietMachine)
    return workshop


@pytest.fixture
def result(shop: Workshop, tmp_path: Path) -> dict[str, Any]:
    """What `files.write` made of three norms, one of them faster, one failed; the second round was disturbed.

    The first norm's name is `NASTY`.
    """
    shop.speed = {"torch": 1.27}
    shop.fails = {"textbook": (0, WorkerError(Failed(error="planted <script>")))}
    plan = make_plan(NORMS)
    first = plan.variants[0].model_copy(update={"name": NASTY})
    plan = plan.model_copy(update={"variants": [first, *plan.variants[1:]]})
    done = measure(measurement(plan), tmp_path, lambda so_far: None, lambda text: None)
    hogged = [turn.model_copy(update={"machine": Machine(other_gpu_processes=1)}) for turn in done.rounds[1].turns]
    rounds = [one.model_copy(update={"turns": hogged}) if one.number == 1 else one for one in done.rounds]
    return files.write(tmp_path, done.model_copy(update={"rounds": rounds}), "finished")
