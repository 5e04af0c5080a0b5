"""Rotary positions as the benchmark sees them: packed rows of heads to q, k and v."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

import kernels
from kernels import reference
from minillm.bench.cases import cases
from minillm.bench.config import BenchConfig
from minillm.bench.op import Case, Function, Implementation, Inputs
from minillm.bench.peers import find, rotary_peers
from minillm.errors import UserError
from minillm.layers import rope

ELEMENTS = 2**28  # 512 MiB in bf16


class Heads(NamedTuple):
    """How a packed row is made up: heads of q, of k and of v, the size of a head; and the tokens of a sequence."""

    q: int
    kv: int
    size: int
    sequence: int

    @property
    def width(self) -> int:
        return (self.q + 2 * self.kv) * self.size


MODELS = {Heads(12, 12, 64, 1024): 32768, Heads(32, 8, 64, 2048): 16384, Heads(32, 8, 128, 4096): 8192}  # tokens a step
BY_WIDTH = {heads.width: heads for heads in (*MODELS, Heads(14, 2, 64, 1024), Heads(40, 40, 128, 2048))}


def heads_of(width: int) -> Heads:
    """Those of the models with packed rows this wide; of other widths two heads of q and one each of k and v.

    Raises UserError for a width that holds no four heads of even size.
    """
    if width not in BY_WIDTH and width % 8:
        known = ", ".join(map(str, BY_WIDTH))
        raise UserError(f"op=rotary width={width} is no row of packed heads: choose {known} or a multiple of 8")
    return BY_WIDTH.get(width) or Heads(2, 1, width // 4, 1024)


class Rotary:
    """(qkv, cos, sin) -> (q, k, v), each (rows, heads x size); a row is a token, and the tables say how many make a
    sequence."""

    outputs: tuple[str, ...] = ("q", "k", "v")
    gradients: tuple[str, ...] = ("dX",)
    odd_widths: tuple[int, ...] = (8, 24, 72, 264, 1000)
    peak_bytes_an_element: int = (
        40  # eager: the halves, their products and the joined heads in fp32, twice over in backward
    )

    def __init__(self, config: BenchConfig) -> None:
        self.config = config

    def implementations(self) -> dict[str, Implementation]:
        missing = "" if kernels.AVAILABLE else "triton is not installed"
        own = {
            "eager": Implementation(lambda case: by_rows(rope.eager)),
            # For this very shape: a compiled function that has seen other shapes becomes a slower, general one.
            "compiled": Implementation(lambda case: torch.compile(by_rows(rope.eager), dynamic=False)),
            "triton": Implementation(lambda case: by_rows(rope.triton), "ours", missing),
        }
        return own | rotary_peers(by_rows)

    def load(self, name: str) -> Implementation:
        custom = find(name, "f(qkv (B, T, width), cos, sin, *, num_heads, num_kv_heads) -> q, k, v (B, T, heads, size)")
        return Implementation(lambda case: by_rows(custom))

    def cases(self) -> list[Case]:
        found = cases(self.config, BY_WIDTH, ELEMENTS, [(tokens, heads.width) for heads, tokens in MODELS.items()])
        for case in found:
            heads_of(case.width)
        return found

    def draw(self, case: Case, device: torch.device, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        heads = heads_of(case.width)

        def normal(width: int) -> Tensor:
            return torch.randn((case.rows, width), dtype=case.dtype, device=device, generator=generator)

        qkv = normal(case.width).requires_grad_()
        upstream = tuple(normal(count * heads.size) for count in (heads.q, heads.kv, heads.kv))
        angles = 100 * torch.rand((sequence_of(case), heads.size // 2), device=device, generator=generator)
        return Inputs((qkv,), upstream, (angles.cos(), angles.sin()))

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return by_rows(reference.rotary)(*tensors)

    def terms(self, inputs: Inputs) -> dict[str, Tensor]:
        """Nothing: a rotation keeps lengths."""
        return {}

    def traffic(self, case: Case) -> dict[str, int]:
        """With v copied, as ours does; what returns it as a view of x moves less forward."""
        tables = 4 * sequence_of(case) * heads_of(case.width).size  # cos and sin of half a head each, in fp32
        moved = 2 * case.rows * case.width * case.dtype.itemsize + tables
        return {"forward": moved, "backward": moved}


def sequence_of(case: Case) -> int:
    """Tokens of a sequence: the model's, or the most that divide the case's rows."""
    return math.gcd(case.rows, heads_of(case.width).sequence)


def by_rows(function: rope.Rope) -> Function:
    """One of (B, T, width) as one of rows: a row is a token."""

    def rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        tokens, heads = len(cos), heads_of(qkv.shape[1])
        packed = qkv.unflatten(0, (len(qkv) // tokens, tokens))
        outputs = function(packed, cos, sin, num_heads=heads.q, num_kv_heads=heads.kv)
        return tuple(t.flatten(0, 1).flatten(1) for t in outputs)

    return rotate
