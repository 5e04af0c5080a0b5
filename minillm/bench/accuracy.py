"""Is a result right? Every output and gradient against float64, before anything is timed.

Allowed is twice the error of the specification computed in fp32 and rounded once to the result's dtype, plus one
rounding of the coarsest dtype of the case. Two measures have to hold: the relative L2 error sees a small fault
everywhere (a scale that is 1% off, a gradient of zeros), the largest error sees a fault in one place (a row's tail).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.operator import INTERPRETED
from minillm.bench.op import Case, Function, Inputs, Op

# A GPU's fast rsqrt is off by 2 ulp = 4 roundings, and a gradient that is a difference has it squared in a term.
TERM_ROUNDINGS = 8


@dataclass(frozen=True)
class Finding:
    """One tensor's errors, relative to the exact tensor's size, and what is allowed of each."""

    tensor: str
    l2: float
    l2_allowed: float
    largest: float
    largest_allowed: float

    @property
    def ok(self) -> bool:
        return self.l2 <= self.l2_allowed and self.largest <= self.largest_allowed  # false for a NaN, as it must be

    def __str__(self) -> str:
        if self.l2 <= self.l2_allowed:
            return f"{self.tensor}: largest error {self.largest:.2g}, allowed {self.largest_allowed:.2g}"
        return f"{self.tensor}: relative error {self.l2:.2g}, allowed {self.l2_allowed:.2g}"


def evaluate(op: Op, function: Function, inputs: Inputs) -> dict[str, Tensor]:
    """Outputs and gradients by name; an input that gets no gradient at all counts as one that gets zeros."""
    outputs = function(*inputs.arguments)
    gradients = torch.autograd.grad(outputs, inputs.tensors, inputs.upstream, allow_unused=True)
    known = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, inputs.tensors, strict=True)]
    return dict(zip((*op.outputs, *op.gradients), (t.detach() for t in (*outputs, *known)), strict=True))


def widened(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """The same values in another dtype, as new leaves."""
    tensors = tuple(t.detach().to(dtype).requires_grad_() for t in inputs.tensors)
    return replace(inputs, tensors=tensors, upstream=tuple(u.to(dtype) for u in inputs.upstream))


def rounding(dtype: torch.dtype) -> float:
    """Largest relative error of one store to the nearest: half an ulp."""
    return torch.finfo(dtype).eps / 2


def judge(op: Op, function: Function, case: Case, inputs: Inputs) -> list[Finding]:
    """A finding for each output and gradient of `function`."""
    exact = evaluate(op, op.reference, widened(inputs, torch.float64))
    best = evaluate(op, op.reference, widened(inputs, torch.float32))
    terms = op.terms(inputs)
    actual = evaluate(op, function, inputs)  # last: some overwrite what they are given
    for name, upstream in zip(op.outputs, inputs.upstream, strict=True):
        if actual[name].dtype != upstream.dtype:  # fewer bytes written, and allowed a larger error
            raise ValueError(f"{name} is {actual[name].dtype}, not {upstream.dtype}")
    coarsest = max(case.dtype, case.out_dtype, key=rounding)
    # Triton's interpreter cuts bf16 off: up to a whole ulp in one element, still below half of one in the L2 sense.
    cut_off = 2 if INTERPRETED and coarsest == torch.bfloat16 else 1
    findings = []
    for name, tensor in actual.items():
        if tensor.shape != exact[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(exact[name].shape)}")
        best_error = best[name].to(tensor.dtype).double() - exact[name]
        measures = []
        for size, roundings in ((norm, 1), (largest, cut_off)):
            scale = size(exact[name]) or 1.0  # zeros are compared as they are
            allowed = 2 * size(best_error) / scale + roundings * rounding(coarsest)
            if name in terms:
                allowed += TERM_ROUNDINGS * rounding(torch.float32) * size(terms[name]) / scale
            measures += [size(tensor.double() - exact[name]) / scale, allowed]
        findings.append(Finding(name, *measures))
    return findings


def norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def largest(tensor: Tensor) -> float:
    """Of no elements: 0. Of a NaN: NaN, which no bound allows."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0
