"""Conformance: does an implementation keep its promises beyond the usual shape? One check, one line, pass or fail.

A failure names the tensor (y, dX, dW) and its error. Each check differs from plain inputs in one thing only.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from minillm.bench.accuracy import evaluate, judge
from minillm.bench.op import Case, Function, Implementation, Inputs, Op
from minillm.bench.runner import brief

ROWS, WIDTH = 16, 256
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Problem = str  # empty: none


@dataclass(frozen=True)
class Check:
    """One promise of one implementation, and what was wrong with it."""

    implementation: str
    promise: str
    problem: Problem

    @property
    def ok(self) -> bool:
        return not self.problem


def conformance(op: Op, name: str, implementation: Implementation, device: torch.device) -> list[Check]:
    """All checks of one implementation. One that is missing here fails: it cannot be vouched for."""
    if implementation.missing:
        return [Check(name, "can be had", implementation.missing)]
    return [Check(name, promise, attempt(test)) for promise, test in promises(op, implementation, device)]


def attempt(test: Callable[[], Problem]) -> Problem:
    torch._dynamo.reset()  # a compiled implementation is compiled for each check, and never left eager
    try:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            return test()
    except Exception as error:  # somebody else's code: whatever it raises is the finding
        return brief(error)


def promises(
    op: Op, implementation: Implementation, device: torch.device
) -> Iterator[tuple[str, Callable[[], Problem]]]:
    """(what must be true, what finds out)."""
    plain = Case(ROWS, WIDTH, torch.float32, torch.float32)

    def accurate(case: Case, change: Callable[[Inputs], Inputs] = lambda inputs: inputs) -> Problem:
        inputs = change(op.draw(case, device))
        return "; ".join(str(f) for f in judge(op, implementation.build(case), case, inputs) if not f.ok)

    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        case = replace(plain, dtype=dtype, out_dtype=dtype)
        yield f"{name} is as near to float64 as PyTorch", partial(accurate, case)
        yield f"{name} in, {name} out, gradients too", partial(same_dtypes, op, implementation, case, device)
    for width in op.odd_widths:
        yield f"width {width}", partial(accurate, replace(plain, width=width))
    yield "float32 in, bfloat16 out", lambda: accurate(replace(plain, out_dtype=torch.bfloat16))
    yield "rows with gaps between them", lambda: accurate(plain, padded)
    yield "columns with gaps between them", lambda: accurate(plain, transposed)
    yield "a gradient whose strides are 0 (y.sum())", lambda: accurate(plain, expanded)
    yield "zero rows: no output, dW of zeros", lambda: accurate(replace(plain, rows=0))
    yield "one row", lambda: accurate(replace(plain, rows=1))
    yield "x = 0: finite gradients", lambda: accurate(plain, lambda inputs: filled(inputs, 0.0))
    large = replace(plain, dtype=torch.float16, out_dtype=torch.float16)
    yield "float16 x = 300: its square overflows", lambda: accurate(large, lambda inputs: filled(inputs, 300.0))
    yield "inputs and incoming gradients unchanged", lambda: unchanged(op, implementation.build(plain), plain, device)
    yield "the same bits twice", lambda: repeatable(op, implementation.build(plain), plain, device)
    yield "torch.compile(fullgraph=True)", lambda: compiles(op, implementation.build(plain), plain, device)


def same_dtypes(op: Op, implementation: Implementation, case: Case, device: torch.device) -> Problem:
    found = evaluate(op, implementation.build(case), op.draw(case, device))
    return "; ".join(f"{name} is {t.dtype}" for name, t in found.items() if t.dtype != case.dtype)


def unchanged(op: Op, function: Function, case: Case, device: torch.device) -> Problem:
    inputs, before = op.draw(case, device), op.draw(case, device)
    evaluate(op, function, inputs)
    given = zip((*inputs.tensors, *inputs.upstream), (*before.tensors, *before.upstream), strict=True)
    changed = [i for i, (now, then) in enumerate(given) if not torch.equal(now, then)]
    names = [*(name.removeprefix("d") for name in op.gradients), *(f"d{name}" for name in op.outputs)]
    return "; ".join(f"{names[i]} was overwritten" for i in changed)


def repeatable(op: Op, function: Function, case: Case, device: torch.device) -> Problem:
    first, second = (evaluate(op, function, op.draw(case, device)) for _ in range(2))
    return "; ".join(f"{name} differs" for name, t in first.items() if not torch.equal(t, second[name]))


def compiles(op: Op, function: Function, case: Case, device: torch.device) -> Problem:
    # Without a GPU only the tracing is tried, as Inductor would want a C++ compiler.
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    return "; ".join(str(f) for f in judge(op, compiled, case, op.draw(case, device)) if not f.ok)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def padded(inputs: Inputs) -> Inputs:
    """Each row followed by 8 elements that are not the operator's."""

    def pad(t: Tensor) -> Tensor:
        return torch.nn.functional.pad(t.detach(), (0, 8), value=torch.nan)[..., :-8] if t.dim() > 1 else t.detach()

    return replace(
        inputs, tensors=tuple(leaf(pad(t)) for t in inputs.tensors), upstream=tuple(map(pad, inputs.upstream))
    )


def transposed(inputs: Inputs) -> Inputs:
    """Stored column by column."""

    def turn(t: Tensor) -> Tensor:
        return t.detach().t().contiguous().t() if t.dim() > 1 else t.detach()

    return replace(
        inputs, tensors=tuple(leaf(turn(t)) for t in inputs.tensors), upstream=tuple(map(turn, inputs.upstream))
    )


def expanded(inputs: Inputs) -> Inputs:
    """What autograd hands on from a sum: one element seen everywhere."""
    return replace(inputs, upstream=tuple(u.new_ones(()).expand_as(u) for u in inputs.upstream))


def filled(inputs: Inputs, value: float) -> Inputs:
    """The activations all of one value, the weight as it was."""
    tensors = (torch.full_like(t, value) if t.dim() > 1 else t for t in inputs.tensors)
    return replace(inputs, tensors=tuple(leaf(t) for t in tensors))
