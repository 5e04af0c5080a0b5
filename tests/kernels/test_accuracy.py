"""The comparison itself: what it lets pass and what it must not."""

import pytest
import torch

from tests.accuracy import assert_accurate, assert_rounded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_passes_one_rounding_and_rejects_faults_small_or_local(dtype: torch.dtype) -> None:
    exact = torch.randn(64, 256, dtype=torch.float64)
    best = exact.float()
    good = best.to(dtype)
    assert_accurate("rounded once", good, exact, best)
    one_wrong = good.clone()
    one_wrong[3, 5] += 0.1
    for fault in (torch.zeros_like(good), (exact * 1.01).to(dtype), one_wrong, good.roll(1, 0), good * torch.nan):
        with pytest.raises(AssertionError):
            assert_accurate("faulty", fault, exact, best)


def test_cancelled_terms_excuse_their_own_roundings_only() -> None:
    exact = torch.full((4,), 1e-6, dtype=torch.float64)
    terms = torch.ones(4)
    assert_accurate("rounded terms", (exact + 5e-8).float(), exact, exact.float(), terms)
    with pytest.raises(AssertionError):
        assert_accurate("zero", torch.zeros(4), exact, exact.float(), terms)


def test_rejects_a_sum_of_the_wrong_shape() -> None:
    with pytest.raises(AssertionError, match="not"):
        assert_accurate("broadcast", torch.zeros(1), torch.zeros(3, dtype=torch.float64), torch.zeros(3))


def test_rounded_means_every_bit() -> None:
    wide = torch.randn(1000)
    assert_rounded("stream", wide.half(), wide)
    with pytest.raises(AssertionError):
        assert_rounded("stream", (wide * (1 + 2**-10)).half(), wide)
