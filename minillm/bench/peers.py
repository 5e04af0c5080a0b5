"""RMSNorm by the libraries that people use today, an adapter each. A library that is not installed is named as missing.

An adapter imports its library when it is built, not before: importing costs seconds.
"""

import importlib
from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from minillm.bench.op import Case, Function, Implementation


def importable(module: str, package: str) -> str:
    """Why `module` of `package` cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a GPU library without its GPU fails in ways of its own, not only by ImportError
        installed = not (isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name)))
        return f"{package} cannot be imported ({error})" if installed else f"{package} is not installed"
    return ""


def adapter(module: str, package: str, build: Callable[[ModuleType, Case], Function]) -> Implementation:
    """`build(module, case)`, for a module that may not be there."""
    missing = importable(module, package)
    return Implementation(lambda case: build(importlib.import_module(module), case), missing=missing)


def rms_norm_peers(eps: float) -> dict[str, Implementation]:
    """f(x, weight) -> (y,)."""

    def liger(ops: ModuleType, case: Case) -> Function:
        # in_place=False: by default Liger writes dX over the caller's gradient, which another user of it still needs.
        def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor]:
            return (ops.LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False).to(case.out_dtype),)

        return rms_norm

    def quack(library: ModuleType, case: Case) -> Function:
        return lambda x, weight: (library.rmsnorm(x, weight, out_dtype=case.out_dtype, eps=eps),)

    return {
        "liger": adapter("liger_kernel.ops.rms_norm", "liger-kernel", liger),
        "quack": adapter("quack", "quack-kernels", quack),
    }


def add_rms_norm_peers(eps: float) -> dict[str, Implementation]:
    """f(x, residual, weight) -> (y, stream)."""

    def liger(ops: ModuleType, case: Case) -> Function:
        def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            y, stream = ops.LigerFusedAddRMSNormFunction.apply(x, residual, weight, eps, 0.0, "llama", False)
            return y.to(case.out_dtype), stream

        return add_rms_norm

    def quack(library: ModuleType, case: Case) -> Function:
        def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            options = {"out_dtype": case.out_dtype, "residual_dtype": residual.dtype, "eps": eps, "prenorm": True}
            y, stream = library.rmsnorm(x, weight, residual=residual, **options)
            return y, stream

        return add_rms_norm

    return {
        "liger": adapter("liger_kernel.ops.fused_add_rms_norm", "liger-kernel", liger),
        "quack": adapter("quack", "quack-kernels", quack),
    }
