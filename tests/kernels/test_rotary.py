"""rotary: accurate, in any layout and for any heads, touching nothing but its own outputs."""

import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from kernels import operator, reference, rotary
from tests.accuracy import assert_accurate
from tests.kernels.fences import Fences
from tests.kernels.norms import BF16, DEVICE, FP16, FP32, draw, leaf
from tests.kernels.test_norm_memory import saved_for_backward


class Heads(NamedTuple):
    """How a packed row is made up: H heads of q, K of k and of v, each D wide."""

    H: int
    K: int
    D: int

    @property
    def width(self) -> int:
        return (self.H + 2 * self.K) * self.D

    def shapes(self, B: int, T: int) -> list[tuple[int, ...]]:
        """Of q, k and v."""
        return [(B, T, self.H, self.D), (B, T, self.K, self.D), (B, T, self.K, self.D)]

    def rotary(self, qkv: Tensor, cos: Tensor, sin: Tensor, function: Callable = rotary) -> Sequence[Tensor]:
        return function(qkv, cos, sin, num_heads=self.H, num_kv_heads=self.K)


SMALL = Heads(4, 2, 8)


def draw_tables(*shape: int) -> tuple[Tensor, Tensor]:
    """cos and sin of random angles."""
    angles = 100 * torch.rand(shape, device=DEVICE)
    return angles.cos(), angles.sin()


def check_rotary(heads: Heads, qkv: Tensor, cos: Tensor, sin: Tensor, grads: Sequence[Tensor] | None = None) -> None:
    """q, k, v and the packed gradient have the right shapes and dtypes and are accurate."""
    B, T, _ = qkv.shape
    given = [torch.randn(s, device=DEVICE).to(qkv.dtype) for s in heads.shapes(B, T)] if grads is None else grads

    def run(function: Callable, dtype: torch.dtype) -> list[Tensor]:
        x = leaf(qkv.to(dtype))
        outputs = heads.rotary(x, cos, sin, function)
        return [*outputs, *torch.autograd.grad(outputs, x, [g.to(dtype) for g in given])]

    actual, exact, best = run(rotary, qkv.dtype), run(reference.rotary, torch.float64), run(reference.rotary, FP32)
    for name, *tensors in zip(("q", "k", "v", "dqkv"), actual, exact, best, strict=True):
        assert tensors[0].dtype == qkv.dtype
        assert tensors[0].is_contiguous()
        assert_accurate(name, *tensors)


@pytest.mark.parametrize(
    "heads", [Heads(12, 12, 64), Heads(8, 2, 128), Heads(3, 3, 66), Heads(7, 1, 80), Heads(1, 2, 2)]
)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_accurate_for_any_heads_and_dtype(heads: Heads, dtype: torch.dtype) -> None:
    check_rotary(heads, draw(2, 5, heads.width, dtype=dtype), *draw_tables(5, heads.D // 2))


def test_each_sequence_may_have_its_own_positions() -> None:
    check_rotary(SMALL, draw(3, 5, SMALL.width), *draw_tables(3, 5, 4))


def test_equals_transformers_beyond_the_first_position() -> None:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    qkv = torch.randn(2, 5, SMALL.width)
    cos, sin = draw_tables(5, 4)
    q, k, _ = (t.transpose(1, 2) for t in qkv.unflatten(-1, (-1, 8)).split((4, 2, 2), dim=2))
    doubled = [torch.cat((table, table), -1).cpu()[None] for table in (cos, sin)]
    theirs = llama.apply_rotary_pos_emb(q, k, *doubled)
    for ours in (SMALL.rotary(qkv.to(DEVICE), cos, sin), SMALL.rotary(qkv.to(DEVICE), cos, sin, reference.rotary)):
        for mine, other in zip(ours, theirs, strict=False):
            torch.testing.assert_close(mine.transpose(1, 2).cpu(), other)


def test_the_reference_has_the_gradient_of_finite_differences() -> None:
    cos, sin = draw_tables(3, 4)
    qkv = torch.randn(2, 3, SMALL.width, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: SMALL.rotary(x, cos.cpu(), sin.cpu(), reference.rotary), qkv)


LAYOUTS: dict[str, Callable[..., Tensor]] = {
    "heads first": lambda B, T, H, D: draw(B, H, T, D).transpose(1, 2),
    "tokens first": lambda B, T, H, D: draw(T, B, H, D).transpose(0, 1),
    "with gaps": lambda B, T, H, D: draw(B, T + 2, H + 1, D + 3)[:, 1:-1, :-1, :D],
    "one number for all": lambda B, T, H, D: draw(1, 1, 1, 1).expand(B, T, H, D),
    "one sequence for all": lambda B, T, H, D: draw(1, T, H, D).expand(B, T, H, D),
    "last dimension first": lambda B, T, H, D: draw(D, B, T, H).movedim(0, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_any_layout_is_read_right(layout: Callable[..., Tensor]) -> None:
    tables = draw_tables(5, 4)
    check_rotary(SMALL, draw(2, 5, SMALL.width), *tables, [layout(*s).detach() for s in SMALL.shapes(2, 5)])
    check_rotary(SMALL, leaf(layout(2, 5, 1, SMALL.width)[:, :, 0]), *tables)
    wide = [table.repeat(1, 3) for table in tables]
    check_rotary(SMALL, draw(2, 5, SMALL.width), *(table[:, 4:8] for table in wide))
    check_rotary(SMALL, draw(2, 5, SMALL.width), *(table.expand(2, 5, 4) for table in tables))
    check_rotary(SMALL, draw(2, 5, SMALL.width), tables[0], wide[1][:, 4:8])


@pytest.mark.parametrize("layout", list(LAYOUTS)[:3])
def test_the_kernel_reads_a_strided_gradient_itself(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = SMALL.rotary(qkv := draw(2, 5, SMALL.width), *draw_tables(5, 4))
    grads = [LAYOUTS[layout](*o.shape).detach() for o in outputs]
    read: list[Tensor] = []
    monkeypatch.setattr(operator, "launch", lambda _, *tensors: read.extend(tensors[:3]))
    torch.autograd.grad(outputs, qkv, grads)
    assert [t.data_ptr() for t in read] == [g.data_ptr() for g in grads]


@pytest.mark.parametrize("used", [u for u in product([True, False], repeat=3) if any(u)])
def test_an_unused_output_counts_as_a_gradient_of_zeros(used: tuple[bool, ...]) -> None:
    qkv = draw(2, 5, SMALL.width)
    outputs = SMALL.rotary(qkv, *draw_tables(5, 4))
    grads = [torch.randn_like(o) * u for o, u in zip(outputs, used, strict=True)]
    (whole,) = torch.autograd.grad(outputs, qkv, grads, retain_graph=True)
    picked = [(o, g) for o, g, u in zip(outputs, grads, used, strict=True) if u]
    (mine,) = torch.autograd.grad([o for o, _ in picked], qkv, [g for _, g in picked])
    assert torch.equal(mine, whole)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
def test_no_tokens_give_nothing(shape: tuple[int, int]) -> None:
    check_rotary(SMALL, draw(*shape, SMALL.width), *draw_tables(shape[1], 4))


@pytest.mark.parametrize("heads", [SMALL, Heads(3, 1, 66), Heads(5, 3, 10)])
def test_nothing_is_written_beside_the_outputs_nor_into_the_inputs(
    heads: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    qkv, tables = draw(2, 5, heads.width, dtype=BF16), draw_tables(5, heads.D // 2)
    grads = [draw(*s, dtype=BF16).detach() for s in heads.shapes(2, 5)]
    before = [t.detach().clone() for t in (qkv, *tables, *grads)]
    fences = Fences(monkeypatch)
    outputs = heads.rotary(qkv, *tables)
    (dqkv,) = torch.autograd.grad(outputs, qkv, grads)
    assert fences.intact_around(*outputs, dqkv)
    assert all(torch.equal(now, then) for now, then in zip((qkv, *tables, *grads), before, strict=True))


def test_backward_keeps_the_tables_alone() -> None:
    qkv, tables = draw(2, 5, SMALL.width), draw_tables(5, 4)
    kept = saved_for_backward(lambda: SMALL.rotary(qkv, *tables))
    assert [t.data_ptr() for t in kept] == [t.data_ptr() for t in tables]
    assert not saved_for_backward(lambda: SMALL.rotary(qkv.detach(), *tables))


def test_a_second_backward_through_the_gradient_is_refused() -> None:
    qkv = draw(2, 5, SMALL.width)
    q = SMALL.rotary(qkv, *draw_tables(5, 4))[0]
    with pytest.raises(RuntimeError, match="twice"):
        torch.autograd.grad(q.square().sum(), qkv, create_graph=True)


X, COS = torch.zeros(2, 5, 64, device=DEVICE), torch.zeros(5, 4, device=DEVICE)
WRONG = {
    "float64": (TypeError, lambda: rotary(X.double(), COS, COS, num_heads=4, num_kv_heads=2), "float64"),
    "bf16 table": (TypeError, lambda: rotary(X, COS.bfloat16(), COS, num_heads=4, num_kv_heads=2), "cos is .*bfloat16"),
    "trained table": (ValueError, lambda: rotary(X, COS, leaf(COS), num_heads=4, num_kv_heads=2), "sin requires grad"),
    "two devices": (ValueError, lambda: rotary(X, COS.to("meta"), COS, num_heads=4, num_kv_heads=2), "meta"),
    "no heads": (ValueError, lambda: rotary(X, COS, COS, num_heads=4, num_kv_heads=0), "num_kv_heads=0"),
    "odd head": (ValueError, lambda: rotary(X[..., :40], COS, COS, num_heads=4, num_kv_heads=2), "(2, 5, 40)"),
    "uneven heads": (ValueError, lambda: rotary(X, COS, COS, num_heads=5, num_kv_heads=2), "9 * D"),
    "two dimensions": (ValueError, lambda: rotary(X[0], COS, COS, num_heads=4, num_kv_heads=2), "(5, 64)"),
    "short table": (ValueError, lambda: rotary(X, COS[1:], COS[1:], num_heads=4, num_kv_heads=2), "(4, 4)"),
    "tables differ": (ValueError, lambda: rotary(X, COS, COS[:, 1:], num_heads=4, num_kv_heads=2), "(5, 3)"),
    "whole-head table": (ValueError, lambda: rotary(X, *[COS.repeat(1, 2)] * 2, num_heads=4, num_kv_heads=2), "(5, 8)"),
}


@pytest.mark.parametrize(("error", "call", "said"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(error: type[Exception], call: Callable[[], object], said: str) -> None:
    with pytest.raises(error, match=said if ".*" in said else re.escape(said)):
        call()
