"""Cross-entropy from hidden states, through the vocabulary projection, as the benchmark sees it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from kernels import reference
from kernels.operator import INTERPRETED
from minillm.bench.config import DTYPES, BenchConfig, key_of
from minillm.bench.op import ODD_WIDTHS, Case, Function, Implementation, Inputs, Role
from minillm.bench.peers import find, linear_cross_entropy_peers
from minillm.config import LossConfig
from minillm.errors import UserError
from minillm.layers import loss

HIDDEN_SIZE = 768  # of a vocabulary that is not among REAL_SIZES
VOCABULARIES = (4096, 32000, 50257)
LOGITS = 2**28  # of a case that is no training step's
# tokens of a micro-batch x hidden size x vocabulary: 15M, 110M and 1B models
REAL_SIZES = ((16384, 384, 4096), (32768, 768, 32000), (16384, 2048, 128256))


class LinearCrossEntropy:
    """(hidden (rows, inner), weight (width, inner), target) -> (the sum of the tokens' losses, fp32,).

    Timed forward and backward together, as some compute the gradients in one and some in the other. Matmul-bound: what
    counts is the time and the extra memory, not the fraction of the copy roof.
    """

    outputs: tuple[str, ...] = ("loss",)
    gradients: tuple[str, ...] = ("dH", "dW")
    odd_widths: tuple[int, ...] = ODD_WIDTHS
    peak_bytes_an_element: int = 24  # eager: logits in 16 bits and in fp32, log-probabilities, and their gradients

    def __init__(self, config: BenchConfig) -> None:
        self.config = config
        refused = ("out_dtype", "residual", "direction", "check")
        given = [f"{key_of(name)}=" for name in refused if name in config.model_fields_set]
        if given:
            raise UserError(
                f"op=linear_cross_entropy takes no {' and no '.join(given)}: its loss is fp32, timed forward and "
                "backward together, and checked in every run; leave it out"
            )

    def implementations(self) -> dict[str, Implementation]:
        own = {
            name: Implementation(self.builder(f), role(name), missing(name)) for name, f in loss.IMPLEMENTATIONS.items()
        }
        compiled = Implementation(lambda case: self.builder(torch.compile(loss.eager, dynamic=False))(case))
        narrow = Implementation(self.builder(logits_as_they_are))
        return own | {"eager_narrow": narrow, "compiled": compiled} | linear_cross_entropy_peers()

    def builder(self, function: loss.Loss) -> Callable[[Case], Function]:
        """Case -> Function, of a loss over (B, T) tokens."""

        def build(case: Case) -> Function:
            if function is loss.triton and INTERPRETED and case.dtype == torch.bfloat16:
                raise UserError("Triton's interpreter cuts bf16 off instead of rounding it: type dtype=fp32")
            return lambda hidden, weight, target: (function(hidden[None], weight, target[None]),)

        return build

    def load(self, name: str) -> Implementation:
        signature = "f(hidden (B, T, d), weight (V, d), targets (B, T)) -> the sum of the losses"
        return Implementation(self.builder(find(name, signature)))

    def cases(self) -> list[Case]:
        dtype, rows = DTYPES[self.config.dtype], self.config.rows
        hidden_sizes = {vocabulary: hidden_size for _, hidden_size, vocabulary in REAL_SIZES}
        sweep = [
            Case(
                rows or max(1, LOGITS // v), v, dtype, torch.float32, rows is not None, hidden_sizes.get(v, HIDDEN_SIZE)
            )
            for v in self.config.width or VOCABULARIES
        ]
        if self.config.width or rows:
            return sweep
        real = [Case(tokens, v, dtype, torch.float32, True, hidden_size) for tokens, hidden_size, v in REAL_SIZES]
        return {"roof": sweep, "real": real, "both": sweep + real}[self.config.sizes]

    def draw(self, case: Case, device: torch.device, seed: int = 0) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=case.dtype, device=device, generator=generator)

        hidden = normal(case.rows, case.inner).requires_grad_()
        weight = normal(case.width, case.inner).mul_(case.inner**-0.5).requires_grad_()  # logits of about 1
        target = torch.randint(case.width, (case.rows,), device=device, generator=generator)
        return Inputs((hidden, weight), (torch.ones((), device=device),), (target,))

    def reference(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return (reference.linear_cross_entropy(*tensors, reduction="sum"),)

    def terms(self, inputs: Inputs) -> dict[str, Tensor]:
        """Nothing: a gradient's terms hardly cancel."""
        return {}

    def traffic(self, case: Case) -> dict[str, int]:
        """Both inputs read and both gradients written; the logits need not be in memory."""
        inputs = (case.rows + case.width) * case.inner * case.dtype.itemsize
        return {"forward+backward": 2 * inputs + 8 * case.rows}


def role(name: str) -> Role:
    return "ours" if name == "triton" else "peer"


def missing(name: str) -> str:
    if name == "triton" and not kernels.AVAILABLE:
        return "triton is not installed"
    try:
        loss.build_loss(LossConfig(name=name))  # type: ignore[arg-type]
    except UserError as error:
        return str(error)
    return ""


def logits_as_they_are(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """As `eager`, but the logits stay in their dtype on their way into F.cross_entropy: less memory, less accuracy."""
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), targets.flatten(), reduction="sum").float()
