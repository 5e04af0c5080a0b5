"""What a kernel takes of a multiprocessor, found by compiling it: that needs no GPU, so it is known before one is used.

Not in Triton's interpreter, which compiles nothing.
"""

import re
import subprocess
import tempfile
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

DEFAULT_WARPS = 4  # Triton's


@dataclass(frozen=True)
class Resources:
    """Of a compiled kernel."""

    registers: int  # a thread
    stack: int  # bytes a thread: registers that did not suffice are kept there ("spilled"), in memory
    shared: int  # bytes of shared memory a program


def resources(
    kernel: Any, types: Mapping[str, str], constants: Mapping[str, Any], aligned: Collection[str], capability: int
) -> Resources:
    """Of a `triton.jit` function for cards of that compute capability (90 for 9.0).

    types: Triton's type of each argument ("*bf16", "i32") that is no constant. constants: the others', and num_warps.
    aligned: arguments that are multiples of 16. Raises what Triton's compiler raises.
    """
    constants = dict(constants)
    options = {"num_warps": constants.pop("num_warps", DEFAULT_WARPS)}
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    divisible = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names) if name in aligned}
    source = ASTSource(kernel, signature, constants, divisible)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")  # triton 3.9, of a default that 3.10 changes
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(compiled.asm["cubin"])
        command = [str(tool), "--dump-resource-usage", str(cubin)]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", report.split("Function")[1])
    assert found, report
    return Resources(int(found[1]), int(found[2]), compiled.metadata.shared)
