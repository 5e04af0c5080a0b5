"""Small random Llamas of transformers, on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.config import Config
from minillm.data.tokenizer import train_tokenizer
from tests.training.conftest import make_config

transformers = pytest.importorskip("transformers")
END = "</s>"
SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "initializer_range": 0.2, "eos_token_id": [0, 1],
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """checkpoint(num_key_value_heads=1) writes a folder, a tokenizer in it: (folder, the model)."""

    def checkpoint(shards: str = "1GB", **changes: Any) -> tuple[Path, Any]:
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE | changes))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 2.0)
        folder = tmp_path / "their model"
        model.save_pretrained(folder, max_shard_size=shards)
        train_tokenizer([["some text of no importance"]], 300, END).save(str(folder / "tokenizer.json"))
        return folder, model

    return checkpoint


def starting_from(folder: Path, **changes: Any) -> Config:
    """A configuration with init_from=folder."""
    return make_config({"init_from": str(folder), **changes})
