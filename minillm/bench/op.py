"""What the benchmark has to know of an operator: its cases, inputs, float64 reference, traffic and implementations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]  # the operator's inputs, in order -> its outputs, in order
ODD_WIDTHS = (1, 7, 41, 127, 513, 769, 1023, 5120)  # of rows that may have any
Role = Literal["ours", "peer", "study"]  # the verdict sets ours against the best peer; a study is only shown


@dataclass(frozen=True)
class Case:
    """One shape: (rows, width) of `dtype`, the result in `out_dtype`. `real`: a training size, not just a big one."""

    rows: int
    width: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    real: bool = False
    inner: int = 0  # elements that a matmul sums up, of an operator with one: (rows, inner) @ (inner, width)

    @property
    def label(self) -> str:
        width = f"{self.inner} x {self.width}" if self.inner else str(self.width)
        return f"{self.rows} x {width}" if self.real else width


@dataclass(frozen=True)
class Inputs:
    """Tensors of one case: the operator's inputs (leaves that require grad) and the gradients of its outputs."""

    tensors: tuple[Tensor, ...]
    upstream: tuple[Tensor, ...]
    constants: tuple[Tensor, ...] = ()  # inputs after those, without a gradient: targets, tables

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (*self.tensors, *self.constants)


@dataclass(frozen=True)
class Implementation:
    """A way to compute the operator. `build` may raise: the message is then shown as its refusal of that case."""

    build: Callable[[Case], Function]
    role: Role = "peer"
    missing: str = ""  # why it cannot be had here; empty: it can


class Op(Protocol):
    """One operator, as `rms_norm.RMSNorm` is one."""

    outputs: tuple[str, ...]  # names, as in ("y",)
    gradients: tuple[str, ...]  # one for each of Inputs.tensors, as in ("dX", "dW")
    odd_widths: tuple[int, ...]  # that conformance tries: no powers of two
    peak_bytes_an_element: int  # device memory that the hungriest implementation takes, for an element of the case

    def implementations(self) -> dict[str, Implementation]:
        """Name -> implementation, those that are missing here included."""

    def load(self, name: str) -> Implementation:
        """Somebody's own, by `package.module:name`. Raises UserError where there is none."""

    def cases(self) -> list[Case]:
        """What is measured, in the table's order."""

    def draw(self, case: Case, device: torch.device, seed: int = 0) -> Inputs:
        """Random inputs of a case; the same seed gives the same tensors."""

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The specification in plain PyTorch, valid in float64."""

    def terms(self, inputs: Inputs) -> dict[str, Tensor]:
        """Of a gradient that is a small difference of large terms: the terms, whose rounding no kernel can avoid."""

    def traffic(self, case: Case) -> dict[str, int]:
        """Bytes that "forward" and "backward" have to move: each tensor read or written once, by its own dtype. Only
        "forward+backward", where one implementation does in forward what another does in backward."""
