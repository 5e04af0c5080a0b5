"""RMSNorm by name: y = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019), over the last dimension.

An implementation is two functions: `normalize(x, weight, eps, out_dtype) -> y`, and one that first adds to the residual
stream, which a kernel can do in the same go. `Norm` owns the weight and threads the stream, so all implementations have
the same parameters: a checkpoint trained with one loads with any other.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from minillm.config import NormConfig
from minillm.errors import UserError
from minillm.layers.precision import activation_dtype

Normalize = Callable[[Tensor, Tensor, float, torch.dtype], Tensor]
AddNormalize = Callable[[Tensor, Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]]


def textbook(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
    """The formula, operation by operation, in the dtype of x: in bf16 its statistics lose digits."""
    mean_square = x.pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(mean_square + eps) * weight.to(x.dtype)).to(out_dtype)


def eager(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
    """fp32 inside, rounded before the weight is applied, as Hugging Face's Llama does."""
    x32 = x.float()
    y = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight.to(out_dtype) * y.to(out_dtype)


def torch_fused(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
    """PyTorch's own kernel; it is one kernel only where the weight has x's dtype."""
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps).to(out_dtype)


def triton_simple(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
    """The teaching kernel: one program a row."""
    return kernels.rms_norm_simple(x, weight, eps).to(out_dtype)


def triton(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
    """Ours."""
    return kernels.rms_norm(x, weight, eps=eps, out_dtype=out_dtype)


def triton_add(x: Tensor, stream: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Ours, the addition in the same kernel."""
    return kernels.add_rms_norm(x, stream, weight, eps=eps, out_dtype=out_dtype)


def add_then(normalize: Normalize) -> AddNormalize:
    """The addition as an operation of its own, before the norm."""

    def add_normalize(
        x: Tensor, stream: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        stream = stream + x
        return normalize(stream, weight, eps, out_dtype), stream

    return add_normalize


@dataclass(frozen=True)
class Implementation:
    """What runs under a name."""

    normalize: Normalize
    add_normalize: AddNormalize
    compiled: bool = False  # both through torch.compile
    needs_triton: bool = False


IMPLEMENTATIONS: dict[str, Implementation] = {
    "textbook": Implementation(textbook, add_then(textbook)),
    "eager": Implementation(eager, add_then(eager)),
    "torch": Implementation(torch_fused, add_then(torch_fused)),
    "compiled": Implementation(eager, add_then(eager), compiled=True),
    "triton_simple": Implementation(triton_simple, add_then(triton_simple), needs_triton=True),
    "triton": Implementation(triton, triton_add, needs_triton=True),
}


@cache
def compile_once(function: Callable) -> Callable:
    """torch.compile of it, shared by all norms of all models: one set of compiled variants, not one a layer."""
    return torch.compile(function, dynamic=False)


class Norm(nn.Module):
    """One RMSNorm of the model: `y, stream = norm(x, stream)`.

    x (..., dim) is what the stream (..., dim) does not hold yet. stream None: x starts it, cast to `residual_dtype`
    (None: the activations' dtype). y (..., dim) has the activations' dtype, whatever the stream's.
    """

    def __init__(
        self, implementation: Implementation, dim: int, eps: float, residual_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps
        self.residual_dtype = residual_dtype
        maybe_compile = compile_once if implementation.compiled else lambda function: function
        self.normalize = maybe_compile(implementation.normalize)
        self.add_normalize = maybe_compile(implementation.add_normalize)

    def forward(self, x: Tensor, stream: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out_dtype = activation_dtype(x)
        # Autocast would change the dtype of operations inside (pow, rms_norm), differently in each version of torch.
        with torch.autocast(x.device.type, enabled=False):
            if stream is None:
                stream = x.to(self.residual_dtype or out_dtype)
                return self.normalize(stream, self.weight, self.eps, out_dtype), stream
            return self.add_normalize(x, stream, self.weight, self.eps, out_dtype)


def threaded(norm_class: type[nn.Module]) -> type[nn.Module]:
    """A subclass of somebody's norm, `norm_class(dim, eps)` with `forward(x)`, that threads the stream as `Norm` does.

    It runs under autocast, as it would in any model. A subclass and not a wrapper: its parameters keep their names, so
    checkpoints stay interchangeable.
    """

    class Threaded(norm_class):  # type: ignore[valid-type, misc]
        residual_dtype: torch.dtype | None = None

        def forward(self, x: Tensor, stream: Tensor | None = None) -> tuple[Tensor, Tensor]:
            out_dtype = activation_dtype(x)
            stream = x.to(self.residual_dtype or out_dtype) if stream is None else stream + x
            return super().forward(stream).to(out_dtype), stream

    Threaded.__name__ = norm_class.__name__
    return Threaded


def load_custom(name: str) -> type[nn.Module] | Normalize:
    """`package.module:Name`: a norm class, or a function f(x, weight, eps). Raises UserError where there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{name} was not found ({error}): give package.module:Name of something importable from here"
        ) from error
    if inspect.isclass(found) and issubclass(found, nn.Module):
        return found
    if callable(found) and not inspect.isclass(found):
        return lambda x, weight, eps, out_dtype: found(x, weight, eps).to(out_dtype)
    raise UserError(f"{name} is a {type(found).__name__}: it must be an nn.Module class or a function")


def build_norm(config: NormConfig, dim: int, eps: float, residual_dtype: torch.dtype | None = None) -> nn.Module:
    """The norm of that name for rows of `dim` elements.

    Raises UserError, naming what to use instead, for what cannot be; building one and throwing it away is the check.
    """
    if ":" in config.name:
        custom = load_custom(config.name)
        if isinstance(custom, type):
            norm: Any = threaded(custom)(dim, eps)
            norm.residual_dtype = residual_dtype
            if [(name, tuple(p.shape)) for name, p in norm.named_parameters()] != [("weight", (dim,))]:
                raise UserError(f"norm.name={config.name} must have one parameter, `weight` of shape ({dim},)")
            return norm
        implementation = Implementation(custom, add_then(custom))
    else:
        implementation = IMPLEMENTATIONS[config.name]
    if config.name == "triton_simple" and dim > kernels.MAX_BLOCK_SIZE:
        raise UserError(
            f"norm=triton_simple holds a row in one block of at most {kernels.MAX_BLOCK_SIZE}; "
            f"model.hidden_size={dim} is wider: use norm=triton"
        )
    if not config.fuse_residual:
        implementation = Implementation(implementation.normalize, add_then(implementation.normalize))
    return Norm(implementation, dim, eps, residual_dtype)
