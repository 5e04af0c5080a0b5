"""The second launch of a kernel goes past Triton's dispatch, and only where Triton would have used the same code."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import operator


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
    monkeypatch.setattr(operator, "_compiled", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)  # a CPU tensor's device has no index
    return Kernel()


def launch(kernel: Kernel, x: Tensor, y: Tensor, size: int, *, block: int = 64, warps: int = 4) -> None:
    operator.launch(kernel, (2,), x.device, x, y, size, BLOCK=block, num_warps=warps)


def aligned(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """On a 64-byte boundary, as PyTorch's CPU allocator promises and its CUDA one more than does."""
    return torch.zeros(size, dtype=dtype)


def test_the_same_kernel_is_launched_with_pointers_and_all_its_parameters(kernel: Kernel) -> None:
    x, y = aligned(100), aligned(100)
    launch(kernel, x, y, 100)
    launch(kernel, x, y, 100)
    assert len(kernel.compiled) == 1
    assert kernel.reused == [((2, 1, 1), (x.data_ptr(), y.data_ptr(), 100, 64))]


OTHERS = {
    "dtype": lambda k, x, y: launch(k, x, aligned(100, torch.bfloat16), 100),
    "a pointer that is no multiple of 16": lambda k, x, y: launch(k, x[1:], y, 100),
    "a constant": lambda k, x, y: launch(k, x, y, 100, block=128),
    "warps": lambda k, x, y: launch(k, x, y, 100, warps=8),
    "1": lambda k, x, y: launch(k, x, y, 1),
    "a multiple of 16": lambda k, x, y: launch(k, x, y, 112),
    "past int32": lambda k, x, y: launch(k, x, y, 2**31 + 4),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_triton_compiles_anew_for_is_left_to_triton(kernel: Kernel, other: Any) -> None:
    x, y = aligned(100), aligned(100)
    launch(kernel, x, y, 100)
    other(kernel, x, y)
    assert len(kernel.compiled) == 2
    assert not kernel.reused


def test_other_data_of_the_same_kind_use_what_is_there(kernel: Kernel) -> None:
    launch(kernel, aligned(100), aligned(100), 100)
    launch(kernel, aligned(50), aligned(50), 50)
    assert len(kernel.compiled) == len(kernel.reused) == 1


def test_kernels_are_not_confused(kernel: Kernel) -> None:
    x, y = aligned(100), aligned(100)
    launch(kernel, x, y, 100)
    launch(second := Kernel(), x, y, 100)
    assert len(second.compiled) == 1
