"""The reference, anchored from outside: PyTorch's float64 norm, finite differences, transformers' Llama."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.reference import add_rms_norm, rms_norm


def doubles(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def test_equals_pytorch_in_float64() -> None:
    x, weight, residual = doubles(3, 5, 48), doubles(48), doubles(3, 5, 48)
    torch.testing.assert_close(rms_norm(x, weight, eps=1e-5), F.rms_norm(x, (48,), weight, 1e-5))
    torch.testing.assert_close(rms_norm(x), F.rms_norm(x, (48,), None, 1e-6))
    torch.testing.assert_close(rms_norm(x, weight, offset=1.0), F.rms_norm(x, (48,), weight + 1, 1e-6))
    y, stream = add_rms_norm(x, residual, weight)
    torch.testing.assert_close(stream, x + residual)
    torch.testing.assert_close(y, F.rms_norm(x + residual, (48,), weight, 1e-6))


def test_gradients_equal_finite_differences() -> None:
    x, residual, weight = doubles(2, 7), doubles(2, 7), doubles(7)
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, eps=0.1, offset=1.0), (x, weight))
    assert torch.autograd.gradcheck(lambda x, r, w: add_rms_norm(x, r, w, eps=0.1), (x, residual, weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_llama_of_transformers(dtype: torch.dtype) -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    theirs = llama.LlamaRMSNorm(64, eps=1e-5).to(dtype)
    x = torch.randn(4, 64).to(dtype)
    torch.testing.assert_close(
        rms_norm(x, theirs.weight, eps=1e-5), theirs(x)
    )  # the weight is 1: nothing rounds between


def test_normalises_the_rounded_stream_and_keeps_its_gradient_wide() -> None:
    x, residual = torch.randn(4, 64).requires_grad_(), torch.randn(4, 64).bfloat16().requires_grad_()
    y, stream = add_rms_norm(x, residual)
    assert stream.dtype == torch.bfloat16
    assert torch.equal(y, rms_norm(stream.float()))
    dx, dresidual = torch.autograd.grad((y, stream), (x, residual), (torch.randn_like(y), torch.randn_like(stream)))
    assert torch.equal(dresidual, dx.bfloat16())
    assert not torch.equal(dx, dx.bfloat16().float())  # not rounded on its way through the stream


def test_an_offset_needs_a_weight() -> None:
    with pytest.raises(ValueError, match="offset"):
        rms_norm(torch.ones(2, 8), offset=1.0)
