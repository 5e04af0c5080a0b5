"""Traces every operator, forward and backward, with a number of rows that is a symbol: what torch.compile does from the
second number of rows on. Without a GPU, on tensors without data.

    TRITON_INTERPRET=0 python -m tests.kernels.trace_symbols
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import kernels
from kernels import operator

BF16, ROWS = torch.bfloat16, (64, 80, 112)


def rotary(qkv: Tensor) -> tuple[Tensor, ...]:
    table = torch.zeros(qkv.shape[1], 16)
    return kernels.rotary(qkv, table, table, num_heads=4, num_kv_heads=2)


def loss(hidden: Tensor, weight: Tensor) -> Tensor:
    return kernels.linear_cross_entropy(hidden, weight, torch.zeros(len(hidden), dtype=torch.int64))


OPERATORS: dict[str, tuple[Callable[..., Any], Callable[[int], tuple[tuple[int, ...], ...]]]] = {
    "rms_norm": (kernels.rms_norm, lambda rows: ((rows, 768), (768,))),
    "rms_norm, wide": (kernels.rms_norm, lambda rows: ((rows, 65536), (65536,))),
    "add_rms_norm": (kernels.add_rms_norm, lambda rows: ((2, rows, 768), (2, rows, 768), (768,))),
    "rms_norm_simple": (kernels.rms_norm_simple, lambda rows: ((rows, 768), (768,))),
    "rotary": (rotary, lambda rows: ((2, rows, 256),)),
    "swiglu": (kernels.swiglu, lambda rows: ((rows, 768),)),
    "swiglu_linear": (kernels.swiglu_linear, lambda rows: ((rows, 768), (32, 384))),
    "linear_cross_entropy": (loss, lambda rows: ((rows, 64), (512, 64))),
}


def trace(function: Callable[..., Any], shapes: Callable[[int], tuple[tuple[int, ...], ...]]) -> int:
    """Graphs that several numbers of rows took."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    with FakeTensorMode(shape_env=ShapeEnv()):
        for rows in ROWS:
            compiled(*(torch.empty(shape, dtype=BF16, requires_grad=True) for shape in shapes(rows)))
    return counter.frame_count


def main() -> None:
    # On CPU tensors, since autograd takes no CUDA tensor without a driver; as on an H200 otherwise.
    vars(operator).update(
        check_tensors=lambda *_, **__: None, multiprocessors=lambda _: 132, shared_memory=lambda _: 227 * 1024
    )
    for name, (function, shapes) in OPERATORS.items():
        graphs = trace(function, shapes)
        print(f"{name}: {graphs} graphs")
        assert graphs <= 2, f"{name}: {graphs} graphs for {len(ROWS)} numbers of rows"


if __name__ == "__main__":
    main()
