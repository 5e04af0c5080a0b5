"""rms_norm and add_rms_norm are right at every width, row count and mix of dtypes."""

import pytest
import torch

from kernels import add_rms_norm, rms_norm
from tests.kernels.norms import BF16, DEVICE, FP16, FP32, check_add_norm, check_norm, draw, draw_weight, leaf

# A tail that spills into the next row shows at odd widths, a padded tile at 48 and 768, a chunked row at the end.
WIDTHS = [1, 2, 7, 41, 48, 127, 128, 513, 768, 769, 1023, 1024, 5120, 16384]
SHAPES = [*((5, width, dtype) for width in WIDTHS for dtype in (FP32, BF16)), (2, 40000, BF16), (1, 262144, FP32)]


@pytest.mark.parametrize(("rows", "width", "dtype"), SHAPES)
def test_every_width(rows: int, width: int, dtype: torch.dtype) -> None:
    check_norm(draw(rows, width, dtype=dtype), draw_weight(width, dtype))
    check_add_norm(draw(rows, width, dtype=dtype), draw(rows, width, dtype=dtype), draw_weight(width, dtype))


@pytest.mark.parametrize("rows", [1, 2, 3, 1025, 2049])
@pytest.mark.parametrize("width", [2, 7, 48])
def test_every_row_count(rows: int, width: int) -> None:
    weight = draw_weight(width, FP16)  # the interpreter adds up rows one by one: too coarse for an fp32 dW
    check_norm(draw(rows, width), weight)
    check_add_norm(draw(rows, width, dtype=FP16), draw(rows, width), weight)


@pytest.mark.parametrize("shape", [(40,), (1, 40), (2, 3, 40), (2, 1, 3, 2, 40)])
def test_any_rank(shape: tuple[int, ...]) -> None:
    check_norm(draw(*shape), draw_weight(40))
    check_add_norm(draw(*shape), draw(*shape), draw_weight(40))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_no_rows_give_no_output_and_a_zero_weight_gradient(shape: tuple[int, ...]) -> None:
    x, residual, weight = draw(*shape, dtype=BF16), draw(*shape), draw_weight(8)
    y = rms_norm(x, weight)
    y_added, stream = add_rms_norm(x, residual, weight)
    assert (y.shape, y_added.shape, stream.shape, stream.dtype) == (shape, shape, shape, FP32)
    for output in (y, y_added):
        dx, dw = torch.autograd.grad(output.sum(), (x, weight))
        assert (dx.shape, dx.dtype) == (shape, BF16)
        assert torch.equal(dw, torch.zeros_like(weight))
    check_norm(draw(3, 8), draw_weight(8))  # and the next launch is well


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype", "out_dtype"),
    [
        (FP16, FP16, None),
        (BF16, FP32, None),  # bf16-mixed
        (FP32, FP32, BF16),  # an fp32 stream
        (FP32, BF16, FP16),
        (FP16, BF16, FP32),
        (BF16, None, FP32),
        (FP32, None, FP16),
    ],
)
def test_every_mix_of_dtypes(
    x_dtype: torch.dtype, weight_dtype: torch.dtype | None, out_dtype: torch.dtype | None
) -> None:
    weight = draw_weight(96, weight_dtype) if weight_dtype else None
    check_norm(draw(9, 96, dtype=x_dtype), weight, out_dtype=out_dtype)


@pytest.mark.parametrize(
    ("x_dtype", "residual_dtype", "weight_dtype", "out_dtype"),
    [
        (FP16, FP16, FP16, None),
        (BF16, FP32, FP32, None),
        (BF16, BF16, FP32, FP32),  # y shows the stream's rounding
        (FP32, BF16, BF16, None),
        (FP32, FP16, FP32, BF16),
        (FP16, BF16, None, FP32),
        (FP32, FP32, None, FP16),
    ],
)
def test_every_mix_of_dtypes_with_a_stream(
    x_dtype: torch.dtype, residual_dtype: torch.dtype, weight_dtype: torch.dtype | None, out_dtype: torch.dtype | None
) -> None:
    weight = draw_weight(96, weight_dtype) if weight_dtype else None
    check_add_norm(draw(9, 96, dtype=x_dtype), draw(9, 96, dtype=residual_dtype), weight, out_dtype=out_dtype)


def test_the_offset_is_added_to_the_weight_in_fp32() -> None:
    tiny = (torch.rand(64, device=DEVICE) * 1e-3).to(BF16).requires_grad_()  # 1 + tiny would be 1 in bf16
    check_norm(draw(5, 64), tiny, offset=1.0)
    check_add_norm(draw(5, 64), draw(5, 64), tiny, offset=1.0)


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_eps_counts_where_the_input_is_tiny(eps: float) -> None:
    x, residual = leaf(draw(5, 64) * 1e-4), leaf(draw(5, 64) * 1e-4)
    check_norm(x, draw_weight(64), eps=eps)
    check_add_norm(x, residual, draw_weight(64), eps=eps)


def test_squares_do_not_overflow_in_fp16() -> None:
    x = torch.full((3, 64), 300.0, dtype=FP16, device=DEVICE)
    weight = draw_weight(64, FP16)
    assert torch.equal(rms_norm(x, weight), weight.expand(3, 64))
    y, stream = add_rms_norm(x, torch.zeros_like(x), weight)
    assert torch.equal(y, weight.expand(3, 64))
    assert torch.equal(stream, x)


def test_a_zero_input_gives_a_zero_weight_gradient_and_a_finite_input_gradient() -> None:
    x, weight = torch.zeros(6, 48, device=DEVICE, requires_grad=True), draw_weight(48)
    for _ in range(3):
        check_norm(x, weight)
        y, _ = add_rms_norm(x, torch.zeros_like(x), weight)
        dx, dw = torch.autograd.grad(y, (x, weight), torch.randn_like(y))
        assert torch.equal(dw, torch.zeros_like(weight))
        assert dx.isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("width", [7, 1024])
def test_a_broken_row_stays_alone(bad: float, width: int) -> None:
    x, weight, dy = draw(9, width), draw_weight(width), draw(9, width)
    broken = x.detach().clone()
    broken[4, 3] = bad

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        y, stream = add_rms_norm(leaf(x), residual := leaf(dy), weight)
        return [y, stream, *torch.autograd.grad(y, residual, dy), rms_norm(x, weight)]

    others = torch.arange(9, device=DEVICE) != 4
    for clean, dirty in zip(run(x), run(broken), strict=True):
        assert torch.equal(clean[others], dirty[others])
        assert not dirty[4].isfinite().all()


def test_the_weight_gradient_has_one_rounding_however_many_rows() -> None:
    rows = 4096 if DEVICE.type == "cpu" else 65536
    x, weight = draw(rows, 16, dtype=BF16), draw_weight(16, BF16)
    check_norm(x, weight)
    check_norm(x, weight, dy=x.detach())  # every term of the sum is positive: a sum in bf16 would stand still at 256
    check_add_norm(x, draw(rows, 16, dtype=BF16), weight)


@pytest.mark.parametrize("shape", [(700, 48), (5, 5120)])
def test_same_input_twice_gives_the_same_bits(shape: tuple[int, int]) -> None:
    x, weight, dy = draw(*shape), draw_weight(shape[1]), draw(*shape)

    def run() -> list[torch.Tensor]:
        y, stream = add_rms_norm(x, dy, weight)
        return [y, stream, *torch.autograd.grad((y, stream), (x, weight), (dy, dy))]

    assert all(torch.equal(first, second) for first, second in zip(run(), run(), strict=True))


def test_autocast_is_ignored() -> None:
    x, residual, weight = draw(4, 64), draw(4, 64), draw_weight(64)
    outside = rms_norm(x, weight), *add_rms_norm(x, residual, weight)
    with torch.autocast(DEVICE.type, dtype=BF16):
        inside = rms_norm(x, weight), *add_rms_norm(x, residual, weight)
        dx, dw = torch.autograd.grad(inside[0].sum(), (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))
    assert (dx.dtype, dw.dtype) == (FP32, FP32)
