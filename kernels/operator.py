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
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

if "TRITON_INTERPRET" not in os.environ and not torch.cuda.is_available() and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"  # read by triton when it is first imported

INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")  # as triton reads it
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
T = TypeVar("T")


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


def differentiable(
    forward: Operator,
    backward: Operator,
    save: Callable,
    gradients: Callable,
    results: Callable[..., int] | None = None,
) -> Callable:
    """An operator with its gradient.

    `results(*inputs)`: how many of the outputs, the first, the caller needs; those for backward alone then cost
    nothing in eager mode (2 us each saved). Without it all are given out.

    `save(ctx, inputs, output)` keeps what backward needs; `gradients(run, ctx, *grads)` calls `run`, the backward
    operator in the form that fits, and returns a gradient (or None) an input. Gradients of unused outputs are None; it
    is not called with nothing but those.
    """

    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.set_materialize_grads(False)
        save(ctx, inputs, output)

    def backpropagate(run: Callable, ctx: Any, *grads: Tensor | None) -> Any:
        if all(gradient is None for gradient in grads):
            return (None,) * len(ctx.needs_input_grad)
        return gradients(run, ctx, *grads)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:  # with a setup_context of its own, apply() costs 20 us more
            output = forward.direct(*inputs)
            setup_context(ctx, inputs, output)
            return output if results is None else output[: results(*inputs)]

        @staticmethod
        def backward(ctx: Any, *grads: Tensor | None) -> Any:
            if torch.is_grad_enabled():  # once_differentiable would be silent where dy itself needs no gradient
                raise RuntimeError(
                    f"{forward.name} cannot be differentiated twice: backward ran with create_graph=True"
                )
            return backpropagate(backward.direct, ctx, *grads)

    forward.registered.register_autograd(
        lambda ctx, *grads: backpropagate(backward.registered, ctx, *grads), setup_context=setup_context
    )

    def call(*inputs: Any) -> Any:
        return forward.registered(*inputs) if torch.compiler.is_compiling() else Function.apply(*inputs)

    return call


class Launch:
    """A kernel with all that it is launched with but its tensors, which are its first parameters.

    `numbers` follow the tensors, `constants` are the constexpr parameters and num_warps.
    """

    def __init__(
        self, kernel: Any, grid: tuple[int, ...], device: torch.device, *numbers: int, **constants: Any
    ) -> None:
        self.kernel, self.grid, self.device = kernel, grid, device
        self.numbers, self.constants = numbers, constants
        self._compiled: dict[tuple[torch.dtype, ...], Any] = {}
        self._rest: tuple[Any, ...] = ()  # what a compiled kernel is given after the pointers

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current device, past Triton's own dispatch if that has been asked before.

        Triton binds names to two dozen arguments, looks at each to find the code compiled for its kind, and asks the
        driver about every pointer. Here the kinds are known but for the dtypes, and a pointer given as a number is not
        asked about.
        """
        pointers, bits = [], 0
        for tensor in tensors:
            pointer = tensor.data_ptr()
            pointers.append(pointer)
            bits |= pointer
        dtypes = tuple([tensor.dtype for tensor in tensors])
        compiled = self._compiled.get(dtypes)
        if compiled is not None and bits % 16 == 0:  # Triton compiles anew for pointers that are no multiples of 16
            compiled(*pointers, *self._rest)
            return
        made = self.kernel[self.grid](*tensors, *self.numbers, **self.constants)
        if bits % 16 == 0 and not torch.version.hip:  # there a tensor's size matters too
            constants = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
            self._rest = (*self.numbers, *(self.constants[name] for name in constants))
            self._compiled[dtypes] = made[(*self.grid, 1, 1)[:3]]


def launch(what: Launch, *tensors: Tensor) -> None:
    """Launch on its device, whatever the current one is. An empty grid launches nothing."""
    if 0 in what.grid:
        return
    if type(tensors[0]) is not Tensor:  # a tracer's stand-in: record the launch (that costs 1 ms, so only then)
        torch.library.wrap_triton(what.kernel)[what.grid](*tensors, *what.numbers, **what.constants)
    elif INTERPRETED:
        what.kernel[what.grid](*tensors, *what.numbers, **what.constants)
    elif what.device.index == torch.cuda.current_device():
        what(*tensors)
    else:
        with torch.cuda.device(what.device):
            what(*tensors)


def remembered(decide: Callable[..., T]) -> Callable[..., T]:
    """`decide`, of facts such as sizes and dtypes, asked once for each set of them: most of the host's time of a small
    layer. A tracer's symbols cannot be looked up: for them it is asked anew."""
    known = lru_cache(maxsize=4096)(decide)

    @wraps(decide)
    def remember(*facts: Any) -> T:
        try:
            return known(*facts)
        except TypeError:  # unhashable
            return decide(*facts)

    return remember


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
    """x (..., N) as (M, N), in place where its strides allow that, else one copy. Its last stride is 1, or N is."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def rows_of(x: Tensor) -> tuple[Tensor, int]:
    """What a kernel needs to walk over the rows of x (..., N): the tensor in whose memory they lie, x itself or a copy,
    and the elements from one row to the next."""
    if x.is_contiguous():
        return x, x.shape[-1]
    rows = as_rows(x)
    return rows, rows.stride(0)


def alignment(*strides: int) -> int:
    """The largest of 16, 8, 4, 2, 1 that divides them all. As a constant it lets a kernel make 16-byte accesses to rows
    whose length is no multiple of 16 (1000 bf16), which Triton alone does not see."""
    return math.gcd(16, *strides)


def check_dtype(name: str, key: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise TypeError(f"{name}: {key} is {dtype}; it must be bfloat16, float16 or float32")


def check_tensors(name: str, **tensors: Tensor | None) -> None:
    """Raise TypeError or ValueError unless all tensors are of a dtype and on a device that the kernels take."""
    given = [tensor for tensor in tensors.values() if tensor is not None]
    device = given[0].device
    for tensor in given:
        if tensor.dtype not in DTYPES:
            key = next(key for key, value in tensors.items() if value is tensor)
            check_dtype(name, key, tensor.dtype)
        if tensor.device != device:
            where = ", ".join(f"{key} on {value.device}" for key, value in tensors.items() if value is not None)
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
