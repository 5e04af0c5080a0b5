"""What only a GPU shows: sizes past 2^31, kernels counted, memory measured, variants compiled, devices and streams."""

import sys
from collections.abc import Callable

import pytest
import torch
import triton
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from kernels import add_rms_norm, rms_norm
from tests.kernels.norms import BF16, FP16, FP32, assert_norm, check_norm, draw, draw_weight, leaf

pytestmark = pytest.mark.gpu


def kernels_run(function: Callable[[], object]) -> list[str]:
    """Names of what the GPU executed for one call, copies and fills included. A call before it pays for compiling."""
    function()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        function()
        torch.cuda.synchronize()
    return [event.name for event in record.events() if event.device_type == DeviceType.CUDA]


@pytest.mark.parametrize("width", [128, 4096])
def test_the_last_rows_past_2_to_the_31_elements_are_right(width: int) -> None:
    rows, last = 2**31 // width + 3, 5
    x = torch.randn(rows, width, dtype=BF16, device="cuda").requires_grad_()
    residual = torch.randn(rows, width, dtype=BF16, device="cuda").requires_grad_()
    weight = draw_weight(width)
    dy = torch.zeros_like(x)
    dy[-last:] = torch.randn(last, width)  # so that only the last rows count in dW too

    def check(normed: Tensor, y: Tensor, dx: Tensor, dw: Tensor) -> None:
        assert_norm(normed[-last:], weight, dy[-last:], y=y[-last:], dx=[dx[-last:]], dw=dw)
        assert not dx[:-last].any()

    y = rms_norm(x, weight)
    check(x, y, *torch.autograd.grad(y, (x, weight), dy))
    del y
    y, stream = add_rms_norm(x, residual, weight)
    assert torch.equal(stream[-last:], (x[-last:].float() + residual[-last:].float()).to(BF16))
    check(stream, y, *torch.autograd.grad(y, (x, weight), dy))


@pytest.mark.parametrize("width", [16, 768, 8192])
def test_an_fp32_weight_gradient_is_accurate_over_65536_rows(width: int) -> None:
    x, dy = draw(65536, width, dtype=BF16), draw(65536, width, dtype=BF16)
    check_norm(x, draw_weight(width), dy=dy)
    check_norm(x, draw_weight(width), dy=x.detach())  # the terms are all positive


@pytest.mark.parametrize("shape", [(4099, 48), (4099, 768), (1000, 5120), (100, 40000)])
def test_a_hundred_runs_give_the_same_bits(shape: tuple[int, int]) -> None:
    x, residual, dy = (draw(*shape, dtype=BF16) for _ in range(3))
    weight = draw_weight(shape[1])

    def run() -> list[Tensor]:
        y, stream = add_rms_norm(x, residual, weight)
        added = torch.autograd.grad((y, stream), (x, weight), (dy, dy))
        y_plain = rms_norm(x, weight)
        return [y, stream, *added, y_plain, *torch.autograd.grad(y_plain, (x, weight), dy)]

    first = run()
    for _ in range(99):
        assert all(torch.equal(once, again) for once, again in zip(first, run(), strict=True))


def triton_kernels() -> set[triton.runtime.JITFunction]:
    """Every Triton kernel of the package."""
    modules = [module for name, module in sys.modules.items() if name.startswith("kernels.")]
    return {f for module in modules for f in vars(module).values() if isinstance(f, triton.runtime.JITFunction)}


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("width", [96, 1024, 5120])
def test_fifty_row_counts_compile_at_most_three_variants_of_a_kernel(width: int, add: bool) -> None:
    for kernel in triton_kernels():
        kernel.device_caches.clear()
    weight = draw_weight(width)
    for rows in [*range(1, 26), *range(32, 4032, 160)]:
        x, residual = draw(rows, width), draw(rows, width)
        outputs = add_rms_norm(x, residual, weight) if add else (rms_norm(x, weight),)
        torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
    variants = {k.__name__: len(k.device_caches[torch.cuda.current_device()][0]) for k in triton_kernels()}
    assert sum(count > 0 for count in variants.values()) >= 2, variants  # forward and backward
    assert max(variants.values()) <= 3, variants


@pytest.mark.parametrize(("x", "weight", "out"), [(BF16, FP32, BF16), (FP32, FP32, BF16), (FP16, BF16, FP32)])
def test_mixed_dtypes_run_as_one_kernel(x: torch.dtype, weight: torch.dtype, out: torch.dtype) -> None:
    a, residual, w = draw(64, 1024, dtype=x), draw(64, 1024), draw_weight(1024, weight)
    strided = draw(64, 2, 1024, dtype=x)[:, 0]
    assert len(kernels_run(lambda: rms_norm(a, w, out_dtype=out))) == 1
    assert len(kernels_run(lambda: rms_norm(strided, w, out_dtype=out))) == 1
    assert len(kernels_run(lambda: add_rms_norm(a, residual, w, out_dtype=out))) == 1


def test_no_rows_launch_nothing() -> None:
    x, weight = draw(0, 1024), draw_weight(1024)
    assert kernels_run(lambda: (rms_norm(x, weight), add_rms_norm(x, x, weight))) == []
    rms_norm(x, weight).sum().backward()
    assert rms_norm(draw(3, 1024), weight).isfinite().all()


@pytest.mark.parametrize("shape", [(32768, 1024), (4096, 8192), (37, 40000)])
@pytest.mark.parametrize("train_weight", [True, False])
def test_peak_memory_is_what_the_contract_says(shape: tuple[int, int], train_weight: bool) -> None:
    rows, width = shape
    x, dy = draw(*shape, dtype=BF16), draw(*shape, dtype=BF16).detach()
    weight = draw_weight(width, BF16).requires_grad_(train_weight)
    rms_norm(x, weight).backward(dy)  # what is cached for good is there after the first call
    x.grad = weight.grad = None
    tensor, slack = 2 * rows * width, 16 * 1024  # the allocator rounds each block up to 512 bytes or more
    programs = 8 * torch.cuda.get_device_properties(0).multi_processor_count  # more would gain nothing
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    y = rms_norm(x, weight)
    assert torch.cuda.max_memory_allocated() - start <= tensor + 4 * rows + slack
    y.backward(dy)
    partials = min(programs, rows) * width * 4 + 2 * width if train_weight else 0
    assert torch.cuda.max_memory_allocated() - start <= 2 * tensor + 4 * rows + partials + slack


@pytest.mark.parametrize("width", [96, 1024, 5120])
def test_inductor_gives_eager_bits(width: int) -> None:
    x, residual, weight = draw(300, width, dtype=BF16), draw(300, width), draw_weight(width)

    def run(norm: Callable, add_norm: Callable) -> list[Tensor]:
        y, stream = add_norm(x, residual, weight, out_dtype=BF16)
        z = norm(y, weight)
        return [y, stream, z, *torch.autograd.grad((z, stream), (x, residual, weight), (y.detach(), stream.detach()))]

    torch._dynamo.reset()
    compiled = run(torch.compile(rms_norm, fullgraph=True), torch.compile(add_rms_norm, fullgraph=True))
    assert all(torch.equal(one, other) for one, other in zip(compiled, run(rms_norm, add_rms_norm), strict=True))


def test_one_compiled_form_serves_every_number_of_rows() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    compiled, weight = torch.compile(add_rms_norm, backend=counter, fullgraph=True), draw_weight(768)
    for rows in (300, 311, 512, 1000):
        x, residual = leaf(draw(rows, 768, dtype=BF16)), leaf(draw(rows, 768))
        results = []
        for function in (compiled, add_rms_norm):
            outputs = function(x, residual, weight)
            gradients = torch.autograd.grad(outputs, (x, residual, weight), [o.detach() for o in outputs])
            results.append([*outputs, *gradients])
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert counter.frame_count <= 2


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="needs two GPUs")
def test_runs_on_the_tensors_device_whatever_the_current_one() -> None:
    x, weight = leaf(draw(5, 64).to("cuda:1")), leaf(draw_weight(64).to("cuda:1"))
    assert torch.cuda.current_device() == 0
    y = rms_norm(x, weight)
    dx, dw = torch.autograd.grad(y, (x, weight), torch.ones_like(y))
    here = rms_norm(a := leaf(x.to("cuda:0")), w := leaf(weight.to("cuda:0")))
    expected = here, *torch.autograd.grad(here, (a, w), torch.ones_like(here))
    for one, other in zip((y, dx, dw), expected, strict=True):
        assert one.device.index == 1
        assert torch.equal(one.cpu(), other.cpu())


def test_runs_on_the_current_stream() -> None:
    x, weight = draw(4096, 4096), draw_weight(4096)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)
        late = x.detach() * 3  # ready only after the sleep
        y = rms_norm(late, weight)
        expected = rms_norm(x.detach() * 3, weight)
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
