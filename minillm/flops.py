"""Model FLOPs by one formula for every implementation, so that MFU compares implementations and not formulas."""

from minillm.config import ModelConfig

CONVENTION = "6 N + 6 L d T FLOPs a token, causal attention at half, against the dense bf16 peak"


def matmul_parameters(model: ModelConfig) -> int:
    """Parameters that multiply: every matrix but the embedding look-up; the output projection also when it is tied."""
    d, kv = model.hidden_size, model.num_kv_heads * model.head_dim
    attention = d * d + 2 * d * kv + d * d  # queries; keys and values; output
    mlp = 3 * d * model.intermediate_size
    assert model.vocab_size is not None
    return model.num_layers * (attention + mlp) + model.vocab_size * d


def flops_per_token(model: ModelConfig, sequence_length: int) -> int:
    """Forward and backward: 6 N_matmul + 6 L d T.

    6 a parameter: a multiplication and an addition, once forward, twice backward. 6 L d T: attention's two products
    under the causal mask (Chowdhery et al. 2022, PaLM, appendix B, halved).
    """
    attention = 6 * model.num_layers * model.hidden_size * sequence_length
    return 6 * matmul_parameters(model) + attention


def mfu(tokens_per_sec: float, flops_a_token: int, peak: float | None, devices: int) -> float | None:
    """Model FLOPs utilisation, the part of the devices' peak; None where the peak is not known."""
    return None if peak is None else tokens_per_sec * flops_a_token / (peak * devices)
