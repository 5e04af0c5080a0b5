"""What linear_cross_entropy computes and holds: only the gradients that are needed, and never all logits."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import launch, linear_cross_entropy, operator, reference
from kernels.linear_cross_entropy_chunks import extra_bytes
from tests.kernels.losses import draw_inputs, gradients
from tests.kernels.norms import BF16, DEVICE, FP16, FP32, leaf

REDUCTIONS = ("mean", "sum", "none")


class NewTensors(TorchDispatchMode):
    """Bytes of every storage that an operation inside makes, by address; it keeps them alive, so none is counted for
    another."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.made[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return result

    @property
    def sizes(self) -> list[int]:
        return sorted((storage.nbytes() for storage in self.made.values()), reverse=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("train_hidden", "train_weight"), list(product([True, False], repeat=2)))
def test_a_frozen_input_gets_no_gradient_and_the_other_the_same(
    train_hidden: bool, train_weight: bool, reduction: str
) -> None:
    inputs = draw_inputs()
    upstream = torch.rand(30 if reduction == "none" else (), device=DEVICE)
    both = gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction), inputs, upstream)
    hidden, weight = leaf(inputs[0]).requires_grad_(train_hidden), leaf(inputs[1]).requires_grad_(train_weight)
    loss = linear_cross_entropy(hidden, weight, inputs[2], reduction=reduction)
    assert torch.equal(loss, both[0])
    assert loss.requires_grad == (train_hidden or train_weight)
    if loss.requires_grad:
        loss.backward(upstream)
    torch.testing.assert_close(hidden.grad, both[1] if train_hidden else None)
    torch.testing.assert_close(weight.grad, both[2] if train_weight else None)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("train_hidden", "train_weight"), list(product([True, False], repeat=2)))
def test_memory_is_what_the_formula_says_and_never_all_logits(
    train_hidden: bool, train_weight: bool, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, hidden_size, vocabulary = 1000, 24, 500
    monkeypatch.setattr(launch, "LOGITS_BYTES", 300 * vocabulary * 4)  # 256 tokens a chunk
    hidden, weight, target = draw_inputs(tokens, vocabulary, hidden_size)
    hidden, weight = leaf(hidden).requires_grad_(train_hidden), leaf(weight).requires_grad_(train_weight)
    with NewTensors(hidden, weight, target) as forward:
        loss = linear_cross_entropy(hidden, weight, target, reduction=reduction)
    steps = [forward]
    if loss.requires_grad:
        upstream = torch.ones_like(loss)
        with NewTensors(hidden, weight, target, upstream) as backward:
            loss.backward(upstream)
        steps.append(backward)
        assert (hidden.grad is not None, weight.grad is not None) == (train_hidden, train_weight)
    formula = extra_bytes(
        tokens, hidden_size, vocabulary, dtype=FP32, train_hidden=train_hidden, train_weight=train_weight
    )
    returned = 4 * (tokens * hidden_size * train_hidden + vocabulary * hidden_size * train_weight)
    small = 16 * tokens  # of a few numbers a token: which are left out, the relative upstream gradient
    assert max(step.sizes[0] for step in steps) < 4 * tokens * vocabulary // 3
    assert sum(forward.sizes) <= formula + small
    assert sum(steps[-1].sizes) <= formula + returned + small
    if not train_weight:
        assert 4 * vocabulary * hidden_size not in forward.sizes + steps[-1].sizes


def test_without_gradients_none_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, target = draw_inputs()
    launched = []
    monkeypatch.setattr(operator, "launch", lambda what, *_: launched.append(what.constants["NEEDS_GRADIENT"]))
    linear_cross_entropy(hidden.detach(), weight.detach(), target)
    with torch.no_grad():
        linear_cross_entropy(hidden, weight, target)
    linear_cross_entropy(hidden, weight, target)
    assert launched == [False, False, True]


def test_the_formula_keeps_the_largest_published_vocabulary_below_one_and_a_half_gibibytes() -> None:
    assert extra_bytes(16384, 2048, 128256) < 1.5 * 2**30
    assert extra_bytes(16384, 2048, 128256, train_weight=False) < 0.51 * 2**30


@pytest.mark.parametrize(("tokens", "token_bytes"), [(16384, 256512), (32768, 64000), (8192, 2**18), (1000, 100)])
def test_chunks_are_few_and_equal(tokens: int, token_bytes: int) -> None:
    chunk = launch.chunk_tokens(tokens, token_bytes)
    assert chunk * token_bytes <= launch.LOGITS_BYTES
    assert chunk == tokens or chunk % 128 == 0
    chunks = -(-tokens // chunk)
    assert chunks <= -(-tokens * token_bytes // launch.LOGITS_BYTES) + 1
    assert tokens - (chunks - 1) * chunk > chunk // 2  # the last one


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_the_error_of_the_weight_gradient_does_not_grow_with_the_chunks(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = draw_inputs(2048, 64, dtype=dtype, weight_dtype=FP32)
    inputs[0].data.abs_()  # what is added up has one sign a column
    wide = inputs[0].detach().double(), inputs[1].detach().to(dtype).double(), inputs[2]
    exact = gradients(reference.linear_cross_entropy, wide, torch.ones((), device=DEVICE))[2]

    def error(chunks: int) -> float:
        monkeypatch.setattr(launch, "LOGITS_BYTES", 2048 // chunks * 64 * dtype.itemsize)
        assert launch.chunk_tokens(2048, 64 * dtype.itemsize) == 2048 // chunks
        dweight = gradients(linear_cross_entropy, inputs, torch.ones((), device=DEVICE))[2]
        return float((dweight - exact).norm() / exact.norm())

    assert error(16) <= 1.01 * error(1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_second_backward_and_a_second_run_give_the_same_bits(reduction: str) -> None:
    hidden, weight, target = draw_inputs(300)
    upstream = torch.rand(300 if reduction == "none" else (), device=DEVICE)

    def run() -> list[Tensor]:
        loss = linear_cross_entropy(hidden, weight, target, reduction=reduction)
        first = torch.autograd.grad(loss, (hidden, weight), upstream, retain_graph=True)
        return [loss, *first, *torch.autograd.grad(loss, (hidden, weight), upstream)]

    first, second = run(), run()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first[1:3], first[3:], strict=True))


class Cut(torch.autograd.Function):
    """Passes its input on, and no gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_an_upstream_gradient_there_is_none(reduction: str) -> None:
    hidden, weight, target = draw_inputs()
    loss = Cut.apply(linear_cross_entropy(leaf(hidden), weight, target, reduction=reduction)).sum()
    assert torch.autograd.grad(loss, weight, allow_unused=True) == (None,)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_second_backward_through_the_gradient_is_refused(reduction: str) -> None:
    hidden, weight, target = draw_inputs()
    loss = linear_cross_entropy(hidden, weight, target, reduction=reduction).sum()
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(loss, hidden, create_graph=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_inputs_and_gradients_stay_as_they_are_and_share_no_memory(reduction: str) -> None:
    hidden, weight, target = draw_inputs()
    upstream = torch.rand(30 if reduction == "none" else (), device=DEVICE)
    held = hidden, weight, target, upstream
    before = [t.detach().clone() for t in held]
    loss = linear_cross_entropy(hidden, weight, target, reduction=reduction)
    found = torch.autograd.grad(loss, (hidden, weight), upstream)
    assert all(torch.equal(now, then) for now, then in zip(held, before, strict=True))
    assert len({t.untyped_storage().data_ptr() for t in (*held, loss, *found)}) == len(held) + 3
