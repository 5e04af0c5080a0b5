"""Layers whose implementation is a config choice: a dict from name to implementation in each file.

All implementations of a layer compute the same function with the same parameters, so a checkpoint trained with one
loads with any other. `build_layers` turns the names in a config into what the model calls, and refuses what cannot be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

import kernels
from minillm.config import LAYERS, Config
from minillm.errors import UserError
from minillm.layers import mlp, rope
from minillm.layers.loss import Loss, build_loss
from minillm.layers.mlp import SwigluLinear
from minillm.layers.norm import IMPLEMENTATIONS as NORMS
from minillm.layers.norm import build_norm
from minillm.layers.rope import Rope


@dataclass(frozen=True)
class Layers:
    """What a model is built of."""

    norm: Callable[[int], nn.Module]  # dim -> a norm: `y, stream = norm(x, stream)`
    rope: Rope
    mlp: SwigluLinear
    loss: Loss


def build_layers(config: Config) -> Layers:
    """The layers that `config` names. Raises UserError, naming what to use instead, for what cannot be built here:
    building and throwing away is the check."""
    asked = triton_layers(config)
    if asked and not kernels.AVAILABLE:
        instead = (f"{choice.split('=')[0]}={'torch' if choice.startswith('norm') else 'eager'}" for choice in asked)
        raise UserError(
            f"{' '.join(asked)} needs triton, which is not installed (it exists for Linux): use {' '.join(instead)}"
        )
    residual_dtype = torch.float32 if config.model.residual_dtype == "float32" else None
    norm = partial(build_norm, config.norm, eps=config.model.norm_eps, residual_dtype=residual_dtype)
    norm(config.model.hidden_size)
    return Layers(
        norm=norm,
        rope=rope.IMPLEMENTATIONS[config.rope.name],
        mlp=mlp.IMPLEMENTATIONS[config.mlp.name],
        loss=build_loss(config.loss),
    )


def layer_names(config: Config) -> dict[str, str]:
    """The implementation of each layer: what runs, since none falls back to another."""
    return {layer: getattr(config, layer).name for layer in LAYERS}


def triton_layers(config: Config) -> list[str]:
    """The layers that are Triton kernels of ours, as they are typed: `["norm=triton", "mlp=triton"]`."""
    norms = {name for name, norm in NORMS.items() if norm.needs_triton}
    return [f"{layer}={name}" for layer, name in layer_names(config).items() if name in {"triton", *norms}]
