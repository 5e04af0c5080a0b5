"""What only a GPU shows of rotary and swiglu: sizes past 2^31, kernels counted, variants compiled, memory measured."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import rotary, swiglu, swiglu_linear
from tests.kernels.norms import BF16, FP32, draw, leaf
from tests.kernels.test_norm_gpu import kernels_run, triton_kernels
from tests.kernels.test_rotary import Heads, check_rotary, draw_tables
from tests.kernels.test_swiglu import check_swiglu, check_swiglu_linear, evaluate

pytestmark = pytest.mark.gpu

LLAMA = Heads(32, 8, 64)


def heads_first(shape: tuple[int, ...]) -> Tensor:
    """A gradient as attention hands it on: stored (B, heads, T, D), seen as (B, T, heads, D)."""
    B, T, heads, D = shape
    return torch.randn(B, heads, T, D, device="cuda", dtype=BF16).transpose(1, 2)


@pytest.mark.parametrize("B", [1, 3])
def test_the_last_tokens_past_2_to_the_31_elements_are_rotated_right(B: int) -> None:
    heads, last = Heads(14, 1, 64), 5
    T = 3 * 2**30 // (B * heads.width)  # with H of 16 heads, q alone passes 2^31
    qkv, (cos, sin) = leaf(torch.randn(B, T, heads.width, dtype=BF16, device="cuda")), draw_tables(T, 32)
    grads = [heads_first(s) for s in heads.shapes(B, T)]

    def run(qkv: Tensor, cos: Tensor, sin: Tensor, grads: list[Tensor]) -> list[Tensor]:
        outputs = heads.rotary(leaf_ := leaf(qkv), cos, sin)
        return [*outputs, *torch.autograd.grad(outputs, leaf_, grads)]

    few = run(qkv[-1:, -last:], cos[-last:], sin[-last:], [g[-1:, -last:] for g in grads])
    for one, other in zip(run(qkv, cos, sin, grads), few, strict=True):
        assert torch.equal(one[-1:, -last:], other)


@pytest.mark.parametrize("width", [64, 8192])
def test_the_last_rows_past_2_to_the_31_elements_are_activated_right(width: int) -> None:
    rows, last = 2**31 // width + 3, 5
    gate_up, dh = torch.randn(rows, 2 * width, dtype=BF16, device="cuda"), torch.ones(1, 1, dtype=BF16, device="cuda")
    whole = evaluate(swiglu, dh.expand(rows, width).contiguous(), gate_up=leaf(gate_up))
    few = evaluate(swiglu, dh.expand(last, width).contiguous(), gate_up=leaf(gate_up[-last:]))
    for name, tensor in few.items():
        assert torch.equal(whole[name][-last:], tensor)


@pytest.mark.parametrize("heads", [Heads(12, 12, 64), LLAMA, Heads(14, 2, 96), Heads(7, 1, 80), Heads(71, 1, 66)])
def test_real_heads_are_rotated_accurately(heads: Heads) -> None:
    check_rotary(
        heads, draw(3, 100, heads.width, dtype=BF16), *draw_tables(100, heads.D // 2),
        [heads_first(s) for s in heads.shapes(3, 100)],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("width", [1000, 2048, 11008])
def test_real_widths_are_activated_accurately(width: int, dtype: torch.dtype) -> None:
    check_swiglu(draw(300, 2 * width, dtype=dtype))
    check_swiglu_linear(draw(300, 2 * width, dtype=BF16), draw(256, width, dtype=dtype))


def test_each_way_is_one_kernel() -> None:
    qkv, tables, gate_up = draw(2, 300, LLAMA.width, dtype=BF16), draw_tables(300, 32), draw(300, 2000, dtype=BF16)
    outputs, grads = LLAMA.rotary(qkv, *tables), [heads_first(s) for s in LLAMA.shapes(2, 300)]
    h, dh = swiglu(gate_up), draw(300, 1000, dtype=BF16).detach()
    calls: list[Callable[[], object]] = [
        lambda: LLAMA.rotary(qkv, *tables),
        lambda: torch.autograd.grad(outputs, qkv, grads, retain_graph=True),
        lambda: torch.autograd.grad(outputs[1], qkv, grads[1], retain_graph=True),
        lambda: swiglu(gate_up),
        lambda: torch.autograd.grad(h, gate_up, dh, retain_graph=True),
    ]
    assert [len(kernels_run(call)) for call in calls] == [1] * len(calls)


def test_beside_its_products_swiglu_linear_is_one_kernel_each_way() -> None:
    gate_up, weight = draw(512, 4096, dtype=BF16), draw(768, 2048, dtype=BF16)
    out = swiglu_linear(gate_up, weight)

    def backward(*inputs: Tensor) -> Callable[[], object]:
        return lambda: torch.autograd.grad(out, inputs, out.detach(), retain_graph=True)

    for call, name in (
        (lambda: swiglu_linear(gate_up, weight), "swiglu_forward"),
        (backward(gate_up, weight), "swiglu_backward"),
    ):
        names = kernels_run(call)
        assert [n for n in names if "swiglu" in n] == [name]
        assert not [n for n in names if "elementwise" in n or "copy" in n.lower()]


@pytest.mark.parametrize("heads", [LLAMA, Heads(4, 2, 20)])
def test_fifty_lengths_compile_at_most_three_variants_of_a_kernel(heads: Heads) -> None:
    for kernel in triton_kernels():
        kernel.device_caches.clear()
    for T in [*range(1, 26), *range(32, 4032, 160)]:
        outputs = heads.rotary(draw(2, T, heads.width, dtype=BF16), *draw_tables(T, heads.D // 2))
        torch.autograd.backward(outputs, [heads_first(o.shape) for o in outputs])
        swiglu_linear(draw(T, 2 * heads.width), draw(8, heads.width)).sum().backward()
        swiglu(draw(T, 2 * heads.width)).sum().backward()
    variants = {k.__name__: len(k.device_caches[torch.cuda.current_device()][0]) for k in triton_kernels()}
    assert sum(count > 0 for count in variants.values()) == 4, variants
    assert max(variants.values()) <= 3, variants


def test_a_hundred_runs_give_the_same_bits() -> None:
    qkv, tables, gate_up = draw(2, 301, LLAMA.width, dtype=BF16), draw_tables(301, 32), draw(301, 2000, dtype=BF16)

    def run() -> list[Tensor]:
        outputs, h = LLAMA.rotary(qkv, *tables), swiglu(gate_up)
        dqkv = torch.autograd.grad(outputs, qkv, [o.detach() for o in outputs])
        return [*outputs, *dqkv, h, *torch.autograd.grad(h, gate_up, h.detach())]

    first = run()
    for _ in range(99):
        assert all(torch.equal(once, again) for once, again in zip(first, run(), strict=True))


@pytest.mark.parametrize("what", ["rotary", "swiglu", "swiglu_linear"])
def test_inductor_gives_eager_bits_and_adds_no_kernel(what: str) -> None:
    torch._dynamo.reset()
    tables, weight = draw_tables(300, 32), draw(768, 1000, dtype=BF16)
    x = draw(2, 300, LLAMA.width, dtype=BF16) if what == "rotary" else draw(2, 300, 2000, dtype=BF16)
    function: Callable[[Tensor], tuple[Tensor, ...]] = {
        "rotary": lambda x: rotary(x, *tables, num_heads=LLAMA.H, num_kv_heads=LLAMA.K),
        "swiglu": lambda x: (swiglu(x),),
        "swiglu_linear": lambda x: (swiglu_linear(x, weight),),
    }[what]
    compiled = torch.compile(function, fullgraph=True)
    grads = [torch.randn_like(o) for o in function(x)]

    def run(function: Callable) -> list[Tensor]:
        outputs = function(x)
        return [*outputs, *torch.autograd.grad(outputs, x, grads)]

    assert all(torch.equal(one, other) for one, other in zip(run(compiled), run(function), strict=True))
    assert len(kernels_run(lambda: run(compiled))) == len(kernels_run(lambda: run(function)))


@pytest.mark.parametrize("train_weight", [True, False])
def test_peak_memory_of_swiglu_linear_is_what_it_computes(train_weight: bool) -> None:
    rows, width, d = 8192, 4096, 1024
    gate_up, weight = draw(rows, 2 * width, dtype=BF16), draw(d, width, dtype=BF16).requires_grad_(train_weight)
    dout = torch.randn(rows, d, device="cuda").bfloat16()
    swiglu_linear(gate_up, weight).backward(dout)  # cuBLAS takes its workspace for good
    gate_up.grad = weight.grad = None
    h, slack = 2 * rows * width, 2**20
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    out = swiglu_linear(gate_up, weight)
    assert torch.cuda.max_memory_allocated() - start <= h + out.nbytes + slack
    assert torch.cuda.memory_allocated() - start <= out.nbytes + slack  # h is not kept
    out.backward(dout)
    expected = out.nbytes + h + gate_up.nbytes + train_weight * (h + weight.nbytes)  # dh, dgate_up; h again, dweight
    assert torch.cuda.max_memory_allocated() - start <= expected + slack
