"""Compiles every rung of the norm's launch ladders without a GPU and prints registers and spills, one line a kernel.

    TRITON_INTERPRET=0 python -m tests.kernels.compile_rungs 80 90

Fails where a kernel does not compile, needs more shared memory than the card has, or spills much.
"""

import math
import sys
from collections.abc import Iterator
from typing import Any

from kernels import adamw, launch, launch_norm, rms_norm_tile, rms_norm_wide
from kernels.linear_cross_entropy_chunks import row_stride, scale_and_round
from kernels.linear_cross_entropy_rows import cross_entropy_rows
from kernels.resources import resources
from kernels.rms_norm_simple import rms_norm_simple_backward, rms_norm_simple_forward
from kernels.rotary_tile import rotary_backward, rotary_forward
from kernels.swiglu import swiglu_backward, swiglu_forward

SHARED_MEMORY = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}  # bytes an SM has for its programs, by capability
MOST_STACK = 160  # bytes a thread: a few spills at the widest tile are measured and paid for, hundreds are a mistake
FP32 = ("rstd_ptr", "cos_ptr", "sin_ptr", "mean_dot_ptr", "dweight_ptr", "weight_ptr", "scalars_ptr", "found_inf_ptr")
FP32 += ("upstream_ptr", "loss_ptr")
OTHERS = dict.fromkeys(FP32, "*fp32") | {"key_ptr": "*i64", "target_ptr": "*i64"}  # the pointers that are not bf16
FORWARD = [(48, False), (768, False), (3072, False), (4096, False), (5120, False), (5120, True), (8192, False)]
FORWARD += [(8192, True), (16384, False), (16384, True), (32768, False), (32768, True), (65536, False), (262144, False)]
BACKWARD = [(48, False), (256, False), (512, True), (768, False), (768, True), (1000, False), (1536, False)]
BACKWARD += [(3072, False), (4096, False), (4096, True), (6144, False), (8192, False), (12288, False), (12288, True)]
BACKWARD += [(16384, False), (16384, True), (262144, False)]
SWIGLU = [48, 1000, 2048, 8192]
HEADS = [(12, 12, 64), (32, 8, 64), (32, 8, 128), (14, 2, 64), (7, 1, 80), (3, 3, 66)]  # H, K, D
VOCABULARIES = (1, 4096, 32000, 50257, 128256)


def rungs(capability: int) -> Iterator[tuple[str, Any, dict[str, Any], int]]:
    """(label, kernel, constants, programs an SM) of every rung."""
    scale = {"ALIGN": 16, "offset": 0.0, "HAS_WEIGHT": True}
    simple = {"N": 4096, "BLOCK_N": 4096, "num_warps": 4}
    yield "simple forward 4096", rms_norm_simple_forward, simple | {"eps": 1e-6}, 1
    yield "simple backward 4096", rms_norm_simple_backward, simple, 1
    yield "adamw", adamw.adamw_stochastic_kernel, {"BLOCK": adamw.BLOCK, "num_warps": 4}, 1
    yield "scale and round", scale_and_round, {"BLOCK": launch.elementwise(2**28), "num_warps": 4}, 1
    for V in VOCABULARIES:
        for gradient, smoothing in ((False, 0.0), (True, 0.0), (True, 0.1)):
            constants = {"V": V, "STRIDE": row_stride(V), "label_smoothing": smoothing, "z_loss": 1e-4, "unit": 1.0}
            constants |= {"NEEDS_GRADIENT": gradient, "HAS_UPSTREAM": smoothing > 0}
            label = f"cross-entropy{'+gradient' * gradient}{'+smoothing' * (smoothing > 0)} {V}"
            yield label, cross_entropy_rows, constants | launch.cross_entropy(V, 1).constants(), 1
    for N, add in FORWARD:
        shape = launch_norm.forward(N, 1, add)
        wide = isinstance(shape, launch_norm.Chunks)
        kernel = rms_norm_wide.rms_norm_forward_wide if wide else rms_norm_tile.rms_norm_forward
        constants = scale | {"N": N, "eps": 1e-6, "HAS_RESIDUAL": add} | shape.constants()
        yield f"forward{'+add' * add} {N}", kernel, constants, 1
    for N, add in BACKWARD:
        backward = launch_norm.backward(N, 1, 2 * (2 + add), add, SHARED_MEMORY[capability])
        constants = scale | {"N": N, "HAS_DSTREAM": add} | backward.constants()
        constants |= {"NEEDS_DX": True, "NEEDS_DRESIDUAL": False, "NEEDS_DWEIGHT": True}
        if isinstance(backward, launch_norm.Strips):
            statistics = scale | {"N": N} | backward.statistics.constants()
            yield f"statistics {N}", rms_norm_wide.rms_norm_backward_statistics, statistics, 1
            yield f"strips{'+add' * add} {N}", rms_norm_wide.rms_norm_backward_strips, constants, 1
        else:
            yield f"backward{'+add' * add} {N}", rms_norm_tile.rms_norm_backward, constants, backward.programs_per_sm
    for N in SWIGLU:
        constants = {"N": N, "ALIGN": 8} | launch.swiglu(1, N).constants()
        yield f"swiglu forward {N}", swiglu_forward, constants, 1
        yield f"swiglu backward {N}", swiglu_backward, constants | {"NEEDS_H": False}, 1
        yield f"swiglu backward+h {N}", swiglu_backward, constants | {"NEEDS_H": True}, 1
    for H, K, D in HEADS:
        constants = {"H": H, "K": K, "D": D, "ALIGN": math.gcd(16, D), "TABLE_ALIGN": math.gcd(16, D // 2)}
        constants |= launch.rotary(1, H, K, D).constants()
        given = {"HAS_DQ": True, "HAS_DK": True, "HAS_DV": True}
        yield f"rotary forward {H}/{K} x {D}", rotary_forward, constants, 1
        yield f"rotary backward {H}/{K} x {D}", rotary_backward, constants | given, 1


def main(capabilities: list[int]) -> None:
    for capability in capabilities:
        for label, kernel, constants, programs in rungs(capability):
            names = [name for name in kernel.arg_names if name.endswith("_ptr")]
            pointers = dict.fromkeys(names, "*bf16") | {name: OTHERS[name] for name in names if name in OTHERS}
            types = dict.fromkeys(kernel.arg_names, "i32") | pointers
            aligned = [name for name in kernel.arg_names if name in pointers or "stride" in name]
            found = resources(kernel, types, constants, aligned, capability)
            tile = " ".join(f"{k}={v}" for k, v in constants.items() if k[:5] in ("BLOCK", "PIECE", "STAGE", "num_w"))
            taken = f"{found.registers} registers, {found.stack} B stack, {found.shared} B shared"
            print(f"sm_{capability} {label}: {taken} ({tile})", flush=True)
            assert found.shared * programs <= SHARED_MEMORY[capability], "more shared memory than the card has"
            assert found.stack <= MOST_STACK, "spills"


if __name__ == "__main__":
    main([int(capability) for capability in sys.argv[1:]])
