"""Every norm of the model is the same function, threads the stream and has the same parameters."""

import pytest
import torch
from torch import Tensor, nn

import kernels
from minillm.config import NormConfig
from minillm.errors import UserError
from minillm.layers.norm import IMPLEMENTATIONS, build_norm

DIM = 48
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAMES = [name for name in IMPLEMENTATIONS if name != "compiled" or DEVICE == "cuda"]  # compiling on a CPU needs g++


class Outside(nn.Module):
    """Somebody's norm: it knows of no stream."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Biased(Outside):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__(dim, eps)
        self.bias = nn.Parameter(torch.zeros(dim))


def outside(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return nn.functional.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def build(name: str, residual_dtype: torch.dtype | None = None, fuse: bool = True) -> nn.Module:
    norm = build_norm(NormConfig(name=name, fuse_residual=fuse), DIM, 1e-6, residual_dtype).to(DEVICE)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2.0, DIM))
    return norm


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))


def chain(norm: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Two norms of one stream, and every gradient there is."""
    x = x.clone().requires_grad_()
    first, stream = norm(x, None)
    second, stream = norm(first, stream)
    (second.square().sum() + stream.sin().sum()).backward()
    assert x.grad is not None
    return second.detach(), stream.detach(), x.grad, norm.weight.grad


@pytest.mark.parametrize("name", [*NAMES, f"{__name__}:Outside", f"{__name__}:outside"])
def test_all_norms_are_one_function_with_one_parameter(name: str) -> None:
    x = draw(2, 5, DIM)
    for got, want in zip(chain(build(name), x), chain(build("eager").double(), x.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2e-5, atol=2e-5)
    assert [(n, p.shape) for n, p in build(name).named_parameters()] == [("weight", (DIM,))]


def test_fusing_the_addition_changes_nothing_but_the_kernels() -> None:
    for fused, plain in zip(
        chain(build("triton"), draw(7, DIM)), chain(build("triton", fuse=False), draw(7, DIM)), strict=True
    ):
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, f"{__name__}:Outside"])
@pytest.mark.parametrize("residual_dtype", [None, torch.float32])
def test_under_autocast_y_has_its_dtype_and_the_stream_its_own(name: str, residual_dtype: torch.dtype | None) -> None:
    norm = build(name, residual_dtype)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y, stream = norm(draw(3, DIM), None)
        again, stream = norm(y, stream)
    assert (y.dtype, again.dtype) == (torch.bfloat16, torch.bfloat16)
    assert stream.dtype == (residual_dtype or torch.bfloat16)


def test_the_stream_keeps_what_bf16_would_lose_where_it_is_fp32() -> None:
    small = torch.full((1, DIM), 2.0**-10, device=DEVICE, dtype=torch.bfloat16)
    one = torch.ones(1, DIM, device=DEVICE)
    _, stream = build("triton", torch.float32)(small, one)
    assert torch.equal(stream, one + 2.0**-10)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{__name__}:Biased", "one parameter, `weight`"),
        (f"{__name__}:DIM", "must be an nn.Module class or a function"),
    ],
)
def test_what_is_no_norm_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(name)


def test_a_row_wider_than_the_simple_kernels_block_is_refused() -> None:
    with pytest.raises(UserError, match="use norm=triton"):
        build_norm(NormConfig(name="triton_simple"), kernels.MAX_BLOCK_SIZE + 1, 1e-6)
