"""Which kernels an RMSNorm launches, with what, decided from sizes, strides and what is there."""

from dataclasses import dataclass

import torch
import triton

from kernels import launch_norm, operator
from kernels.launch import Rows
from kernels.operator import Launch
from kernels.rms_norm_tile import rms_norm_backward, rms_norm_forward, sum_parts
from kernels.rms_norm_wide import rms_norm_backward_statistics, rms_norm_backward_strips, rms_norm_forward_wide


@operator.remembered
def forward_launch(
    device: torch.device,
    sms: int,
    M: int,
    N: int,
    strides: tuple[int, int],
    eps: float,
    offset: float,
    has_residual: bool,
    has_weight: bool,
) -> Launch:
    align = operator.alignment(*strides)
    shape = launch_norm.forward(N, M, fused_add=has_residual)
    kernel = rms_norm_forward if isinstance(shape, Rows) else rms_norm_forward_wide
    constants = {"N": N, "ALIGN": align, "eps": eps, "offset": offset} | shape.constants()
    constants |= {"HAS_RESIDUAL": has_residual, "HAS_WEIGHT": has_weight}
    return Launch(kernel, (shape.programs(M, sms),), device, *(stride // align for stride in strides), M, **constants)


@dataclass(frozen=True)
class BackwardLaunches:
    programs: int  # that each have a part of dweight
    statistics: Launch | None  # for rows that are read twice
    gradients: Launch
    sum_parts: Launch


@operator.remembered
def backward_launches(
    device: torch.device,
    sms: int,
    shared_memory: int,
    M: int,
    N: int,
    input_bytes: int,
    strides: tuple[int, int, int],
    offset: float,
    has_weight: bool,
    has_dstream: bool,
    needs: tuple[bool, bool, bool],
) -> BackwardLaunches:
    """`input_bytes`: of a column of dy, x and the stream's gradient; `strides`: of dy, that and x; `needs`: dx,
    dresidual, dweight."""
    shape = launch_norm.backward(N, M, input_bytes, has_dstream, shared_memory)
    programs = shape.programs(N, sms)
    align = operator.alignment(*strides)
    dy_stride, dstream_stride, x_stride = (stride // align for stride in strides)
    scale = {"N": N, "ALIGN": align, "offset": offset, "HAS_WEIGHT": has_weight}
    constants = scale | shape.constants() | {"HAS_DSTREAM": has_dstream}
    constants |= dict(zip(("NEEDS_DX", "NEEDS_DRESIDUAL", "NEEDS_DWEIGHT"), needs, strict=True))
    numbers = dy_stride, dstream_stride, x_stride, M
    statistics = None
    if isinstance(shape, launch_norm.PersistentRows):
        gradients = Launch(rms_norm_backward, (programs,), device, *numbers, **constants)
    else:
        tile = scale | shape.statistics.constants()
        statistics = Launch(rms_norm_backward_statistics, (M,), device, dy_stride, x_stride, **tile)
        strips = triton.cdiv(N, shape.block_n), programs
        gradients = Launch(rms_norm_backward_strips, strips, device, *numbers, **constants)
    block_p, block_n = launch_norm.sum_parts(programs, N)
    tile = {"P": programs, "N": N, "BLOCK_P": block_p, "BLOCK_N": block_n}
    return BackwardLaunches(
        programs, statistics, gradients, Launch(sum_parts, (triton.cdiv(N, block_n),), device, **tile)
    )
