"""The teaching kernel: one program a row, forward and backward, as accurate as the fast ones."""

import pytest
import torch

from kernels import rms_norm_simple
from tests.kernels.norms import BF16, DEVICE, FP16, FP32, check_norm, draw, draw_weight, leaf


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("width", [1, 3, 127, 1023, 4096])
def test_every_width_that_fits_a_block(width: int, dtype: torch.dtype) -> None:
    check_norm(draw(6, width, dtype=dtype), draw_weight(width, dtype), norm=rms_norm_simple)


def test_the_notes_example() -> None:
    check_norm(draw(2, 3, 4), draw_weight(4), norm=rms_norm_simple)


def test_mixed_dtypes_strides_and_eps() -> None:
    check_norm(draw(5, 48, dtype=BF16), draw_weight(48), norm=rms_norm_simple)
    check_norm(leaf(draw(48, 5).t()), draw_weight(48), norm=rms_norm_simple)
    check_norm(draw(5, 48), draw_weight(48), dy=torch.ones((), device=DEVICE).expand(5, 48), norm=rms_norm_simple)
    check_norm(leaf(draw(5, 48) * 1e-3), draw_weight(48), norm=rms_norm_simple, eps=1e-4)


@pytest.mark.parametrize("settings", [{"block_size": 64}, {"block_size": 256, "num_warps": 1}, {"num_warps": 8}])
def test_the_tile_is_ours_to_choose(settings: dict[str, int]) -> None:
    check_norm(draw(3, 48), draw_weight(48), norm=lambda x, weight: rms_norm_simple(x, weight, **settings))


def test_no_rows() -> None:
    x, weight = draw(0, 8), draw_weight(8)
    y = rms_norm_simple(x, weight)
    dx, dw = torch.autograd.grad(y.sum(), (x, weight))
    assert y.shape == dx.shape == (0, 8)
    assert torch.equal(dw, torch.zeros_like(weight))


def test_frozen_inputs_get_no_gradient() -> None:
    x, weight = draw(3, 48), draw_weight(48)
    dx, dw = torch.autograd.grad(rms_norm_simple(x, weight).sum(), (x, weight))
    rms_norm_simple(x.detach(), weight).sum().backward()
    rms_norm_simple(x, weight.detach()).sum().backward()
    torch.testing.assert_close((x.grad, weight.grad), (dx, dw))
