"""Llamas in Hugging Face's format: a folder with config.json, *.safetensors and the tokenizer's files.

Ours packs the projections that read the same input, theirs keeps them apart: that is all the difference. What
theirs may have and ours has not (other positions, biases, other activations) is refused by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minillm.config import Config, ModelConfig
from minillm.errors import UserError
from minillm.folders import check_writable

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# What a Llama's config.json may say besides its shape, and the only value of each that this model computes.
ONLY: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "quantization_config": None,
}
SHAPE = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "vocab_size": "vocab_size",
}


def parts(config: ModelConfig) -> dict[str, dict[str, int]]:
    """Our parameters' names, each with the names of theirs that it is made of, in order, and the rows of those."""
    d, kv, f, vocab = (
        config.hidden_size,
        config.num_kv_heads * config.head_dim,
        config.intermediate_size,
        config.vocab_size,
    )
    assert vocab is not None
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    names = {
        "embedding.weight": {embedding: vocab},
        "final_norm.weight": {"model.norm.weight": d},
        "lm_head.weight": {embedding if config.tie_embeddings else head: vocab},
    }
    for i in range(config.num_layers):
        ours, theirs = f"blocks.{i}", f"model.layers.{i}"
        attention = f"{theirs}.self_attn"
        names |= {
            f"{ours}.attention_norm.weight": {f"{theirs}.input_layernorm.weight": d},
            f"{ours}.attention.qkv.weight": {
                f"{attention}.q_proj.weight": d, f"{attention}.k_proj.weight": kv, f"{attention}.v_proj.weight": kv
            },
            f"{ours}.attention.out.weight": {f"{attention}.o_proj.weight": d},
            f"{ours}.mlp_norm.weight": {f"{theirs}.post_attention_layernorm.weight": d},
            f"{ours}.mlp.gate_up.weight": {f"{theirs}.mlp.gate_proj.weight": f, f"{theirs}.mlp.up_proj.weight": f},
            f"{ours}.mlp.down.weight": {f"{theirs}.mlp.down_proj.weight": d},
        }  # fmt: skip
    return names


def unpacked(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our parameters under their names; a tied matrix once."""
    return {
        theirs: part
        for ours, rows in parts(config).items()
        for theirs, part in zip(rows, state[ours].split(list(rows.values())), strict=True)
    }


def packed(tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Their parameters under our names. Raises UserError for one that is missing, or that ours has no place for."""
    names = parts(config)
    wanted = {theirs: rows for each in names.values() for theirs, rows in each.items()}
    if missing := sorted(wanted.keys() - tensors.keys()):
        raise UserError(f"the checkpoint has no {missing[0]} ({len(missing)} tensors are missing): it is not whole")
    tied = {"lm_head.weight"} if config.tie_embeddings else set()  # some files repeat the embedding under this name
    for name in sorted(tensors.keys() - wanted.keys() - tied):
        if not name.endswith("rotary_emb.inv_freq"):  # a table that old versions stored
            raise UserError(f"the checkpoint has {name}, which a plain Llama has not: it cannot be represented here")
    for name, rows in wanted.items():
        if tensors[name].shape[0] != rows:
            raise UserError(
                f"the checkpoint's {name} is {tuple(tensors[name].shape)}, not {rows} rows as {CONFIG} says"
            )
    return {ours: torch.cat([tensors[theirs] for theirs in each]) for ours, each in names.items()}


def shape_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `ModelConfig` that a config.json determines. Raises UserError, a line a misfit."""
    problems = [
        f"{key}={json.dumps(description[key])}: only {json.dumps(only)} can be represented"
        for key, only in ONLY.items()
        if description.get(key, only) != only
    ]
    missing = [key for key in SHAPE if not isinstance(description.get(key), int)]
    problems += [f"{key} is missing" for key in missing]
    rope = description.get("rope_parameters") or {}  # of transformers 5; rope_scaling and rope_theta are those of 4
    for positions in (rope, description.get("rope_scaling") or {}):
        kind = positions.get("rope_type", positions.get("type", "default"))
        if kind != "default":
            problems.append(f"rope_scaling of type {kind}: only plain rotary positions can be represented")
    if not missing:
        hidden, heads = description["hidden_size"], description["num_attention_heads"]
        if (description.get("head_dim") or hidden // heads) * heads != hidden:
            problems.append(
                f"head_dim={description['head_dim']}: only hidden_size / num_attention_heads can be represented"
            )
    if problems:
        raise UserError("\n".join(problems))
    return {
        **{ours: description[theirs] for theirs, ours in SHAPE.items()},
        "num_kv_heads": description.get("num_key_value_heads") or description["num_attention_heads"],
        "tie_embeddings": description.get("tie_word_embeddings", False),
        "norm_eps": float(description.get("rms_norm_eps") or 1e-6),
        "rope_theta": float(rope.get("rope_theta") or description.get("rope_theta") or 10000.0),
    }


def export(state: Mapping[str, Tensor], config: Config, tokenizer: Any | None, out: Path) -> None:
    """Write a model in Hugging Face's format into the folder `out`; no tokenizer: no files of one.

    Raises UserError if `out` holds one of these files already, or is no folder that can be written to.
    """
    save_file = safetensors().save_file
    check_writable(out, "type out=DIR")
    names = (CONFIG, WEIGHTS, "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    if there := [name for name in names if (out / name).exists()]:
        raise UserError(f"out={out} already holds {', '.join(there)}: choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in unpacked(state, config.model).items()}
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    end, ends = config.tokenizer.end_token, {}
    if tokenizer is not None:
        number = tokenizer.token_to_id(end)
        ends = {"bos_token_id": number, "eos_token_id": number}  # it also stands before each text in training
        tokenizer.save(str(out / "tokenizer.json"))
        write_json(
            out / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": end,
                "eos_token": end,
                "clean_up_tokenization_spaces": False,
                "model_max_length": config.data.sequence_length,
            },
        )
    write_json(out / "generation_config.json", ends)
    write_json(out / CONFIG, described(config, tensors["model.embed_tokens.weight"].dtype) | ends)  # last: it is whole
    (out / WEIGHTS).chmod((out / CONFIG).stat().st_mode)  # the library lets nobody else read it


def described(config: Config, dtype: torch.dtype) -> dict[str, Any]:
    """What config.json says: read by transformers 4 (rope_theta) and 5 (rope_parameters)."""
    model = config.model
    return {
        "architectures": ["LlamaForCausalLM"],
        **{key: only for key, only in ONLY.items() if only is not None},
        **{theirs: getattr(model, ours) for theirs, ours in SHAPE.items()},
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tie_embeddings,
        "max_position_embeddings": config.data.sequence_length,
        "initializer_range": model.init_std,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }


def safetensors() -> Any:
    """The library's part for PyTorch."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError("Hugging Face's weights are read and written by safetensors: pip install -e '.[hf]'") from error
    return safetensors.torch


def read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
