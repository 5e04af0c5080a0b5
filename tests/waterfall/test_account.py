"""Floor, countable traffic and waste."""

import pytest

from minillm.bench.step.variants import compose_config
from minillm.waterfall.account import account
from minillm.waterfall.traffic import countable_traffic


def test_what_is_neither_floor_nor_traffic_is_waste() -> None:
    parts = {"matmul: mlp": 10.0, "attention": 4.0, "optimizer": 1.0, "norm": 5.0, "unattributed": 1.0}
    found = account(parts, traffic_bytes=4 * 10**9, roof_gb_per_second=1000, idle_ms=0.5)
    assert (found.floor, found.other, found.traffic, found.idle) == (15.0, 6.0, 4.0, 0.5)
    assert found.waste == 2.5
    assert found.over_traffic == 1.5
    assert found.unattributed == pytest.approx(1 / 21)


def test_without_a_roof_there_is_no_traffic_and_no_waste() -> None:
    found = account({"norm": 1.0}, 10**9, None, None)
    assert (found.traffic, found.waste, found.over_traffic) == (None, None, None)


@pytest.mark.parametrize(("model", "gigabytes"), [("110m", 38.0), ("1b", 75.3)])
def test_traffic_of_the_benchmarks_models(model: str, gigabytes: float) -> None:
    """Counted by hand: norms, rotary, SwiGLU and 6 bytes a logit; the rest is the embedding's and the roundings'."""
    config = compose_config(model, "fused", "auto")
    counted, tokens = config.model, config.batch.micro * config.data.sequence_length
    traffic = countable_traffic(counted, tokens)
    assert counted.vocab_size is not None
    rounding = 6 * counted.hidden_size * (tokens + counted.vocab_size)
    assert (sum(traffic.values()) - traffic["embedding"] - rounding) / 1e9 == pytest.approx(gigabytes, rel=0.01)
