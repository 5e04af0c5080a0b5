"""RMSNorm, alone and with the residual addition, as the benchmark sees it."""

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import kernels
from kernels import reference
from minillm.bench.config import DTYPES, BenchConfig
from minillm.bench.op import ODD_WIDTHS, Case, Function, Implementation, Inputs, Role
from minillm.bench.peers import add_rms_norm_peers, rms_norm_peers
from minillm.layers import norm

EPS = 1e-6
WIDTHS = (512, 768, 1024, 2048, 3072, 4096, 5120, 8192, 16384, 32768, 65536)
ELEMENTS = 2**28  # 512 MiB in bf16: far more than any cache holds
REAL_SIZES = ((32768, 768), (16384, 2048), (8192, 4096))  # tokens of a micro-batch x hidden size: 110M, 1B, 7B models
ROLES: dict[str, Role] = {"triton": "ours", "triton_simple": "study"}


class RMSNorm:
    """(x, weight) -> (y,); with residual=true (x, residual, weight) -> (y, stream).

    The normalised tensor (x, or the stream) and the weight have `case.dtype`; y, and the x that is added to a stream,
    have `case.out_dtype`.
    """

    def __init__(self, config: BenchConfig) -> None:
        self.config = config
        self.residual = config.residual
        self.outputs: tuple[str, ...] = ("y", "stream") if self.residual else ("y",)
        self.gradients: tuple[str, ...] = ("dX", "dR", "dW") if self.residual else ("dX", "dW")
        self.odd_widths: tuple[int, ...] = ODD_WIDTHS
        self.peak_bytes_an_element = 80 if self.residual else 56  # eager: five tensors in fp32 kept, three on the way

    def implementations(self) -> dict[str, Implementation]:
        found = {name: self.wrap(i, ROLES.get(name, "peer")) for name, i in norm.IMPLEMENTATIONS.items()}
        found |= add_rms_norm_peers(EPS) if self.residual else rms_norm_peers(EPS)
        if self.config.block or self.config.num_warps:
            del found["triton_simple"]
            for block in self.config.block or (None,):
                for warps in self.config.num_warps or (None,):
                    tile = {"block": block, "num_warps": warps}
                    name = ",".join(f"{key}={value}" for key, value in tile.items() if value)
                    found[f"triton_simple[{name}]"] = self.wrap(simple(block, warps), "study")
        return found

    def wrap(self, implementation: norm.Implementation, role: Role) -> Implementation:
        """One of the model's own norms."""
        needed = implementation.needs_triton and not kernels.AVAILABLE
        return Implementation(partial(self.build, implementation), role, "triton is not installed" if needed else "")

    def build(self, implementation: norm.Implementation, case: Case) -> Function:
        normalize, add_normalize = implementation.normalize, implementation.add_normalize
        if implementation.compiled:
            # For this very shape: a compiled function that has seen other shapes becomes a slower, general one.
            normalize = torch.compile(normalize, dynamic=False)
            add_normalize = torch.compile(add_normalize, dynamic=False)
        if self.residual:
            return lambda x, residual, weight: add_normalize(x, residual, weight, EPS, case.out_dtype)
        return lambda x, weight: (normalize(x, weight, EPS, case.out_dtype),)

    def load(self, name: str) -> Implementation:
        custom: Any = norm.load_custom(name)
        is_class = inspect.isclass(custom)
        # Its buffers go where the inputs will be, once: no part of what is timed, and nothing that Dynamo can trace.
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        def build(case: Case) -> Function:
            normalize = functional(custom(case.width, EPS).to(device)) if is_class else custom
            return self.build(norm.Implementation(normalize, norm.add_then(normalize)), case)

        return Implementation(build)

    def cases(self) -> list[Case]:
        dtype = DTYPES[self.config.dtype]
        out_dtype = DTYPES[self.config.out_dtype or self.config.dtype]
        chosen = self.config.width or self.config.rows
        shapes = [(self.config.rows or max(1, ELEMENTS // n), n) for n in self.config.width or WIDTHS]
        cases = [Case(rows, width, dtype, out_dtype) for rows, width in shapes]
        real = [Case(rows, width, dtype, out_dtype, real=True) for rows, width in REAL_SIZES]
        if chosen:
            return [replace(case, real=self.config.rows is not None) for case in cases]
        return {"roof": cases, "real": real, "both": cases + real}[self.config.sizes]

    def draw(self, case: Case, device: torch.device, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.randn(shape, dtype=dtype, device=device, generator=generator)

        shape = (case.rows, case.width)
        weight = normal(case.dtype, case.width).mul_(0.5).add_(1.0)
        tensors = [normal(case.dtype, *shape), weight]
        upstream = [normal(case.out_dtype, *shape)]
        if self.residual:
            tensors.insert(0, normal(case.out_dtype, *shape))
            upstream.append(normal(case.dtype, *shape))
        return Inputs(tuple(t.requires_grad_() for t in tensors), tuple(upstream))

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        if self.residual:
            x, stream, weight = tensors
            return reference.add_rms_norm(x, stream, weight, eps=EPS)
        return (reference.rms_norm(*tensors, eps=EPS),)

    def terms(self, inputs: Inputs) -> dict[str, Tensor]:
        """dX = rstd * (w dy - xhat mean(w dy xhat)): in narrow rows the two terms nearly cancel."""
        *added, weight = (t.detach().double() for t in inputs.tensors)
        rstd = torch.rsqrt(torch.stack(added).sum(0).square().mean(-1, keepdim=True) + EPS)
        term = rstd * weight * inputs.upstream[0].double()
        return {"dX": term, "dR": term} if self.residual else {"dX": term}

    def traffic(self, case: Case) -> dict[str, int]:
        elements = case.rows * case.width
        wide, out = case.dtype.itemsize, case.out_dtype.itemsize
        if not self.residual:  # x -> y; dy, x -> dx
            return {"forward": elements * (wide + out), "backward": elements * (out + 2 * wide)}
        # x, residual -> stream, y; dy, dstream, stream -> dx and dresidual, one tensor if they have one dtype.
        gradients = wide if case.dtype == case.out_dtype else wide + out
        return {"forward": elements * 2 * (wide + out), "backward": elements * (out + 2 * wide + gradients)}


def functional(module: nn.Module) -> norm.Normalize:
    """A norm class's instance as a function of its weight too."""

    def normalize(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
        return torch.func.functional_call(module, {"weight": weight}, (x,)).to(out_dtype)

    return normalize


def simple(block: int | None, num_warps: int | None) -> norm.Implementation:
    """The teaching kernel with a tile chosen by hand; None leaves the choice to the kernel."""

    def normalize(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> Tensor:
        return kernels.rms_norm_simple(x, weight, eps, block, num_warps).to(out_dtype)

    return norm.Implementation(normalize, norm.add_then(normalize), needs_triton=True)
