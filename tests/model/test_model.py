"""The model is the Llama that Hugging Face has, and its initialisation is the one that it states."""

import pytest
import torch

from minillm.config import ModelConfig, NormConfig
from minillm.layers.norm import build_norm
from minillm.model import Llama, rope_tables


def make(**changes: object) -> Llama:
    values = {
        "name": "test", "hidden_size": 64, "intermediate_size": 96, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2,
        "vocab_size": 101, "tie_embeddings": False, "norm_eps": 1e-5, "rope_theta": 10000.0, "residual_dtype": None,
        "init_std": 0.02,
    }  # fmt: skip
    config = ModelConfig.model_validate(values | changes)
    return Llama(config, lambda dim: build_norm(NormConfig(name="eager"), dim, config.norm_eps))


def as_hugging_face(model: Llama) -> torch.nn.Module:
    """transformers' Llama with our weights, the packed ones taken apart."""
    transformers = pytest.importorskip("transformers")
    c = model.config
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, vocab_size=c.vocab_size,
            rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tie_embeddings,
        )
    )  # fmt: skip
    state = {"model.embed_tokens.weight": model.embedding.weight, "lm_head.weight": model.lm_head.weight}
    state["model.norm.weight"] = model.final_norm.weight
    kv = c.num_kv_heads * c.head_dim
    for i, block in enumerate(model.blocks):
        q, k, v = block.attention.qkv.weight.split((c.hidden_size, kv, kv))
        gate, up = block.mlp.gate_up.weight.chunk(2)
        parts = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "mlp.gate_proj": gate}
        parts |= {
            "self_attn.o_proj": block.attention.out.weight,
            "mlp.up_proj": up,
            "mlp.down_proj": block.mlp.down.weight,
        }
        parts |= {"input_layernorm": block.attention_norm.weight, "post_attention_layernorm": block.mlp_norm.weight}
        state |= {f"model.layers.{i}.{name}.weight": weight for name, weight in parts.items()}
    theirs.load_state_dict({name: weight.detach() for name, weight in state.items()})
    return theirs


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_transformers_at_every_position(tied: bool) -> None:
    torch.manual_seed(0)
    model = make(tie_embeddings=tied, init_std=0.2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    tokens = torch.randint(101, (2, 17))
    with torch.no_grad():
        torch.testing.assert_close(
            model.logits(model(tokens)), as_hugging_face(model)(tokens).logits, rtol=1e-4, atol=1e-4
        )


def test_a_later_token_changes_no_earlier_logit() -> None:
    model, tokens = make(), torch.randint(101, (1, 9))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 101
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_initialisation_is_as_stated() -> None:
    torch.manual_seed(0)
    model = make(hidden_size=256, intermediate_size=512, num_layers=8)
    block = model.blocks[5]
    for weight in (model.embedding.weight, block.attention.qkv.weight, block.mlp.gate_up.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)
    for weight in (block.attention.out.weight, block.mlp.down.weight):
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.03)
    assert torch.equal(block.mlp_norm.weight, torch.ones(256))


def test_tied_embeddings_are_one_storage() -> None:
    model = make(tie_embeddings=True)
    assert model.lm_head.weight.data_ptr() == model.embedding.weight.data_ptr()
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in make().parameters()) - 101 * 64


def test_rope_tables_stay_fp32_whatever_the_model_is_cast_to() -> None:
    model = make().to(torch.bfloat16)
    model(torch.randint(101, (1, 5)))
    cos, sin = rope_tables(5, model.config.head_dim, model.config.rope_theta, torch.device("cpu"))
    assert (cos.dtype, sin.dtype) == (torch.float32, torch.float32)
    assert not list(model.buffers())


def test_rope_tables_made_while_validating_can_be_trained_with() -> None:
    rope_tables.cache_clear()
    model, tokens = make(), torch.randint(101, (1, 7))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
