"""The bytes that a step's fused layers cannot avoid, by formula from the shapes: beside matmul, attention, optimizer.

With `kernels`' contracts (v copied with q and k, the MLP's activation computed again, the loss's gradients summed in
fp32), activations and gradients in two bytes, weights untied, no clipping. N tokens, d hidden size, L layers:

- norms, an element of (N, d): the first 4 forward (x; y) and 8 backward (dy, the stream's gradient, x; dx); the 2L - 1
  in between 8 (x, stream; stream, y) and 8; the last 8 and 6 (nobody uses its stream)
- rotary: 4 forward and 4 backward an element of qkv, (N, (H + 2K) D), a layer
- swiglu_linear: 6 forward (gate, up; h) and 12 backward (dh, gate, up; dgate, dup, h) an element of (N, F), a layer
- loss: 6 a logit (read for its maximum and sum, read again for its gradient, which is written)
- embedding: 4 forward (row; y) and 2 backward (dy) an element of (N, d), 2 an element of its gradient (V, d)
- gradients: 6 an element of the loss's two, (N, d) and (V, d), which are rounded once, from fp32
"""

from minillm.config import ModelConfig


def countable_traffic(model: ModelConfig, tokens: int) -> dict[str, int]:
    """Bytes a step by layer, `tokens` of them in the step. `model.vocab_size` must be set."""
    assert model.vocab_size is not None
    hidden = tokens * model.hidden_size
    table = model.vocab_size * model.hidden_size
    packed = tokens * (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    return {
        "norm": hidden * (12 + 16 * (2 * model.num_layers - 1) + 14),
        "rope": packed * 8 * model.num_layers,
        "activation": tokens * model.intermediate_size * 18 * model.num_layers,
        "head and loss": tokens * model.vocab_size * 6 + (hidden + table) * 6,
        "embedding": hidden * 6 + table * 2,
    }
