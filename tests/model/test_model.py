"""The model is the Llama that Hugging Face has, whatever runs its layers, and its initialisation is as stated."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from minillm.config import LAYERS
from minillm.model import Llama, rope_tables
from minillm.module import LlamaModule
from tests.training.conftest import make_module

SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_layers": 3, "vocab_size": 101, "tie_embeddings": False}
CHOICES = [
    {},
    {"norm": "torch"},
    {"norm": "triton"},
    {"rope": "triton"},
    {"mlp": "triton"},
    {"loss": "torch"},
    {"loss": "triton"},
    dict.fromkeys(LAYERS, "triton"),
]


def make(layers: Mapping[str, str] | None = None, **changes: object) -> LlamaModule:
    """A model of SHAPE with these implementations, and its loss."""
    names = {f"{layer}.name": name for layer, name in (layers or {}).items()}
    return make_module({f"model.{key}": value for key, value in (SHAPE | changes).items()} | names)


def under_their_names(model: Llama, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by our parameters' names, by transformers' instead, the packed ones taken apart."""
    c = model.config
    kv = c.num_kv_heads * c.head_dim
    named = {"model.embed_tokens": tensors["embedding.weight"], "model.norm": tensors["final_norm.weight"]}
    named["lm_head"] = tensors["embedding.weight" if c.tie_embeddings else "lm_head.weight"]
    for i in range(c.num_layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        q, k, v = tensors[f"{ours}.attention.qkv.weight"].split((c.hidden_size, kv, kv))
        gate, up = tensors[f"{ours}.mlp.gate_up.weight"].chunk(2)
        named |= {f"{theirs}.self_attn.{name}_proj": part for name, part in zip("qkv", (q, k, v), strict=True)}
        named |= {f"{theirs}.mlp.gate_proj": gate, f"{theirs}.mlp.up_proj": up}
        named[f"{theirs}.self_attn.o_proj"] = tensors[f"{ours}.attention.out.weight"]
        named[f"{theirs}.mlp.down_proj"] = tensors[f"{ours}.mlp.down.weight"]
        named[f"{theirs}.input_layernorm"] = tensors[f"{ours}.attention_norm.weight"]
        named[f"{theirs}.post_attention_layernorm"] = tensors[f"{ours}.mlp_norm.weight"]
    return {f"{name}.weight": tensor.detach() for name, tensor in named.items()}


def as_hugging_face(model: Llama) -> torch.nn.Module:
    """transformers' Llama with our weights."""
    transformers = pytest.importorskip("transformers")
    c = model.config
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=c.hidden_size, intermediate_size=c.intermediate_size, num_hidden_layers=c.num_layers,
            num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads, vocab_size=c.vocab_size,
            rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tie_embeddings,
        )
    )  # fmt: skip
    theirs.load_state_dict(under_their_names(model, dict(model.named_parameters())))
    return theirs


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", CHOICES, ids=lambda layers: " ".join(map("=".join, layers.items())) or "eager")
def test_logits_loss_and_gradients_are_those_of_transformers(layers: dict[str, str], tied: bool) -> None:
    module = make(layers, tie_embeddings=tied, init_std=0.2)
    with torch.no_grad():
        for name, parameter in module.model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 2.0)
    theirs = as_hugging_face(module.model)
    tokens = torch.randint(101, (2, 17))
    expected = theirs(tokens, labels=tokens)
    expected.loss.backward()

    loss = module.loss_sum(tokens) / (2 * 16)
    loss.backward()
    with torch.no_grad():
        logits = module.model.logits(module.model(tokens))
    torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-4)  # at every position
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-5)
    ours = under_their_names(module.model, {name: p.grad for name, p in module.model.named_parameters()})
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_later_token_changes_no_earlier_logit() -> None:
    model, tokens = make().model, torch.randint(101, (1, 9))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 101
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_initialisation_is_as_stated() -> None:
    model = make(hidden_size=256, intermediate_size=512, num_layers=8).model
    block = model.blocks[5]
    for weight in (model.embedding.weight, block.attention.qkv.weight, block.mlp.gate_up.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)
    for weight in (block.attention.out.weight, block.mlp.down.weight):
        assert weight.std().item() == pytest.approx(0.02 / 4, rel=0.03)
    assert torch.equal(block.mlp_norm.weight, torch.ones(256))


def test_tied_embeddings_are_one_storage() -> None:
    tied, untied = make(tie_embeddings=True).model, make().model
    assert tied.lm_head.weight.data_ptr() == tied.embedding.weight.data_ptr()
    assert sum(p.numel() for p in tied.parameters()) == sum(p.numel() for p in untied.parameters()) - 101 * 64


def test_rope_tables_stay_fp32_whatever_the_model_is_cast_to() -> None:
    model = make().model.to(torch.bfloat16)
    model(torch.randint(101, (1, 5)))
    cos, sin = rope_tables(5, model.config.head_dim, model.config.rope_theta, torch.device("cpu"))
    assert (cos.dtype, sin.dtype) == (torch.float32, torch.float32)
    assert not list(model.buffers())


@pytest.mark.parametrize("rope", ["eager", "triton"])
def test_rope_tables_made_while_validating_can_be_trained_with(rope: str) -> None:
    rope_tables.cache_clear()
    model, tokens = make({"rope": rope}).model, torch.randint(101, (1, 7))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
