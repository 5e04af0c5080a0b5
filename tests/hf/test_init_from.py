"""init_from=: a Llama of Hugging Face's is ours to the last digits, or is refused by what makes it another model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.compose import check, read
from minillm.config import Config
from minillm.errors import UserError
from minillm.hf import unpacked
from minillm.init_from import adopted, load_weights
from minillm.layers import build_layers, loss, mlp, norm, rope
from minillm.model import Llama
from minillm.module import LlamaModule
from minillm.train import train
from tests.hf.conftest import END, starting_from
from tests.kernels.norms import DEVICE

Checkpoint = Callable[..., tuple[Path, Any]]
LAYERS = {layer.__name__.rpartition(".")[2]: layer.IMPLEMENTATIONS for layer in (norm, rope, mlp, loss)}
CHOICES = [{layer: name} for layer, names in LAYERS.items() for name in names if name != "compiled"]
CHOICES.append(dict.fromkeys(LAYERS, "triton"))


def module_of(config: Config) -> LlamaModule:
    layers = build_layers(config)
    model = Llama(config.model, layers)
    load_weights(model, config)
    return LlamaModule(config, model, layers.loss, lambda nats: nats)


def assert_the_same_model(ours: LlamaModule, theirs: Any) -> None:
    """Logits to 1e-5 of their size, at every position, and all gradients. One forward: what is compiled is so once."""
    ours, theirs, tokens = ours.to(DEVICE), theirs.to(DEVICE), torch.randint(300, (2, 17), device=DEVICE)
    expected = theirs(tokens, labels=tokens)
    expected.loss.backward()
    hidden = ours.model(tokens[:, :-1])
    (ours.loss(hidden, ours.model.lm_head.weight, tokens[:, 1:]) / 32).backward()
    logits, expected_logits = ours.model.logits(hidden), expected.logits[:, :-1]
    torch.testing.assert_close(logits, expected_logits, rtol=1e-5, atol=1e-5 * expected_logits.abs().max().item())
    gradients = {name: p.grad for name, p in ours.model.named_parameters(remove_duplicate=False)}
    mine = unpacked(gradients, ours.model.config)
    for name, parameter in theirs.named_parameters():
        size = parameter.grad.abs().max().item()
        torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-4, atol=1e-5 * size, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("layers", CHOICES, ids=lambda layers: " ".join(map("=".join, layers.items())))
def test_logits_and_gradients_are_theirs(checkpoint: Checkpoint, layers: dict[str, str]) -> None:
    folder, theirs = checkpoint()
    names = {f"{layer}.name": name for layer, name in layers.items()}
    assert_the_same_model(module_of(adopted(starting_from(folder, **names))), theirs)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for a CPU needs g++")
def test_so_are_those_of_the_compiled_norm(checkpoint: Checkpoint) -> None:
    folder, theirs = checkpoint(num_hidden_layers=1)
    assert_the_same_model(module_of(adopted(starting_from(folder, **{"norm.name": "compiled"}))), theirs)


@pytest.mark.parametrize(
    "changes",
    [{"tie_word_embeddings": True}, {"num_key_value_heads": 1}, {"num_key_value_heads": 4}, {"shards": "20KB"}],
    ids=["tied", "multi-query", "every head its own", "sharded"],
)
def test_so_are_those_of_its_variants(checkpoint: Checkpoint, changes: dict[str, Any]) -> None:
    folder, theirs = checkpoint(**changes)
    assert len(list(folder.glob("*.safetensors"))) == 1 or "shards" in changes
    assert_the_same_model(module_of(adopted(starting_from(folder))), theirs)


def test_the_shape_is_the_checkpoints_as_transformers_4_wrote_it_too(checkpoint: Checkpoint) -> None:
    folder, _ = checkpoint()
    new = adopted(starting_from(folder)).model
    rewrite(folder, rope_parameters=None, rope_theta=700.0, rope_scaling=None, torch_dtype="bfloat16")
    assert adopted(starting_from(folder)).model == new
    assert (new.num_kv_heads, new.rope_theta, new.norm_eps, new.vocab_size) == (2, 700.0, 1e-5, 300)


def rewrite(folder: Path, **changes: Any) -> None:
    """Change config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


REFUSED = [
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling of type llama3"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_scaling of type yarn"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling of type linear"),
    ({"attention_bias": True}, "attention_bias=true: only false can be represented"),
    ({"mlp_bias": True}, "mlp_bias=true: only false"),
    ({"hidden_act": "gelu"}, 'hidden_act="gelu": only "silu"'),
    ({"head_dim": 16}, "head_dim=16: only hidden_size / num_attention_heads"),
    ({"model_type": "mistral"}, 'model_type="mistral": only "llama"'),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"hidden_size": None}, "hidden_size is missing"),
]


@pytest.mark.parametrize(("changes", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_what_the_model_cannot_represent_is_refused_by_name(
    checkpoint: Checkpoint, changes: dict[str, Any], expected: str
) -> None:
    folder, _ = checkpoint()
    rewrite(folder, **changes)
    with pytest.raises(UserError) as raised:
        adopted(starting_from(folder))
    assert expected in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_biases_that_config_json_does_not_mention_are_refused(checkpoint: Checkpoint) -> None:
    folder, _ = checkpoint(attention_bias=True)
    rewrite(folder, attention_bias=False)
    with pytest.raises(UserError, match=r"model\.layers\.0\.self_attn\.k_proj\.bias"):
        module_of(adopted(starting_from(folder)))


@pytest.mark.parametrize("name", ["no such folder", "a/b/c"])
def test_a_name_that_is_neither_a_folder_nor_one_of_the_hub_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="is no folder, and no name on the hub"):
        adopted(starting_from(Path(name)))


def test_a_shape_that_is_typed_beside_it_is_refused() -> None:
    for typed in ("model=110m", "model.num_layers=3"):
        with pytest.raises(UserError, match="which brings its own shape"):
            check(read(["init_from=somewhere", typed]))
    (config,) = check(read(["init_from=somewhere", "model.residual_dtype=float32"]))
    assert config.init_from == "somewhere"


def test_training_starts_from_its_weights_and_resumes_without_them(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder, theirs = checkpoint()
    run, steps = tmp_path / "run", {"trainer.max_steps": 1, "optim.lr": 1e-12, "optim.weight_decay": 0.0}
    train(starting_from(folder, **steps), run)
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    torch.testing.assert_close(state["model.lm_head.weight"], theirs.lm_head.weight.detach())

    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    (config,) = check(read([f"resume={run}", "trainer.max_steps=2"]))
    assert train(config, run)["steps"] == 2


def test_text_is_read_with_its_tokenizer_and_its_end_token(checkpoint: Checkpoint) -> None:
    folder, _ = checkpoint()
    on_text = starting_from(folder, **{"data.name": "stdlib", "model.vocab_size": None})
    config = adopted(on_text)
    assert (config.tokenizer.path, config.tokenizer.end_token) == (str(folder / "tokenizer.json"), END)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        adopted(on_text)
