"""The operators by the libraries that people use today, an adapter each. A library that is not there is named as
missing.

An adapter imports its library when it is built, not before: importing costs seconds.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from minillm.bench.op import Case, Function, Implementation
from minillm.errors import UserError


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


def find(name: str, signature: str) -> Any:
    """Somebody's own function, by `package.module:name`. Raises UserError where there is none."""
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{name} was not found ({error}): give package.module:name of a function {signature}"
        ) from error


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


def linear_cross_entropy_peers() -> dict[str, Implementation]:
    """f(hidden, weight, target) -> (sum,)."""

    def liger(accumulate_in: torch.dtype | None) -> Callable[[ModuleType, Case], Function]:
        def build(module: ModuleType, case: Case) -> Function:
            loss = module.LigerFusedLinearCrossEntropyLoss(reduction="sum", accum_dtype=accumulate_in)
            return lambda hidden, weight, target: (loss(weight, hidden, target),)

        return build

    module = "liger_kernel.transformers.fused_linear_cross_entropy"
    return {
        "liger": adapter(module, "liger-kernel", liger(None)),  # adds dW up over its chunks in the weight's dtype
        "liger_fp32": adapter(module, "liger-kernel", liger(torch.float32)),
    }


def rotary_peers(by_rows: Callable[[Any], Function]) -> dict[str, Implementation]:
    """f(qkv, cos, sin, *, num_heads, num_kv_heads) -> (q, k, v), through `by_rows`."""

    @lru_cache(maxsize=2)
    def doubled(table: Tensor) -> Tensor:
        """(1, T, D), as Hugging Face's models make it once a step; in fp32, as in bf16 it would rotate in bf16."""
        return torch.cat((table, table), dim=-1)[None]

    def liger(ops: ModuleType, case: Case) -> Function:
        # Its users project q, k and v apart and have them rotated in place, backward too. Out of one packed projection
        # q and k are copied first, and backward joins the three gradients.
        def rotate(
            qkv: Tensor, cos: Tensor, sin: Tensor, *, num_heads: int, num_kv_heads: int
        ) -> tuple[Tensor, Tensor, Tensor]:
            heads = qkv.unflatten(-1, (num_heads + 2 * num_kv_heads, -1)).transpose(1, 2)
            q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
            q, k = ops.LigerRopeFunction.apply(q, k, doubled(cos), doubled(sin))[:2]
            return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        return by_rows(rotate)

    return {"liger": adapter("liger_kernel.ops.rope", "liger-kernel", liger)}


def swiglu_peers() -> dict[str, Implementation]:
    """f(gate_up) -> (h,)."""

    def liger(ops: ModuleType, case: Case) -> Function:
        return lambda gate_up: (ops.LigerSiLUMulFunction.apply(*gate_up.chunk(2, dim=-1)),)  # copies both halves first

    def liger_packed(ops: ModuleType, case: Case) -> Function:
        return lambda gate_up: (ops.LigerFusedGateUpSiLUMulFunction.apply(gate_up),)

    return {
        "liger": adapter("liger_kernel.ops.swiglu", "liger-kernel", liger),
        "liger_packed": adapter("liger_kernel.ops.swiglu", "liger-kernel", liger_packed),
    }
