"""Rounds of made workers: who is asked for what, and what is kept when something goes wrong."""

from itertools import pairwise
from pathlib import Path

import pytest

from minillm.compare.process import WorkerError
from minillm.compare.records import Failed, Measurement
from minillm.compare.results import summarize
from minillm.compare.runner import measure
from minillm.errors import UserError
from tests.compare.made import NORMS, Workshop, make_plan, measurement


def run(start: Measurement, folder: Path, saved: list[Measurement] | None = None) -> Measurement:
    return measure(start, folder, (saved if saved is not None else []).append, lambda text: None)


def test_windows_go_there_and_back_and_each_round_starts_anew(shop: Workshop, tmp_path: Path) -> None:
    done = run(measurement(), tmp_path)
    assert len(done.rounds) == 4
    orders = [tuple(turn.variant for turn in one.turns if turn.sweep is not None) for one in done.rounds]
    assert set(orders) == {(0, 1, 1, 0), (1, 0, 0, 1)}  # either is first, in some round
    assert [told for _, told in shop.log].count("start") == 8
    assert {one.seed for one in done.rounds} == {0, 1, 2}
    assert shop.living == []


def test_the_known_ratio_is_found(shop: Workshop, tmp_path: Path) -> None:
    shop.speed = {"torch": 1.27}
    (_, faster) = summarize(run(measurement(), tmp_path), "finished")["variants"]
    assert faster["ratio"]["estimate"] == pytest.approx(1.27, rel=0.01)
    assert faster["ratio"]["low"] < 1.27 < faster["ratio"]["high"]
    assert faster["verdict"]["kind"] == "faster"


def test_a_clock_that_drifts_meets_all_variants_alike(shop: Workshop, tmp_path: Path) -> None:
    shop.noise, shop.speed = 0.0, {"torch": 1.27}

    def slower() -> None:
        shop.drift *= 0.99

    shop.before_turn = slower
    (_, faster) = summarize(run(measurement(), tmp_path), "finished")["variants"]
    assert faster["ratio"]["estimate"] == pytest.approx(1.27, rel=1e-9)


def test_no_two_train_at_the_same_time_and_none_while_one_starts(shop: Workshop, tmp_path: Path) -> None:
    run(measurement(), tmp_path)
    told = [what for _, what in shop.log]
    for before, after in pairwise(i for i, what in enumerate(told) if what == "start"):
        assert after == before + 1 or all(what != "start" for what in told[before + 1 : after])
    assert told[:4] == ["start", "start", "3", "3"]  # both start, both settle


def test_what_fails_does_not_lose_the_others(shop: Workshop, tmp_path: Path) -> None:
    shop.fails = {"torch": (2, WorkerError(Failed(error="planted")))}
    done = run(measurement(make_plan(NORMS)), tmp_path)
    result = summarize(done, "finished")
    assert [variant["status"] for variant in result["variants"]] == ["ok", "failed", "ok"]
    assert result["variants"][1]["error"] == "planted"
    assert len(result["variants"][2]["rounds"]) == 4
    assert shop.log.count(("torch", "start")) == 1


def test_all_that_fail_end_it(shop: Workshop, tmp_path: Path) -> None:
    error = WorkerError(Failed(error="planted"))
    shop.fails = {"eager": (0, error), "torch": (0, error)}
    done = run(measurement(), tmp_path)
    assert (len(done.rounds), done.schedule) == (1, None)
    assert summarize(done, "finished")["variants"][0]["error"] == "planted"


@pytest.mark.parametrize("memory", [0.6, 0.48])  # the second start fails; it succeeds and leaves too little
def test_what_does_not_fit_together_alternates(shop: Workshop, tmp_path: Path, memory: float) -> None:
    shop.memory = {"eager": memory, "torch": memory}
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, len(shop.living))

    shop.before_turn = look
    done = run(measurement(), tmp_path)
    assert done.schedule is not None and not done.schedule.together
    assert most == 1
    assert all(not one.failed and len([t for t in one.turns if t.sweep is not None]) == 4 for one in done.rounds)
    assert len(summarize(done, "finished")["variants"][1]["rounds"]) == 4


def test_an_interrupted_comparison_is_kept_and_goes_on(shop: Workshop, tmp_path: Path) -> None:
    saved: list[Measurement] = []

    def interrupt() -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt

    shop.before_turn = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(measurement(), tmp_path, saved)
    assert len(saved[-1].rounds) == 2
    assert shop.living == []
    shop.before_turn = lambda: None
    read_back = Measurement.model_validate_json(saved[-1].model_dump_json())
    done = run(read_back, tmp_path)
    assert [one.number for one in done.rounds] == [0, 1, 2, 3]
    assert done.rounds[:2] == saved[-1].rounds


@pytest.mark.parametrize(
    ("planted", "sentence"),
    [
        ({"env": {"torch": {"torch": "2.14"}}}, "env.torch differs: 2.13 (norm=eager), 2.14 (norm=torch)"),
        ({"env": {"torch": {"device": "another"}}}, "env.device differs"),
        ({"samples": {"torch": "other"}}, "the order of the data differs"),
    ],
)
def test_what_differs_in_more_than_its_name_is_refused(
    shop: Workshop, tmp_path: Path, planted: dict, sentence: str
) -> None:
    vars(shop).update(planted)
    with pytest.raises(UserError, match="not comparable") as caught:
        run(measurement(), tmp_path)
    assert sentence in str(caught.value)
    assert shop.living == []


def test_versions_that_change_between_rounds_are_refused(shop: Workshop, tmp_path: Path) -> None:
    saved: list[Measurement] = []
    done = run(measurement(), tmp_path, saved)
    shop.env = {norm: {"torch": "2.14"} for norm in NORMS}
    with pytest.raises(UserError, match=r"2.14 \(round 3\)"):
        run(done.model_copy(update={"rounds": done.rounds[:2]}), tmp_path)


def test_a_plan_whose_configurations_differ_beyond_its_keys_is_refused(shop: Workshop, tmp_path: Path) -> None:
    plan = make_plan().model_copy(update={"varied": ["rope"]})
    with pytest.raises(UserError, match=r"norm.name differs: eager \(norm=eager\), torch"):
        run(measurement(plan), tmp_path)
    assert shop.log == []
