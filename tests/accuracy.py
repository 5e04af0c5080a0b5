"""How far a result may be from float64: twice as far as PyTorch's best result in the same dtype, plus one rounding.

PyTorch's best is the function computed in fp32 and rounded once to the dtype. Two measures have to hold, the relative
L2 error, which sees a small fault everywhere, and the largest error, which sees a fault in one element.
"""

import torch
from torch import Tensor

from kernels.operator import INTERPRETED


def cuts_off(dtype: torch.dtype) -> bool:
    """Whether a store to this dtype cuts digits off instead of rounding: bf16 in Triton's interpreter."""
    return INTERPRETED and dtype == torch.bfloat16


def one_rounding(dtype: torch.dtype) -> float:
    """The largest relative error of one store: half an ulp, or a whole one where digits are cut off."""
    return torch.finfo(dtype).eps * (1.0 if cuts_off(dtype) else 0.5)


def assert_accurate(name: str, actual: Tensor, exact: Tensor, best: Tensor, terms: Tensor | None = None) -> None:
    """Fail unless `actual` is as near to `exact` (float64) as the docstring of this module says.

    best: PyTorch's result in fp32. It is rounded here to actual's dtype, unless the kernel cannot round either.
    terms: the size of what was added up, where much may cancel: four fp32 roundings of *that* are allowed as well,
    since each term is itself a product of rounded numbers.
    """
    assert actual.shape == exact.shape == best.shape, f"{name}: {actual.shape}, not {exact.shape}"
    if actual.numel() == 0:
        return
    error = actual.double() - exact
    best_error = (best if cuts_off(actual.dtype) else best.to(actual.dtype)).double() - exact
    for measure, size in (("L2", torch.linalg.vector_norm), ("largest", lambda t: t.abs().max())):
        allowed = 2 * size(best_error) + one_rounding(actual.dtype) * size(exact)
        if terms is not None:
            allowed += 4 * one_rounding(torch.float32) * size(terms.double())
        assert size(error) <= allowed, f"{name}: {measure} error {size(error):.3g}, allowed {allowed:.3g}"


def assert_rounded(name: str, actual: Tensor, wide: Tensor) -> None:
    """Fail unless `actual` is `wide` (fp32) rounded to nearest, bit by bit, or to 1 ulp where digits are cut off."""
    rounded = wide.to(actual.dtype)
    if cuts_off(actual.dtype):
        torch.testing.assert_close(actual, rounded, rtol=one_rounding(actual.dtype), atol=0)
    else:
        assert torch.equal(actual, rounded), f"{name}: not rounded to nearest"
