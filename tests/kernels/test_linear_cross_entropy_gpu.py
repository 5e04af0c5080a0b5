"""What only a GPU shows of linear_cross_entropy: memory, sizes past 2^31, bf16 rounding, variants, synchronisation."""

import pytest
import torch
from torch import Tensor

from kernels import launch, linear_cross_entropy, reference
from kernels.linear_cross_entropy_chunks import extra_bytes
from kernels.linear_cross_entropy_rows import cross_entropy_rows
from tests.kernels.losses import check_loss, draw_inputs, gradients
from tests.kernels.norms import BF16, FP16, FP32, leaf

pytestmark = pytest.mark.gpu
REDUCTIONS = ("mean", "sum", "none")


@pytest.mark.parametrize("vocabulary", [4097, 32000, 50257, 128256])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
def test_every_rung_is_accurate(vocabulary: int, dtype: torch.dtype) -> None:
    for reduction in REDUCTIONS:
        check_loss(
            *draw_inputs(300, vocabulary, 64, dtype=dtype), reduction=reduction, label_smoothing=0.1, z_loss=1e-4
        )


@pytest.mark.parametrize("weight_dtype", [BF16, FP32])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_peak_memory_is_what_the_formula_says(weight_dtype: torch.dtype, reduction: str) -> None:
    tokens, hidden_size, vocabulary = 8192, 1024, 50257
    inputs = draw_inputs(tokens, vocabulary, hidden_size, dtype=BF16, weight_dtype=weight_dtype)
    upstream = torch.ones(tokens if reduction == "none" else (), device="cuda")

    def run() -> tuple[int, tuple[Tensor, ...]]:
        loss = linear_cross_entropy(*inputs, reduction=reduction)
        return torch.cuda.max_memory_allocated(), torch.autograd.grad(loss, inputs[:2], upstream)

    run()  # cuBLAS allocates its workspace
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    forward, returned = run()
    both = torch.cuda.max_memory_allocated() - sum(t.nbytes for t in returned)
    slack = 2**21 + 16 * tokens  # of the allocator's rounding, and a few numbers a token
    formula = extra_bytes(tokens, hidden_size, vocabulary, weight_dtype=weight_dtype)
    assert max(forward, both) - start <= formula + slack


def test_the_last_tokens_of_more_than_2_to_the_31_logits_are_right() -> None:
    hidden, weight, target = draw_inputs(65536, 50304, 64, dtype=BF16)
    last = slice(-300, None)
    upstream = torch.zeros(65536, device="cuda")
    upstream[last] = 1.0  # so that only the last tokens count in dweight too
    found = gradients(lambda *t: linear_cross_entropy(*t, reduction="none"), (hidden, weight, target), upstream)
    part = gradients(
        lambda *t: linear_cross_entropy(*t, reduction="none"), (hidden[last], weight, target[last]), upstream[last]
    )
    torch.testing.assert_close((found[0][last], found[1][last], found[2]), part, rtol=1e-2, atol=1e-3)
    assert not found[1][:-300].any()


def test_one_chunk_of_more_than_2_to_the_31_logits_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "LOGITS_BYTES", 2**33)
    test_the_last_tokens_of_more_than_2_to_the_31_logits_are_right()


def test_the_error_of_the_weight_gradient_does_not_grow_with_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw_inputs(16384, 1000, dtype=BF16, weight_dtype=FP32)
    inputs[0].data.abs_()  # what is added up has one sign a column
    wide = inputs[0].detach().double(), inputs[1].detach().to(BF16).double(), inputs[2]
    one = torch.ones((), device="cuda")
    exact = gradients(reference.linear_cross_entropy, wide, one)[2]

    def error(chunks: int) -> float:
        monkeypatch.setattr(launch, "LOGITS_BYTES", 16384 // chunks * 1024 * 2)
        return float((gradients(linear_cross_entropy, inputs, one)[2] - exact).norm() / exact.norm())

    assert error(128) <= 1.05 * error(1)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_host_never_waits_for_the_device(reduction: str) -> None:
    inputs = draw_inputs(300, 1000, dtype=BF16)
    upstream = torch.ones(300 if reduction == "none" else (), device="cuda")
    gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction), inputs, upstream)
    torch.cuda.set_sync_debug_mode("error")
    try:
        gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction), inputs, upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_twenty_runs_give_the_same_bits() -> None:
    inputs, one = draw_inputs(5000, 32000, 256, dtype=BF16), torch.ones((), device="cuda")
    first = gradients(linear_cross_entropy, inputs, one)
    for _ in range(19):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(linear_cross_entropy, inputs, one), strict=True))


def test_fifty_token_counts_compile_at_most_three_variants() -> None:
    cross_entropy_rows.device_caches.clear()
    for tokens in [*range(1, 26), *range(32, 4032, 160)]:
        gradients(linear_cross_entropy, draw_inputs(tokens, dtype=BF16), torch.ones((), device="cuda"))
    assert 1 <= len(cross_entropy_rows.device_caches[torch.cuda.current_device()][0]) <= 3


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_inductor_gives_eager_bits(reduction: str) -> None:
    def run(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, target, reduction=reduction)

    torch._dynamo.reset()
    inputs = draw_inputs(300, 1000, dtype=BF16)
    upstream = torch.ones(300 if reduction == "none" else (), device="cuda")
    compiled = gradients(torch.compile(run, fullgraph=True), inputs, upstream)
    for one, other in zip(compiled, gradients(run, inputs, upstream), strict=True):
        # the mean's division is Inductor's: not rounded to nearest, so that a gradient may be an ulp off
        rtol = 0.0 if reduction != "mean" else 2**-7 if one.dtype == BF16 else 1e-6
        torch.testing.assert_close(one, other, rtol=rtol, atol=0.0)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_runs_on_the_tensors_device_whatever_the_current_one() -> None:
    inputs = draw_inputs(300, dtype=BF16)
    there = gradients(linear_cross_entropy, tuple(t.to("cuda:1") for t in inputs), torch.ones((), device="cuda:1"))
    here = gradients(
        linear_cross_entropy,
        tuple(leaf(t) if t.is_floating_point() else t for t in inputs),
        torch.ones((), device="cuda:0"),
    )
    for one, other in zip(there, here, strict=True):
        assert one.device.index == 1
        assert torch.equal(one.cpu(), other.cpu())
