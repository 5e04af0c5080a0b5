"""Statistics and order of the samples."""

import pytest

from minillm.bench.timing import Summary, interleave, summarize


def test_median_and_deciles_of_known_samples() -> None:
    assert summarize([float(i) for i in range(101)]) == Summary(median=50.0, p10=10.0, p90=90.0, n=101)


def test_one_sample_has_no_spread() -> None:
    with pytest.raises(ValueError, match="no spread"):
        summarize([1.0])


def test_every_round_holds_each_measure_once_in_an_order_of_its_own() -> None:
    taken: list[str] = []
    summaries = interleave({name: lambda name=name: taken.append(name) or 1.0 for name in "abcd"}, rounds=10, seed=0)
    rounds = [tuple(taken[i : i + 4]) for i in range(0, 40, 4)]
    assert all(sorted(r) == list("abcd") for r in rounds)
    assert len(set(rounds)) > 3
    assert all(summary == Summary(1.0, 1.0, 1.0, 10) for summary in summaries.values())


def test_the_same_seed_gives_the_same_order() -> None:
    def order(seed: int) -> list[str]:
        taken: list[str] = []
        interleave({name: lambda name=name: taken.append(name) or 1.0 for name in "abcd"}, rounds=5, seed=seed)
        return taken

    assert order(1) == order(1) != order(2)
