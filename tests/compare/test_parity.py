"""Whether training is the same is said beside what rounding and seeds make."""

from pathlib import Path

import pytest

from minillm.compare.parity import judged, largest, parity
from minillm.compare.process import WorkerError
from minillm.compare.records import Failed, Measurement
from minillm.compare.runner import measure
from tests.compare.made import NORMS, Workshop, make_plan, measurement


def run(folder: Path, norms: tuple[str, ...], **options: int) -> Measurement:
    return measure(measurement(make_plan(norms, **options)), folder, lambda so_far: None, lambda text: None)


def test_the_difference_is_paired_by_seed_and_step(shop: Workshop, tmp_path: Path) -> None:
    shop.offset = {"textbook": 0.002, "torch": -0.0015}
    found = parity(run(tmp_path, NORMS), 2)
    assert found is not None
    assert (found.difference, found.rounding) == (pytest.approx(0.002), pytest.approx(-0.0015))
    assert found.seeds == pytest.approx(0.1)  # three seeds, each 0.1 above the one before
    assert found.kind == "same"


def test_the_yardstick_is_run_where_it_is_not_among_the_variants(shop: Workshop, tmp_path: Path) -> None:
    shop.offset = {"textbook": 0.01, "torch": 0.001}
    done = run(tmp_path, ("eager", "textbook"))
    found = parity(done, 1)
    assert ("torch", "start") in shop.log and found is not None
    assert (found.rounding, found.kind) == (pytest.approx(0.001), "small")


def test_a_yardstick_that_fails_leaves_the_comparison_whole(shop: Workshop, tmp_path: Path) -> None:
    shop.fails = {"torch": (0, WorkerError(Failed(error="planted")))}
    done = run(tmp_path, ("eager", "textbook"), seeds=1)
    found = parity(done, 1)
    assert len(done.rounds) == 4 and found is not None
    assert (found.rounding, found.seeds, found.kind) == (None, None, "same")


def test_only_steps_that_both_took_are_compared() -> None:
    assert largest({0: [3.0, 2.0, 1.0]}, {0: [3.0, 2.0], 1: [9.0]}) == 0.0
    assert largest({0: [3.0]}, {1: [3.0]}) is None


@pytest.mark.parametrize(
    ("difference", "rounding", "seeds", "kind"),
    [
        (0.0, None, None, "same"),
        (1e-4, 1e-4, 0.05, "same"),
        (1e-3, 1e-4, 0.05, "small"),
        (0.1, 1e-4, 0.05, "different"),
        (1e-3, 0.0, 0.05, "small"),  # a yardstick that came out bit-equal measures nothing
        (1e-3, 1e-4, None, "unknown"),
    ],
)
def test_the_words_follow_the_yardsticks(
    difference: float, rounding: float | None, seeds: float | None, kind: str
) -> None:
    assert judged(difference, rounding, seeds)[0] == kind
