"""The chunks of linear_cross_entropy: logits, losses and gradients, one after the other in the same memory."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import launch, operator
from kernels.linear_cross_entropy_rows import cross_entropy_rows
from kernels.operator import Launch


def row_stride(vocabulary: int) -> int:
    """Elements from one row of logits to the next: whole cache lines, which matmuls and wide accesses want."""
    return -(-vocabulary // 64) * 64


def extra_bytes(
    tokens: int,
    hidden_size: int,
    vocabulary: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
    weight_dtype: torch.dtype | None = None,
    train_hidden: bool = True,
    train_weight: bool = True,
) -> int:
    """Device memory at the peak of forward and backward, beside inputs and returned gradients, in bytes.

    One chunk of logits, each trained input's gradient in fp32, a loss a token; and the weight in hidden's dtype, where
    its own is another.
    """
    logits_bytes = row_stride(vocabulary) * dtype.itemsize
    gradients = tokens * hidden_size * train_hidden + vocabulary * hidden_size * train_weight
    cast = 0 if weight_dtype in (None, dtype) else vocabulary * hidden_size * dtype.itemsize
    return launch.chunk_tokens(tokens, logits_bytes) * logits_bytes + 4 * gradients + 4 * tokens + cast


def gradient_unit(dtype: torch.dtype, z_loss: float) -> float:
    """What dlogits are multiplied by while they have `dtype`. In fp16, where 6e-8 is the smallest number, the largest
    power of two that cannot overflow: |dlogits| <= 1 + 2 z_loss |lse|, and |lse| < 2^16 as logits are fp16 too."""
    return 2.0 ** (15 - math.ceil(math.log2(1 + z_loss * 2**17))) if dtype == torch.float16 else 1.0


def matmul(a: Tensor, b: Tensor, out: Tensor, *, add: bool = False) -> None:
    """out = a @ b, or out += a @ b; out is fp32, whatever a and b are, and nothing is rounded on the way."""
    if a.device.type != "cpu" and a.dtype != out.dtype:
        torch.addmm(out, a, b, beta=int(add), out_dtype=out.dtype, out=out)
    else:
        torch.addmm(out, a.to(out.dtype), b.to(out.dtype), beta=int(add), out=out)


def gradient_buffers(hidden: Tensor, weight: Tensor, *needed: bool) -> list[Tensor]:
    """fp32, of the shapes of hidden and weight; empty where not needed."""
    shapes = [t.shape if need else (0,) for t, need in zip((hidden, weight), needed, strict=True)]
    return [torch.empty(shape, device=hidden.device, dtype=torch.float32) for shape in shapes]


def walk(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    upstream: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    needs_dhidden: bool,
    needs_dweight: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Chunk after chunk: losses (tokens,), dhidden and dweight as `gradient_buffers`, times `gradient_unit`."""
    device, dtype, hidden_size = hidden.device, hidden.dtype, hidden.shape[-1]
    x, w, targets = operator.as_rows(hidden), operator.as_rows(weight.to(dtype)), target.reshape(-1).contiguous()
    tokens, vocabulary = len(x), len(w)
    stride = row_stride(vocabulary)
    chunk = launch.chunk_tokens(tokens, stride * dtype.itemsize)
    losses = torch.empty(tokens, device=device, dtype=torch.float32)
    dhidden, dweight = gradient_buffers(hidden, weight, needs_dhidden, needs_dweight)
    buffer = torch.empty((chunk, stride), device=device, dtype=dtype)
    constants = {
        "V": vocabulary,
        "STRIDE": stride,
        "label_smoothing": label_smoothing,
        "z_loss": z_loss,
        "unit": gradient_unit(dtype, z_loss),
        "NEEDS_GRADIENT": needs_dhidden or needs_dweight,
        "HAS_UPSTREAM": upstream is not None,
    }
    if tokens == 0:
        dweight.zero_()
    for start in range(0, tokens, chunk):
        part = slice(start, min(start + chunk, tokens))
        M = part.stop - start
        logits = buffer[:M, :vocabulary]
        torch.mm(x[part], w.t(), out=logits)  # with out=, autocast does not change the dtypes
        factors = losses if upstream is None else upstream  # an absent tensor's place is taken, and not touched
        shape = launch.cross_entropy(vocabulary, M)
        grid = (shape.programs(M, 0),)
        rows = Launch(cross_entropy_rows, grid, device, M, ignore_index, **constants, **shape.constants())
        operator.launch(rows, logits, targets[part], factors[part], losses[part])
        if needs_dhidden:
            matmul(logits, w, dhidden.view(-1, hidden_size)[part])
        if needs_dweight:
            matmul(logits.t(), x[part], dweight, add=start > 0)
    return losses, dhidden, dweight


@triton.jit
def scale_and_round(x_ptr, factor_ptr, y_ptr, size, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)  # int64: a vocabulary times a width may pass 2^31
    y = tl.load(x_ptr + i, mask=i < size) * tl.load(factor_ptr)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=i < size)


def rounded(wide: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """wide (fp32) * factor (a number on the device) in dtype, new. (PyTorch's own mixed product takes three times the
    time of the bytes that it moves.)"""
    result = torch.empty(wide.shape, device=wide.device, dtype=dtype)
    block = launch.elementwise(wide.numel())
    grid = (triton.cdiv(wide.numel(), block),)
    scale = Launch(scale_and_round, grid, wide.device, wide.numel(), BLOCK=block, num_warps=4)
    operator.launch(scale, wide, factor, result)
    return result
