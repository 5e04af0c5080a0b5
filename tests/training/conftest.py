"""A model small enough to train in milliseconds, on random tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.config import Config
from minillm.layers import build_layers
from minillm.model import Llama
from minillm.module import LlamaModule
from minillm.train import train

BASE: dict[str, dict[str, Any]] = {
    "model": {
        "name": "test",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "vocab_size": 97,
        "tie_embeddings": True,
        "norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "residual_dtype": None,
        "init_std": 0.02,
    },
    "norm": {"name": "eager", "fuse_residual": True},
    "rope": {"name": "eager"},
    "mlp": {"name": "eager"},
    "loss": {"name": "eager"},
    "data": {
        "name": "synthetic",
        "sequence_length": 16,
        "val_fraction": 0.1,
        "num_workers": 0,
        "synthetic_tokens": 4000,
    },
    "tokenizer": {"path": None, "vocab_size": 257},
    "batch": {"micro": 4, "accumulate": 1},
    "optim": {
        "lr": 1e-2,
        "min_lr_ratio": 0.1,
        "schedule": "cosine",
        "warmup_steps": 2,
        "decay_fraction": 0.2,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip_norm": 1.0,
    },
    "trainer": {
        "accelerator": "cpu",
        "devices": 1,
        "precision": "32-true",
        "attention": "auto",
        "max_steps": 6,
        "val_every_steps": 4,
        "val_batches": 3,
        "log_every_steps": 1,
        "warmup_steps_excluded": 1,
        "deterministic": False,
        "progress_bar": False,
    },
    "checkpoint": {"every_steps": 3, "every_minutes": None, "keep": 2},
    "logger": {"name": "none", "project": "minillm", "entity": None, "group": None},
}


def make_config(overrides: dict[str, Any] | None = None) -> Config:
    """The config above with `{"group.field": value}` replaced."""
    values: dict[str, Any] = {section: dict(fields) for section, fields in BASE.items()}
    values |= {"compile": False, "seed": 0, "resume": None}
    for name, value in (overrides or {}).items():
        section, _, field = name.rpartition(".")
        (values[section] if section else values)[field] = value
    return Config.model_validate(values)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], Path]]:
    """run({"group.field": value}, name="a") trains in the folder of that name: (summary, folder)."""

    def run(overrides: dict[str, Any] | None = None, name: str = "run") -> tuple[dict[str, Any], Path]:
        folder = tmp_path / name
        return train(make_config(overrides), folder), folder

    return run


def make_module(overrides: dict[str, Any] | None = None) -> LlamaModule:
    """A module on the CPU, without a Trainer."""
    config = make_config(overrides)
    torch.manual_seed(0)
    layers = build_layers(config)
    return LlamaModule(config, Llama(config.model, layers), layers.loss, lambda nats: nats)
