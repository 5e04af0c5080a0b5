"""A Llama-style decoder, whole.

- pre-norm RMSNorm; rotary positions (half-split layout, as Hugging Face's); grouped-query attention; SwiGLU
- no biases anywhere; embedding and output projection tied or not
- projections that read the same input are packed: one `qkv`, one `gate_up`, one matrix product each
- the residual stream is threaded through the norms: `y, stream = norm(x, stream)` adds the last layer's output to the
  stream and normalises it, so that one kernel can do both

Shapes: B sequences, T positions, d hidden size, H query heads, K key/value heads, D head dimension, V vocabulary.
Which norm, rotary positions and MLP run is the caller's choice (`layers/`). What is done *to* a model (compiling,
precision, sharding) is in `apply.py`; nothing here knows of it.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minillm.config import ModelConfig
from minillm.kv_cache import KVCache
from minillm.layers import Layers


@lru_cache(maxsize=8)
def rope_tables(length: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of position x frequency, each (length, head_dim / 2), always fp32: bf16 angles drift with position.

    frequency_i = theta^(-2i / head_dim) (Su et al. 2021, RoFormer, eq. 15). Kept outside the module: a buffer would be
    cast with it.
    """
    with torch.inference_mode(False), torch.no_grad():  # training may reuse what validation made first
        frequencies = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
        angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequencies
        return angles.cos(), angles.sin()


class Attention(nn.Module):
    """Causal self-attention, H query heads over K key/value heads. (B, T, d) -> (B, T, d).

    With a cache, x follows the positions that are in it: all of the prompt into an empty one, then a token at a time.
    """

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.rope = layers.rope
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        width = config.num_heads * config.head_dim
        self.qkv = nn.Linear(config.hidden_size, width + 2 * config.num_kv_heads * config.head_dim, bias=False)
        self.out = nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None = None) -> Tensor:
        q, k, v = self.rope(self.qkv(x), cos, sin, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, heads, T, D), views
        if cache is not None:
            k, v = cache.append(k, v)
        causal = x.shape[1] > 1  # one token sees all that came before it
        grouped = self.num_kv_heads != self.num_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate) * up). (B, T, d) -> (B, T, d)."""

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.swiglu_linear = layers.mlp
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.swiglu_linear(self.gate_up(x), self.down.weight)


class Block(nn.Module):
    """Attention, then the MLP. Each reads the normalised stream; the next norm adds its output to the stream."""

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        super().__init__()
        self.attention_norm = layers.norm(config.hidden_size)
        self.attention = Attention(config, layers)
        self.mlp_norm = layers.norm(config.hidden_size)
        self.mlp = MLP(config, layers)

    def forward(
        self, x: Tensor, stream: Tensor | None, cos: Tensor, sin: Tensor, cache: KVCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d): what the stream does not hold yet; stream None before the first block."""
        h, stream = self.attention_norm(x, stream)
        h, stream = self.mlp_norm(self.attention(h, cos, sin, cache), stream)
        return self.mlp(h), stream


class Llama(nn.Module):
    """tokens (B, T) int64 -> hidden states after the final norm (B, T, d).

    With `caches`, one a block, the tokens follow those that are in them, and are added.
    """

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        """`config.vocab_size` must be set."""
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("vocab_size is not set: take the tokenizer's")
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layers) for _ in range(config.num_layers))
        self.final_norm = layers.norm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.initialize()

    def initialize(self) -> None:
        """Matrices ~ N(0, init_std^2); the 2L that write to the stream by 1 / sqrt(2L) less, so that its variance does
        not grow with depth (Radford et al. 2019, GPT-2). Norm weights are left at one."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.init_std)
        for module in self.modules():
            if isinstance(module, Block):
                for projection in (module.attention.out, module.mlp.down):
                    nn.init.normal_(projection.weight, std=self.config.init_std / (2 * self.config.num_layers) ** 0.5)
        if self.config.tie_embeddings:
            self.lm_head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, caches: Sequence[KVCache] = ()) -> Tensor:
        if caches and len(caches) != len(self.blocks):
            raise ValueError(f"{len(caches)} caches for {len(self.blocks)} blocks: give one a block")
        start, length = (caches[0].length, caches[0].capacity) if caches else (0, tokens.shape[1])
        tables = rope_tables(length, self.config.head_dim, self.config.rope_theta, tokens.device)
        if start + tokens.shape[1] > length:
            raise ValueError(f"{tokens.shape[1]} positions after {start} in caches of {length}: give no more than fit")
        cos, sin = (table[start : start + tokens.shape[1]] for table in tables)
        x, stream = self.embedding(tokens), None
        for block, cache in zip_longest(self.blocks, caches):
            x, stream = block(x, stream, cos, sin, cache)
        hidden, _ = self.final_norm(x, stream)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (..., d) -> (..., V)."""
        return self.lm_head(hidden)
