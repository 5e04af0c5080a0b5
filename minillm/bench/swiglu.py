"""SwiGLU's activation as the benchmark sees it: packed (rows, 2 x width) to (rows, width)."""

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels import reference
from minillm.bench.cases import cases
from minillm.bench.config import BenchConfig
from minillm.bench.op import ODD_WIDTHS, Case, Implementation, Inputs
from minillm.bench.peers import find, swiglu_peers

WIDTHS = (768, 2048, 4096, 8192, 11008, 14336)
ELEMENTS = 2**27  # of the result; gate_up then takes 512 MiB in bf16
REAL_SIZES = ((32768, 2048), (16384, 8192), (8192, 14336))  # tokens of a micro-batch x intermediate size: 110M, 1B, 8B


def eager(gate_up: Tensor) -> tuple[Tensor]:
    """As the model's eager MLP has it."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) * up,)


class SwiGLU:
    """(gate_up,) -> (h,)."""

    outputs: tuple[str, ...] = ("h",)
    gradients: tuple[str, ...] = ("dX",)
    odd_widths: tuple[int, ...] = ODD_WIDTHS
    peak_bytes_an_element: int = 24  # eager: gate_up, silu, h and their gradients; those of the halves, then joined

    def __init__(self, config: BenchConfig) -> None:
        self.config = config

    def implementations(self) -> dict[str, Implementation]:
        missing = "" if kernels.AVAILABLE else "triton is not installed"
        return {
            "eager": Implementation(lambda case: eager),
            # For this very shape: a compiled function that has seen other shapes becomes a slower, general one.
            "compiled": Implementation(lambda case: torch.compile(eager, dynamic=False)),
            "triton": Implementation(lambda case: lambda gate_up: (kernels.swiglu(gate_up),), "ours", missing),
            **swiglu_peers(),
        }

    def load(self, name: str) -> Implementation:
        custom = find(name, "f(gate_up (rows, 2 x width)) -> h (rows, width)")
        return Implementation(lambda case: lambda gate_up: (custom(gate_up),))

    def cases(self) -> list[Case]:
        return cases(self.config, WIDTHS, ELEMENTS, REAL_SIZES)

    def draw(self, case: Case, device: torch.device, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        gate_up, dh = (
            torch.randn((case.rows, width), dtype=case.dtype, device=device, generator=generator)
            for width in (2 * case.width, case.width)
        )
        return Inputs((gate_up.requires_grad_(),), (dh,))

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return (reference.swiglu(*tensors),)

    def terms(self, inputs: Inputs) -> dict[str, Tensor]:
        """dgate = (sigmoid + gate * sigmoid * (1 - sigmoid)) * up * dh: where silu has its minimum the two cancel."""
        gate, up = inputs.tensors[0].detach().double().chunk(2, dim=-1)
        dh = inputs.upstream[0].double()
        return {"dX": torch.cat((torch.sigmoid(gate) * up * dh, F.silu(gate) * dh), dim=-1)}

    def traffic(self, case: Case) -> dict[str, int]:
        elements = case.rows * case.width * case.dtype.itemsize
        return {"forward": 3 * elements, "backward": 5 * elements}  # gate, up -> h; dh, gate, up -> dgate, dup
