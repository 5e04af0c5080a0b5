"""Which line of the waterfall a kernel belongs to: by the part of the model that launched it and by its name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MATMULS = ("matmul: qkv, out", "matmul: mlp", "matmul: head", "matmul: unknown")
FLOOR = (*MATMULS, "attention", "optimizer")
UNATTRIBUTED = "unattributed"
PARTS = (
    *FLOOR,
    "norm",
    "rope",
    "activation",
    "head and loss",
    "embedding",
    "compiled",
    "gradient sums",
    "copies and fills",
    "other elementwise",
    UNATTRIBUTED,
)

ATTENTION = re.compile(r"flash|fmha|sdpa|cudnn|MemEffAttention")
MATMUL = re.compile(r"nvjet|gemm|gemv|cutlass|xmma|splitK|cublas|triton_tem_|^aten::\w*mm$")
MATMUL_OF = {"attention": "matmul: qkv, out", "mlp": "matmul: mlp", "loss": "matmul: head"}
# Everything else that a part launches is its own; what attention launches beside its kernels goes by its name.
LINE_OF = {"norm": "norm", "rope": "rope", "mlp": "activation", "loss": "head and loss", "embedding": "embedding"}
# Where no part is known: compiled code, whose kernels are launched from no range, and graphs.
BY_NAME = {
    "norm": re.compile(r"^(rms_norm|sum_parts)"),
    "rope": re.compile(r"^rotary"),
    "activation": re.compile(r"^swiglu"),
    "head and loss": re.compile(r"^(cross_entropy|scale_and_round)|softmax|nll_loss"),
    "optimizer": re.compile(r"multi_tensor|adam", re.IGNORECASE),
    "compiled": re.compile(r"^triton_"),
    "embedding": re.compile(r"embedding|indexing_backward|index_put|radix|\bcub::", re.IGNORECASE),
    "copies and fills": re.compile(r"memcpy|memset|copy|fill|CatArray|^aten::(zero_|cat|clone)", re.IGNORECASE),
    "other elementwise": re.compile(r"at::native|^aten::"),
}


@dataclass(frozen=True)
class Kernel:
    """One piece of the device's work. Times in microseconds."""

    name: str
    start: float
    duration: float
    part: str


def part_of(name: str, part: str) -> str:
    """The line of a kernel of that name that `part` launched; "" where that is not known."""
    if part == "optimizer":
        return "optimizer"
    if ATTENTION.search(name):
        return "attention"
    if MATMUL.search(name):
        return MATMUL_OF.get(part, "matmul: unknown")
    if part in LINE_OF:
        return LINE_OF[part]
    by_name = next((line for line, pattern in BY_NAME.items() if pattern.search(name)), UNATTRIBUTED)
    if part == "gradient sums" and by_name == "other elementwise":
        return part
    return by_name


def by_part(kernels: Iterable[Kernel], steps: int) -> dict[str, float]:
    """Milliseconds a step of every line that has any, in the order of `PARTS`."""
    total = dict.fromkeys(PARTS, 0.0)
    for kernel in kernels:
        total[kernel.part] += kernel.duration / 1000 / steps
    return {part: ms for part, ms in total.items() if ms > 0}
