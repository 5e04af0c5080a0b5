"""RMSNorm as the benchmark's operator: its cases and its traffic, by hand."""

import pytest
import torch
from torch import Tensor

from minillm.bench.accuracy import judge
from minillm.bench.config import parse
from minillm.bench.op import Case
from minillm.bench.rms_norm import RMSNorm
from minillm.bench.roofs import fit
from tests.bench.broken import RightClass


def op(*arguments: str) -> RMSNorm:
    return RMSNorm(parse(["op=rms_norm", *arguments]))


@pytest.mark.parametrize(
    ("arguments", "forward", "backward"),  # bytes an element
    [
        ((), 4, 6),
        (("dtype=fp32",), 8, 12),
        (("dtype=fp32", "out_dtype=bf16"), 4 + 2, 2 + 4 + 4),
        (("residual=true",), 8, 8),
        (("residual=true", "dtype=fp32"), 16, 16),
        (("residual=true", "dtype=fp32", "out_dtype=bf16"), 2 + 4 + 4 + 2, 2 + 4 + 4 + 2 + 4),
    ],
)
def test_traffic_is_each_tensor_once_by_its_own_dtype(arguments: tuple[str, ...], forward: int, backward: int) -> None:
    operator = op(*arguments, "width=100", "rows=10")
    (case,) = operator.cases()
    assert operator.traffic(case) == {"forward": 1000 * forward, "backward": 1000 * backward}


def test_the_default_holds_every_width_at_the_roof_and_the_real_sizes() -> None:
    cases = op().cases()
    assert [c.width for c in cases if not c.real] == [512, 768, 1024, 2048, 3072, 4096, 5120, 8192, 16384, 32768, 65536]
    assert all(2**28 - c.width < c.rows * c.width <= 2**28 for c in cases if not c.real)
    assert [c.label for c in cases if c.real] == ["32768 x 768", "16384 x 2048", "8192 x 4096"]
    assert op("sizes=real").cases() == [c for c in cases if c.real]


def test_a_case_shrinks_to_the_free_memory_and_says_so() -> None:
    (case,) = op("width=1024").cases()
    assert fit(case, 56, free=2**40) == (case, "")
    smaller, note = fit(case, 56, free=2**30)
    assert smaller.rows * smaller.width * 56 <= 2**30 < 2 * smaller.rows * smaller.width * 56
    assert "262144 x 1024 shrunk to 16384 x 1024" in note
    assert "1.0 GiB" in note


def test_a_case_of_one_row_is_never_shrunk_away() -> None:
    (case,) = op("width=1024", "rows=1").cases()
    assert isinstance(case, Case)
    assert fit(case, 56, free=0)[0].rows == 1


def test_a_result_of_a_narrower_dtype_is_no_result() -> None:
    operator = op("residual=true", "dtype=fp32", "out_dtype=bf16", "width=64", "rows=4")
    (case,) = operator.cases()

    def narrow_stream(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        y, stream = operator.reference(x, residual, weight)
        return y.to(case.out_dtype), stream.bfloat16()

    with pytest.raises(ValueError, match=r"stream is torch\.bfloat16, not torch\.float32"):
        judge(operator, narrow_stream, case, operator.draw(case, torch.device("cpu")))


def test_a_norm_class_is_moved_to_the_device_when_built_and_not_in_what_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moves: list[object] = []
    move = RightClass.to
    monkeypatch.setattr(RightClass, "to", lambda self, device: moves.append(device) or move(self, device))
    operator = op("width=64", "rows=4")
    (case,) = operator.cases()
    function = operator.load(f"{RightClass.__module__}:RightClass").build(case)
    assert len(moves) == 1
    function(*operator.draw(case, torch.device("cuda" if torch.cuda.is_available() else "cpu")).tensors)
    assert len(moves) == 1
