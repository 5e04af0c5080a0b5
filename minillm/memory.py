"""The memory that a training step needs, by formula, before anything is allocated.

d hidden size, F intermediate size, K width of the keys (and of the values), H heads, V vocabulary, L layers; a bytes of
an activation (2, in 32-true 4), s bytes of the residual stream. A block keeps for backward, in bytes a token:

    norm, each      eager, custom               4 d + a d + 4   the stream in fp32, the rounded y before the weight
                    textbook                    2 s d + 4
                    torch, compiled, triton*    s d + 4         the stream, 1 / rms
    and its output  all                         a d             input of the next matrix product
    attention       all                         a (2 d + K) + 4 H   q, k, output, log-sum-exp
      values        rope=eager                  a (d + 2 K)     v is a part of the whole projection
                    rope=triton                 a K
    MLP             mlp=eager                   4 a F           gate and up, silu(gate), the activation
                    mlp=triton                  2 a F           gate and up

With activation checkpointing a block keeps its inputs, (a + s) d, and one block at a time all of the above. The loss
needs, beside what is kept, for T tokens of a micro-batch:

    eager           12 V T          log-probabilities and two gradients of theirs, fp32
    torch           12 d T + 4 (T + V) d    PyTorch's chunks, about as large as its input, and fp32 gradients
    triton          `kernels.linear_cross_entropy_chunks.extra_bytes`

Weights, gradients and both AdamW moments have 2 bytes a number in bf16-true, else 4 (and then matrices are kept in two
bytes as well by autocast). FSDP leaves a rank its share of these, the embedding, the output projection and two blocks
whole. The peak is the largest of three moments: in the loss (all activations), in the last block's backward, and at the
end of backward (all gradients). Compiled blocks count as the fused layers, which keep about what Inductor keeps.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from minillm import hardware
from minillm.config import BatchConfig, Config, ModelConfig
from minillm.errors import UserError
from minillm.flops import matmul_parameters

GIB = 2**30


@dataclass(frozen=True)
class Memory:
    """Bytes on each device: what is there for the whole run, and what a step adds."""

    weights: int
    optimizer: int
    gradients: int
    activations: int
    loss: int
    backward: int  # the gradients of one block's activations, or the activations that it computes again
    kept_gradients: bool  # they are there while a loss is computed: from earlier micro-batches, or as DDP's buckets

    @property
    def peak(self) -> int:
        early = self.gradients if self.kept_gradients else 0
        in_step = max(early + self.activations + max(self.loss, self.backward), self.gradients)
        return self.weights + self.optimizer + in_step

    def __str__(self) -> str:
        parts = ("weights", "optimizer", "gradients", "activations", "loss")
        shares = ", ".join(f"{name} {getattr(self, name) / GIB:.3g}" for name in parts)
        return f"{self.peak / GIB:.3g} GiB at the peak ({shares})"


def estimate(config: Config) -> Memory:
    """What a step of `config` needs on each device. `config.model.vocab_size` must be set."""
    model, precision, ranks = config.model, hardware.precision(config), 1
    assert model.vocab_size is not None
    d, table = model.hidden_size, model.vocab_size * model.hidden_size
    size = 2 if precision == "bf16-true" else 4
    activation = 4 if precision == "32-true" else 2
    tokens = config.batch.micro * config.data.sequence_length

    multiplied = matmul_parameters(model)  # the output projection among them
    weights = size * (multiplied + (0 if model.tie_embeddings else table)) + 4 * (2 * model.num_layers + 1) * d
    gathered = 0
    if config.trainer.strategy == "fsdp":
        ranks = config.trainer.devices
        block = (multiplied - table) // model.num_layers
        gathered = activation * (table * (1 if model.tie_embeddings else 2) + 2 * block)
    elif precision.endswith("-mixed"):
        gathered = 2 * (multiplied - (table if config.loss.name == "triton" else 0))  # autocast's copies

    block_kept, final_kept = kept_a_token(config, activation)
    stream = 4 if model.residual_dtype == "float32" else activation
    backward = 4 * activation * model.intermediate_size  # gradients of gate and up, of the activation, and it again
    if model.activation_checkpointing == "block":
        kept = (model.num_layers * (activation + stream) - stream) * d  # the first block starts the stream
        backward += block_kept
    else:
        kept = model.num_layers * block_kept
    return Memory(
        weights=weights // ranks + gathered,
        optimizer=2 * weights // ranks,
        gradients=weights // ranks,
        activations=tokens * (kept + final_kept),
        loss=loss_bytes(config.loss.name, model, tokens, activation, size),
        backward=tokens * backward + size * table,  # the output projection's gradient is there
        kept_gradients=config.batch.accumulate > 1 or config.trainer.strategy == "ddp",
    )


def kept_a_token(config: Config, activation: int) -> tuple[int, int]:
    """Bytes a token that a block keeps for backward, and what stands around the blocks: tokens, targets, final norm."""
    model, fused = config.model, config.compile
    d, keys = model.hidden_size, model.num_kv_heads * model.head_dim
    stream = 4 if model.residual_dtype == "float32" else activation
    match config.norm.name:
        case "textbook":
            norm = 2 * stream * d + 4
        case "torch" | "compiled" | "triton_simple" | "triton":
            norm = stream * d + 4
        case _:
            norm = (4 + activation) * d + 4
    norm_in_block = stream * d + 4 if fused else norm
    values = activation * (keys if fused or config.rope.name == "triton" else d + 2 * keys)
    attention = activation * (2 * d + keys) + 4 * model.num_heads + values
    mlp = activation * model.intermediate_size * (2 if fused or config.mlp.name == "triton" else 4)
    return 2 * (norm_in_block + activation * d) + attention + mlp, norm + activation * d + 16


def loss_bytes(name: str, model: ModelConfig, tokens: int, activation: int, weight: int) -> int:
    """What the loss needs beside its input and the weight, in bytes at its peak."""
    d, vocabulary = model.hidden_size, model.vocab_size
    assert vocabulary is not None
    if name == "eager":
        return 12 * vocabulary * tokens
    if name == "torch":
        return 12 * d * tokens + 4 * (tokens + vocabulary) * d
    from kernels.linear_cross_entropy_chunks import extra_bytes  # needs triton

    dtypes = {2: torch.bfloat16, 4: torch.float32}
    return extra_bytes(tokens, d, vocabulary, dtype=dtypes[activation], weight_dtype=dtypes[weight])


def free_bytes() -> int:
    """What this process can have of the current GPU: what is free, and what PyTorch has from it and does not use."""
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + unused


def smaller(config: Config, free: int) -> Iterator[BatchConfig]:
    """Batches of as many sequences a step whose memory fits, the largest micro-batch first."""
    sequences = config.batch.micro * config.batch.accumulate
    for micro in range(config.batch.micro - 1, 0, -1):
        if sequences % micro == 0:
            batch = config.batch.model_copy(update={"micro": micro, "accumulate": sequences // micro})
            if estimate(config.model_copy(update={"batch": batch})).peak <= free:
                yield batch


def check(config: Config, free: int | None) -> str:
    """A line about the memory needed and `free` (None: not known). Raises UserError where it will not fit."""
    needed = estimate(config)
    if free is None:
        return str(needed)
    if needed.peak <= free:
        return f"{needed}, {free / GIB:.1f} GiB free"
    batch = next(smaller(config, free), None)
    changes = [
        f"batch.micro={batch.micro} batch.accumulate={batch.accumulate}" if batch else "a smaller model",
        *(["loss=triton"] if config.loss.name == "eager" else []),
        *(["model.activation_checkpointing=block"] if config.model.activation_checkpointing == "none" else []),
        *(["trainer=fsdp with more trainer.devices"] if config.trainer.strategy != "fsdp" else []),
    ]
    raise UserError(
        f"the training needs {needed} on each device, and {free / GIB:.2f} GiB are free: try {' or '.join(changes)}"
    )
