"""The second launch of a kernel goes past Triton's dispatch, and only where Triton would have used the same code."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import operator, rms_norm
from tests.kernels.norms import DEVICE


class Kernel:
    """Stands for a `triton.jit` function (through `kernel[grid](...)`) and for what it compiles."""

    arg_names = ("x_ptr", "y_ptr", "size", "BLOCK")

    def __init__(self) -> None:
        self.fn = object()
        self.compiled: list[tuple] = []
        self.reused: list[tuple] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **constants: Any) -> Any:
            self.compiled.append((grid, arguments, constants))
            return Compiled(self)

        return run


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *values: self.kernel.reused.append((grid, values))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(operator, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # a CPU device has no index
    return Kernel()


def zeros(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """On a 64-byte boundary, as PyTorch's CPU allocator promises and its CUDA one more than does."""
    return torch.zeros(size, dtype=dtype)


def made(kernel: Kernel, grid: tuple[int, ...] = (2,)) -> operator.Launch:
    return operator.Launch(kernel, grid, torch.device("cpu"), 100, num_warps=4, BLOCK=64)


def test_triton_is_asked_once_and_then_given_pointers_and_all_parameters(kernel: Kernel) -> None:
    launch, (x, y, z) = made(kernel), (zeros(100) for _ in range(3))
    operator.launch(launch, x, y)
    operator.launch(launch, x, z)
    assert kernel.compiled == [((2,), (x, y, 100), {"num_warps": 4, "BLOCK": 64})]
    assert kernel.reused == [((2, 1, 1), (x.data_ptr(), z.data_ptr(), 100, 64))]


OTHERS = {
    "dtype": lambda x, y: (x, y.bfloat16()),
    "a pointer that is no multiple of 16": lambda x, y: (x, y[1:]),
    "another": lambda x, y: (x[2:], y),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_triton_compiles_anew_for_is_left_to_triton(kernel: Kernel, other: Any) -> None:
    launch, x, y = made(kernel), zeros(100), zeros(100)
    operator.launch(launch, *other(x, y))
    operator.launch(launch, x, y)
    operator.launch(launch, *other(x, y))
    assert len(kernel.compiled) == (2 if other is OTHERS["dtype"] else 3)
    assert len(kernel.reused) == (1 if other is OTHERS["dtype"] else 0)


def test_an_empty_grid_launches_nothing(kernel: Kernel) -> None:
    operator.launch(made(kernel, (0,)), zeros(0), zeros(0))
    assert not kernel.compiled


def test_a_decision_is_remembered_by_its_facts_and_not_for_a_tracers_symbols() -> None:
    asked = []

    @operator.remembered
    def decide(*facts: Any) -> list:
        asked.append(facts)
        return list(facts)

    assert decide(1, (2, 3)) is decide(1, (2, 3))
    assert decide(1, (2, 4)) == [1, (2, 4)]
    assert decide(1, [2]) == decide(1, [2])  # unhashable, as a SymInt is
    assert len(asked) == 4


@pytest.mark.parametrize("width", [48, 64])
@pytest.mark.parametrize("rows", [3, 5])
def test_nothing_that_a_launch_depends_on_is_forgotten(width: int, rows: int) -> None:
    """One thing changed at a time, in one process: layout, dtype, offset, width, rows."""
    for dtype in (torch.float32, torch.bfloat16):
        for offset in (0.0, 1.0):
            x = torch.randn(rows, 2 * width, device=DEVICE).to(dtype)[:, :width].requires_grad_()
            w = torch.rand(width, device=DEVICE, requires_grad=True)
            for view in (x, x.t().contiguous().t(), x.contiguous()):
                expected = F.rms_norm(view.float(), (width,), w + offset, 1e-6)
                torch.testing.assert_close(rms_norm(view, w, offset=offset).float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_input_of_wide_rows_costs_no_statistics(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 16400, device=DEVICE, requires_grad=not frozen)
    w = torch.rand(16400, device=DEVICE, requires_grad=True)
    y, launched, launch = rms_norm(x, w), list[str](), operator.launch

    def spy(what: operator.Launch, *tensors: Tensor) -> None:
        launched.append(what.kernel.fn.__name__)
        launch(what, *tensors)

    monkeypatch.setattr(operator, "launch", spy)
    (dw,) = torch.autograd.grad(y.sum(), [w])
    statistics = [] if frozen else ["rms_norm_backward_statistics"]
    assert launched == [*statistics, "rms_norm_backward_strips", "sum_parts"]
    torch.testing.assert_close(dw, (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).sum(0).detach())
