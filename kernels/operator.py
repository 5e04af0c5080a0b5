"""How an operator runs: the one place that knows eager, torch.compile and the interpreter apart.

A kernel's Python side is two plain functions of tensors, forward and backward. Three things call them:

- eager: a `torch.autograd.Function` around the launch, because a registered operator costs about 250 us of host time
  more a call;
- torch.compile: a registered `triton_op`, which Inductor sees through, so that the launch is inlined in its code;
- torch.compile in Triton's interpreter: a registered `custom_op`, opaque, since there is no kernel to inline; and so
  on a GPU where the compiler must not look inside.
"""

import math
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

if "TRITON_INTERPRET" not in os.environ and not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # read by triton when it is first imported

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Operator:
    """A function of tensors that launches kernels, called directly or through its registered form.

    `function` is fully annotated (its schema); `outputs`, of the same parameters, allocates what it returns. An
    `opaque` one is not traced through: for loops over chunks, and for memory that is written more than once.
    """

    def __init__(self, name: str, function: Callable, outputs: Callable, *, opaque: bool = False) -> None:
        opaque = opaque or INTERPRETED
        register: Any = torch.library.custom_op if opaque else torch.library.triton_op
        self.name = name
        self.direct = function
        self.registered = register(f"minillm::{name}", function, mutates_args=())
        if opaque:
            self.registered.register_fake(outputs)  # a triton_op is traced through instead


def differentiable(forward: Operator, backward: Operator, save: Callable, gradients: Callable) -> Callable:
    """An operator with its gradient.

    `save(ctx, inputs, output)` keeps what backward needs; `gradients(run, ctx, *grads)` calls `run`, the backward
    operator in the form that fits, and returns a gradient (or None) an input. Gradients of unused outputs are None.
    """

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.set_materialize_grads(False)
        save(ctx, inputs, output)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:  # with a setup_context of its own, apply() costs 20 us more
            output = forward.direct(*inputs)
            setup_context(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            if torch.is_grad_enabled():  # once_differentiable would be silent where dy itself needs no gradient
                raise RuntimeError(
                    f"{forward.name} cannot be differentiated twice: backward ran with create_graph=True"
                )
            return gradients(backward.direct, ctx, *grads)

    forward.registered.register_autograd(
        lambda ctx, *grads: gradients(backward.registered, ctx, *grads), setup_context=setup_context
    )

    def call(*inputs: Any) -> Any:
        return forward.registered(*inputs) if torch.compiler.is_compiling() else Function.apply(*inputs)

    return call


def launch(kernel: Any, grid: tuple[int, ...], device: torch.device, *arguments: Any, **constants: Any) -> None:
    """Launch on `device`, whatever the current one is. An empty grid launches nothing.

    arguments: tensors and integers, the kernel's first parameters; constants: its constexpr ones, and num_warps.
    """
    if 0 in grid:
        return
    if type(arguments[0]) is not Tensor:  # a tracer's stand-in: record the launch (that costs 1 ms, so only then)
        torch.library.wrap_triton(kernel)[grid](*arguments, **constants)
    elif INTERPRETED:
        kernel[grid](*arguments, **constants)
    elif device.index == torch.cuda.current_device():
        launch_compiled(kernel, grid, device, arguments, constants)
    else:
        with torch.cuda.device(device):
            launch_compiled(kernel, grid, device, arguments, constants)


_compiled: dict[tuple, tuple[Any, tuple]] = {}  # what Triton made of a kernel, and the constants it was made with


def launch_compiled(
    kernel: Any, grid: tuple[int, ...], device: torch.device, arguments: tuple, constants: dict
) -> None:
    """Launch on the current device, past Triton's own dispatch where the same kernel has been launched before.

    That dispatch binds names to two dozen arguments, and asks the driver about each pointer: for a small layer it is
    most of the host's time. A pointer handed over as a number is not asked about.
    """
    key: list[Any] = [kernel.fn, device.index, *constants.items()]
    values: list[Any] = []
    for argument in arguments:  # into the key goes what Triton compiles anew for
        if type(argument) is int:
            values.append(argument)
            key.append((argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31))
        else:
            pointer = argument.data_ptr()
            values.append(pointer)
            key.append((argument.dtype, pointer % 16 == 0))
    known = _compiled.get(tuple(key))
    if known is None:
        compiled = kernel[grid](*arguments, **constants)
        fixed = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
        if not torch.version.hip:  # there a tensor's size matters too
            _compiled[tuple(key)] = compiled, fixed
    else:
        compiled, fixed = known
        three = (*grid, 1, 1)[:3]
        compiled[three](*values, *fixed)


@lru_cache(maxsize=64)
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of the device; two in the interpreter, where each program costs a millisecond."""
    return 2 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=64)
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program may have."""
    if INTERPRETED:
        return 0
    properties: Any = torch.cuda.get_device_properties(device)  # the stubs lack this field
    return properties.shared_memory_per_block_optin


def as_rows(x: Tensor) -> Tensor:
    """x (..., N) as (M, N), read in place where its strides allow that, else one copy. The last stride is then 1."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def alignment(*strides: int) -> int:
    """The largest of 16, 8, 4, 2, 1 that divides them all. As a constant it lets a kernel make 16-byte accesses to rows
    whose length is no multiple of 16 (1000 bf16), which Triton alone does not see."""
    return math.gcd(16, *strides)


def check_dtype(name: str, key: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise TypeError(f"{name}: {key} is {dtype}; it must be bfloat16, float16 or float32")


def check_tensors(name: str, **tensors: Tensor | None) -> None:
    """Raise TypeError or ValueError unless all tensors are of a dtype and on a device that the kernels take."""
    given = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    for key, tensor in given.items():
        check_dtype(name, key, tensor.dtype)
    device, *others = [tensor.device for tensor in given.values()]
    if any(other != device for other in others):
        where = ", ".join(f"{key} on {tensor.device}" for key, tensor in given.items())
        raise ValueError(f"{name}: tensors on different devices: {where}")
    if device.type != ("cpu" if INTERPRETED else "cuda"):
        raise ValueError(
            f"{name}: tensors on {device}, but "
            + (
                "the kernels run in Triton's interpreter here (TRITON_INTERPRET=1), which takes CPU tensors"
                if INTERPRETED
                else "the kernels take CUDA tensors (import kernels before triton to interpret them on a CPU)"
            )
        )
