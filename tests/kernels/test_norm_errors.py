"""What the norms refuse, with the shapes and dtypes at hand, before anything is launched."""

import re
from collections.abc import Callable

import pytest
import torch

from kernels import add_rms_norm, rms_norm, rms_norm_simple
from tests.kernels.norms import BF16, DEVICE, FP32


def zeros(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


Call = Callable[[], object]
X, W = zeros(2, 8), zeros(8)
F64 = torch.float64

WRONG_DTYPES = {
    "x float64": (lambda: rms_norm(X.double(), W), "float64"),
    "x int64": (lambda: rms_norm(X.long(), W), "int64"),
    "weight float64": (lambda: rms_norm(X, W.double()), "float64"),
    "out float64": (lambda: rms_norm(X, W, out_dtype=F64), "float64"),
    "out int32": (lambda: rms_norm(X, W, out_dtype=torch.int32), "int32"),
    "add: x float64": (lambda: add_rms_norm(X.double(), X, W), "float64"),
    "add: residual float64": (lambda: add_rms_norm(X, X.double(), W), "float64"),
    "add: out float64": (lambda: add_rms_norm(X, X, W, out_dtype=F64), "float64"),
    "simple: x float64": (lambda: rms_norm_simple(X.double(), W), "float64"),
    "simple: weight int32": (lambda: rms_norm_simple(X, W.int()), "int32"),
}


@pytest.mark.parametrize(("call", "dtype"), WRONG_DTYPES.values(), ids=WRONG_DTYPES)
def test_other_dtypes_are_refused(call: Call, dtype: str) -> None:
    with pytest.raises(TypeError, match=dtype):
        call()


WRONG_SHAPES = {
    "weight too short": (lambda: rms_norm(X, zeros(7)), "(2, 8)", "(7,)"),
    "weight of one": (lambda: rms_norm(X, zeros(1)), "(2, 8)", "(1,)"),
    "weight 2-D": (lambda: rms_norm(X, zeros(1, 8)), "(2, 8)", "(1, 8)"),
    "no dimension": (lambda: rms_norm(zeros()), "()"),
    "rows of nothing": (lambda: rms_norm(zeros(2, 0), zeros(0)), "(2, 0)"),
    "add: residual broadcasts": (lambda: add_rms_norm(X, zeros(1, 8), W), "(2, 8)", "(1, 8)"),
    "add: residual of another rank": (lambda: add_rms_norm(X, zeros(16), W), "(2, 8)", "(16,)"),
    "add: weight too short": (lambda: add_rms_norm(X, X, zeros(7)), "(2, 8)", "(7,)"),
    "simple: weight too short": (lambda: rms_norm_simple(X, zeros(7)), "(2, 8)", "(7,)"),
    "simple: three warps": (lambda: rms_norm_simple(X, W, num_warps=3), "num_warps=3", "1, 2, 4"),
    "simple: no block": (lambda: rms_norm_simple(X, W, block_size=0), "block of 0", "power of two"),
    "simple: row wider than the block": (lambda: rms_norm_simple(zeros(2, 65), zeros(65), block_size=64), "65", "64"),
}


@pytest.mark.parametrize("case", WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_shapes_that_do_not_fit_are_refused(case: tuple) -> None:
    call, *shapes = case
    with pytest.raises(ValueError, match="(?s)" + "".join(f"(?=.*{re.escape(shape)})" for shape in shapes)):
        call()


@pytest.mark.parametrize("call", [lambda: rms_norm(X, offset=1.0), lambda: add_rms_norm(X, X, offset=1.0)])
def test_an_offset_without_a_weight_is_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="offset"):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: rms_norm(X, W.to("meta")),
        lambda: add_rms_norm(X, X.to("meta"), W),
        lambda: rms_norm_simple(X, W.to("meta")),
    ],
)
def test_tensors_on_two_devices_are_refused(call: Call) -> None:
    with pytest.raises(ValueError, match="meta"):
        call()


@pytest.mark.gpu
def test_cpu_tensors_are_refused_beside_a_gpu() -> None:
    x, weight = torch.zeros(2, 8, dtype=BF16), torch.zeros(8, dtype=BF16)
    for call in (lambda: rms_norm(x, weight), lambda: add_rms_norm(x, x, weight), lambda: rms_norm_simple(x, weight)):
        with pytest.raises(ValueError, match="cpu"):
            call()
