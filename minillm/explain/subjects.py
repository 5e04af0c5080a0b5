"""The layers as they are explained: at the model's shapes or at one that was typed, each implementation of them.

Every tensor has the activations' dtype, weights and the stream too. Floors are the bytes that any implementation has to
move: what the layer is given and what it returns, and for backward what its gradient depends on, each once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.bench.op import Function, Inputs
from minillm.config import Config
from minillm.errors import UserError
from minillm.layers import mlp, rope
from minillm.layers.loss import build_loss
from minillm.layers.norm import build_norm

Shape = tuple[int, ...]
# Implementations whose kernels PyTorch chooses beneath what can be counted, always or where there is no GPU.
OPAQUE = {("norm", "compiled"), ("loss", "torch")}
OPAQUE_WITHOUT_A_GPU = OPAQUE | {("norm", "torch")}


@dataclass(frozen=True)
class Subject:
    """A layer at one shape."""

    title: str
    layer: str  # norm, rope, mlp, loss
    shape: Shape  # of the tensor that it works on
    dtype: torch.dtype
    calls: int  # in an optimizer step
    floor: dict[str, int]  # "forward", "backward" -> bytes that must move
    draw: Callable[[torch.device], Inputs]
    build: Callable[[Config], Function]  # the implementation that it names; raises UserError if it cannot be built

    adds: bool = False  # to the residual stream, first

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


def subjects(config: Config, layer: str, shape: Shape | None, dtype: torch.dtype) -> list[Subject]:
    """Of that layer: at the model's shape each form in which a step runs it, at a typed one the plain form.

    Raises UserError for a shape that the layer cannot have.
    """
    model, tokens = config.model, (config.batch.micro, config.data.sequence_length)
    repeats = config.batch.accumulate * model.num_layers
    if layer == "norm":
        of_model = (*tokens, model.hidden_size)
        plain = norm_subject(config, shape or of_model, dtype, config.batch.accumulate)
        return [plain] if shape else [plain, add_norm_subject(config, of_model, dtype, 2 * repeats)]
    if layer == "rope":
        heads = model.num_heads + 2 * model.num_kv_heads
        return [rope_subject(config, shape or (*tokens, heads * model.head_dim), dtype, repeats)]
    if layer == "mlp":
        return [mlp_subject(config, shape or (*tokens, 2 * model.intermediate_size), dtype, repeats)]
    return [loss_subject(config, shape or (*tokens, model.hidden_size), dtype, config.batch.accumulate)]


def normal(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def leaf(device: torch.device, dtype: torch.dtype, *shape: int) -> Tensor:
    return normal(device, dtype, *shape).requires_grad_()


def norm_subject(config: Config, shape: Shape, dtype: torch.dtype, calls: int) -> Subject:
    """(x, weight) -> y."""
    tensor, weight = math.prod(shape) * dtype.itemsize, shape[-1] * dtype.itemsize

    def draw(device: torch.device) -> Inputs:
        return Inputs((leaf(device, dtype, *shape), leaf(device, dtype, shape[-1])), (normal(device, dtype, *shape),))

    def build(chosen: Config) -> Function:
        module = build_norm(chosen.norm, shape[-1], config.model.norm_eps)
        return lambda x, weight: torch.func.functional_call(module, {"weight": weight}, (x,))[:1]

    floor = {"forward": 2 * tensor + weight, "backward": 3 * tensor + 2 * weight}
    return Subject(f"RMSNorm of {shown(shape, dtype)}", "norm", shape, dtype, calls, floor, draw, build)


def add_norm_subject(config: Config, shape: Shape, dtype: torch.dtype, calls: int) -> Subject:
    """(x, stream, weight) -> (y, stream + x): all of a model's norms but the first."""
    tensor, weight = math.prod(shape) * dtype.itemsize, shape[-1] * dtype.itemsize

    def draw(device: torch.device) -> Inputs:
        x, stream, y, sum_ = (normal(device, dtype, *shape) for _ in range(4))
        return Inputs((x.requires_grad_(), stream.requires_grad_(), leaf(device, dtype, shape[-1])), (y, sum_))

    def build(chosen: Config) -> Function:
        module = build_norm(chosen.norm, shape[-1], config.model.norm_eps)
        return lambda x, stream, weight: torch.func.functional_call(module, {"weight": weight}, (x, stream))

    floor = {"forward": 4 * tensor + weight, "backward": 4 * tensor + 2 * weight}  # x and stream share their gradient
    title = f"RMSNorm of {shown(shape, dtype)}, first added to the stream"
    return Subject(title, "norm", shape, dtype, calls, floor, draw, build, adds=True)


def rope_subject(config: Config, shape: Shape, dtype: torch.dtype, calls: int) -> Subject:
    """qkv -> q, k, v."""
    heads, groups = config.model.num_heads, config.model.num_kv_heads
    size, rest = divmod(shape[-1], heads + 2 * groups)
    if len(shape) != 3 or rest or size % 2 or not size:
        raise UserError(
            f"shape={typed(shape)} is no qkv of rope: type sequences x tokens x width, the width an even number times "
            f"{heads + 2 * groups}, the model's packed heads"
        )
    tensor = math.prod(shape) * dtype.itemsize

    def draw(device: torch.device) -> Inputs:
        angles = normal(device, torch.float32, shape[1], size // 2)
        upstream = tuple(normal(device, dtype, *shape[:2], n, size) for n in (heads, groups, groups))
        return Inputs((leaf(device, dtype, *shape),), upstream, (angles.cos(), angles.sin()))

    def build(chosen: Config) -> Function:
        function = rope.IMPLEMENTATIONS[chosen.rope.name]
        return lambda qkv, cos, sin: function(qkv, cos, sin, num_heads=heads, num_kv_heads=groups)

    moved = 2 * tensor + 4 * shape[1] * size
    floor = {"forward": moved, "backward": moved}
    return Subject(f"Rotary positions of {shown(shape, dtype)}", "rope", shape, dtype, calls, floor, draw, build)


def mlp_subject(config: Config, shape: Shape, dtype: torch.dtype, calls: int) -> Subject:
    """(gate_up, weight) -> out."""
    if shape[-1] % 2:
        raise UserError(f"shape={typed(shape)} is no gate_up of mlp: its last number must be even, gate and up")
    hidden, width = config.model.hidden_size, shape[-1] // 2
    tensor, weight = math.prod(shape) * dtype.itemsize, hidden * width * dtype.itemsize
    out = (*shape[:-1], hidden)

    def draw(device: torch.device) -> Inputs:
        return Inputs((leaf(device, dtype, *shape), leaf(device, dtype, hidden, width)), (normal(device, dtype, *out),))

    def build(chosen: Config) -> Function:
        function = mlp.IMPLEMENTATIONS[chosen.mlp.name]
        return lambda gate_up, weight: (function(gate_up, weight),)

    moved = tensor + weight + math.prod(out) * dtype.itemsize
    floor = {"forward": moved, "backward": moved + tensor + weight}
    title = f"SwiGLU and its projection of {shown(shape, dtype)}"
    return Subject(title, "mlp", shape, dtype, calls, floor, draw, build)


def loss_subject(config: Config, shape: Shape, dtype: torch.dtype, calls: int) -> Subject:
    """(hidden, weight, targets) -> loss."""
    if len(shape) != 3:
        raise UserError(f"shape={typed(shape)} is no hidden state of loss: type sequences x tokens x hidden size")
    vocabulary = config.model.vocab_size or config.tokenizer.vocab_size
    tensor, weight = math.prod(shape) * dtype.itemsize, vocabulary * shape[-1] * dtype.itemsize

    def draw(device: torch.device) -> Inputs:
        targets = torch.randint(vocabulary, shape[:2], device=device)
        hidden, matrix = leaf(device, dtype, *shape), leaf(device, dtype, vocabulary, shape[-1])
        return Inputs((hidden, matrix), (torch.ones((), device=device),), (targets,))

    def build(chosen: Config) -> Function:
        function = build_loss(chosen.loss)
        return lambda hidden, weight, targets: (function(hidden, weight, targets),)

    moved = tensor + weight + 8 * math.prod(shape[:2])
    floor = {"forward": moved, "backward": 2 * (tensor + weight)}
    title = f"Loss of {shown(shape, dtype)} over a vocabulary of {vocabulary}"
    return Subject(title, "loss", shape, dtype, calls, floor, draw, build)


def typed(shape: Shape) -> str:
    return "x".join(map(str, shape))


def shown(shape: Shape, dtype: torch.dtype) -> str:
    return f"{typed(shape)} {str(dtype).removeprefix('torch.')}"
