"""The interval covers, the verdict is rarely wrong: on synthetic rounds whose truth is known."""

import math
import random
from collections.abc import Sequence
from statistics import fmean

import pytest

from minillm.compare.statistics import Verdict, interval, ratio, rounds_needed, scatter, t_quantile, verdict

SIMULATIONS = 2000


def rounds(draw: random.Random, truth: float, n: int = 6) -> list[list[float]]:
    """Of n rounds, the log-ratios of pairs of windows as they come about: 1% between processes, windows 1% apart, a
    clock that drifts by 2%."""
    samples = []
    for _ in range(n):
        processes = [draw.gauss(0, 0.01), math.log(truth) + draw.gauss(0, 0.01)]
        drift, pairs = draw.gauss(0, 0.02), []
        for turns in ((0, 1), (1, 0), (0, 1), (1, 0)):  # A B B A A B B A
            speeds = {}
            for variant in turns:
                drift += 0.001
                speeds[variant] = processes[variant] + drift + draw.gauss(0, 0.01)
            pairs.append(speeds[1] - speeds[0])
        samples.append(pairs)
    return samples


def judged(pairs: Sequence[Sequence[float]]) -> Verdict:
    return verdict([fmean(one) for one in pairs], scattered=scatter(pairs))


def share(event: list[bool]) -> float:
    return sum(event) / len(event)


def test_t_is_students() -> None:
    published = {1: 12.7062, 2: 4.30265, 3: 3.18245, 5: 2.57058, 10: 2.22814, 30: 2.04227, 120: 1.97993}
    assert {df: t_quantile(df) for df in published} == pytest.approx(published, rel=1e-5)
    assert t_quantile(7, 0.99) == pytest.approx(3.49948, rel=1e-5)


@pytest.mark.parametrize("truth", [1.0, 1.27])
def test_the_interval_holds_the_truth_in_93_to_97_percent(truth: float) -> None:
    draw = random.Random(1)
    drawn = [rounds(draw, truth) for _ in range(SIMULATIONS)]
    ends = [interval([fmean(one) for one in pairs], scatter(pairs)) for pairs in drawn]
    assert 0.93 <= share([low <= math.log(truth) <= high for low, high in ends]) <= 0.97


def test_equal_variants_are_called_different_in_at_most_5_percent() -> None:
    draw = random.Random(2)
    kinds = [judged(rounds(draw, 1.0)).kind for _ in range(SIMULATIONS)]
    assert share([kind in ("faster", "slower") for kind in kinds]) <= 0.05


def test_a_slow_down_of_3_percent_is_found_in_9_of_10_comparisons_of_6_rounds() -> None:
    draw = random.Random(3)
    kinds = [judged(rounds(draw, 1 / 1.03)).kind for _ in range(SIMULATIONS)]
    assert share([kind == "slower" for kind in kinds]) >= 0.9
    assert share([kind in ("faster", "equal") for kind in kinds]) <= 0.01


@pytest.mark.parametrize(
    ("percent", "text"),
    [
        ([24, 24, 24, 23, 24, 24], "1.27x faster [1.26, 1.27]"),
        ([-24, -24, -24, -23, -24, -24], "1.27x slower [1.26, 1.27]"),
        ([0.8, 1.6, 0.8, 1.6, 1.2, 1.0], "1.012x faster [1.008, 1.016]"),
        ([0.2, -0.2, 0.1, -0.1, 0.3, 0], "no difference larger than 1%"),
        ([5, -3, 4, -2, 6, -1], "not decided, needs about 23 more rounds"),
        ([24, 24, 24], "no verdict: 3 round(s), 4 are needed"),
        ([], "no verdict: 0 round(s), 4 are needed"),
    ],
)
def test_the_verdict_says(percent: list[float], text: str) -> None:
    assert verdict([value / 100 for value in percent]).text == text


def test_the_rounds_it_asks_for_usually_decide() -> None:
    draw, decided = random.Random(4), []
    while len(decided) < 200:
        first = rounds(draw, 1.01)
        needed = rounds_needed([fmean(one) for one in first], scatter(first))
        if judged(first).kind == "undecided" and needed < 100:
            decided.append(judged(rounds(draw, 1.01, needed)).kind != "undecided")
    assert share(decided) >= 0.5


def test_rounds_that_lie_closer_together_than_their_windows_are_not_believed() -> None:
    """One and the same norm twice, measured on a GPU whose host set the pace."""
    pairs = [(-0.025, -0.037), (0.031, -0.089), (0.036, -0.075), (-0.059, 0.013)]
    samples = [fmean(pair) for pair in pairs]
    assert verdict(samples).text == "1.026x slower [1.017, 1.035]"
    assert judged(pairs).kind == "undecided"


def test_in_noise_of_windows_alone_four_rounds_are_hardly_ever_wrong() -> None:
    draw, wrong = random.Random(5), []
    for _ in range(SIMULATIONS):
        pairs = [[draw.gauss(0, 0.05) - draw.gauss(0, 0.05) for _ in range(2)] for _ in range(4)]
        wrong.append(judged(pairs).kind in ("faster", "slower"))
    assert share(wrong) <= 0.025  # without the scatter 0.05


def test_mostly_disturbed_rounds_decide_nothing() -> None:
    samples = [0.24, 0.24, 0.24, 0.23]
    assert verdict(samples, disturbed=2).kind == "faster"
    assert verdict(samples, disturbed=3).text == "not decided: 3 of 4 rounds were disturbed"


def test_a_few_rounds_have_a_ratio_and_no_interval() -> None:
    found = ratio([math.log(2), math.log(2)])
    assert found is not None and (found.estimate, found.low, found.rounds) == (pytest.approx(2), None, 2)
