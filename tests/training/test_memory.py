"""The formula against what autograd keeps, and against peaks that were measured on a GPU."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm import memory
from minillm.apply import checkpoint_blocks, to_bf16
from minillm.errors import UserError
from tests.training.conftest import make_config, make_module

FUSED = {f"{layer}.name": "triton" for layer in ("norm", "rope", "mlp", "loss")}
SHAPE = {"model.hidden_size": 64, "model.intermediate_size": 192, "model.num_layers": 3, "data.sequence_length": 32}


def kept_bytes(changes: dict[str, Any]) -> int:
    """What a forward pass of one micro-batch keeps, up to the loss, weights and their casts left out."""
    module = make_module(changes)
    if changes["trainer.precision"] == "bf16-true":
        to_bf16(module.model)
    if changes.get("model.activation_checkpointing") == "block":
        checkpoint_blocks(module.model)
    tokens = torch.randint(97, (module.config.batch.micro, module.config.data.sequence_length + 1))
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # so that no two have one address

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.ndim > 1:
            alive.append(tensor)
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module.model.logits(module.model(tokens[:, :-1]))
    return sum(kept.values())


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
@pytest.mark.parametrize("checkpointing", ["none", "block"])
@pytest.mark.parametrize("layers", [{}, FUSED, {"norm.name": "textbook"}], ids=["eager", "triton", "textbook"])
def test_the_activations_are_those_that_autograd_keeps(
    layers: dict[str, Any], checkpointing: str, precision: str
) -> None:
    changes = SHAPE | layers | {"trainer.precision": precision, "model.activation_checkpointing": checkpointing}
    assert memory.estimate(make_config(changes)).activations == pytest.approx(kept_bytes(changes), rel=0.05)


H110M = {
    "model.hidden_size": 768,
    "model.intermediate_size": 2048,
    "model.num_layers": 12,
    "model.num_heads": 12,
    "model.num_kv_heads": 12,
    "model.vocab_size": 32000,
    "model.tie_embeddings": False,
    "data.sequence_length": 1024,
    "batch.micro": 32,
    "trainer.precision": "bf16-true",
}
H1B = H110M | {
    "model.hidden_size": 2048,
    "model.intermediate_size": 8192,
    "model.num_layers": 16,
    "model.num_heads": 32,
    "model.num_kv_heads": 8,
    "model.vocab_size": 128256,
    "data.sequence_length": 2048,
    "batch.micro": 8,
}


@pytest.mark.parametrize(
    ("config", "layers", "gib"),
    [
        (H110M, {}, 26.6),
        (H110M, {"norm.name": "torch"}, 24.3),
        (H110M, {"norm.name": "textbook"}, 25.5),
        (H110M, FUSED, 8.95),
        (H1B, {}, 59.96),
        (H1B, {"norm.name": "triton"}, 55.8),
    ],
)
def test_peaks_measured_on_an_h200(config: dict[str, Any], layers: dict[str, Any], gib: float) -> None:
    assert memory.estimate(make_config(config | layers)).peak / memory.GIB == pytest.approx(gib, rel=0.03)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    config = make_config(H110M)
    assert "20.0 GiB free" in memory.check(make_config(H110M | FUSED), 20 * memory.GIB)
    with pytest.raises(UserError, match=r"needs 26\.\d+ GiB .* 20\.00 GiB are free: try batch\.micro=(\d+)") as refused:
        memory.check(config, 20 * memory.GIB)
    micro = int(str(refused.value).split("batch.micro=")[1].split()[0])
    memory.check(make_config(H110M | {"batch.micro": micro, "batch.accumulate": 2}), 20 * memory.GIB)
    for better in ("loss=triton", "model.activation_checkpointing=block", "trainer=fsdp"):
        assert better in str(refused.value)


@pytest.mark.parametrize("free", range(4, 20, 2))  # GiB
def test_what_is_advised_fits_and_makes_as_many_sequences_a_step(free: int) -> None:
    with pytest.raises(UserError) as refused:
        memory.check(make_config(H110M | {"batch.micro": 30, "batch.accumulate": 3}), free * memory.GIB)
    advised = re.search(r"try batch.micro=(\d+) batch.accumulate=(\d+)", str(refused.value))
    assert advised is not None
    micro, accumulate = map(int, advised.groups())
    assert micro * accumulate == 90
    memory.check(make_config(H110M | {"batch.micro": micro, "batch.accumulate": accumulate}), free * memory.GIB)


def test_a_rank_of_several_needs_its_share() -> None:
    whole = memory.estimate(make_config(H1B))
    part = memory.estimate(make_config(H1B | {"trainer.strategy": "fsdp", "trainer.devices": 8}))
    assert part.optimizer == pytest.approx(whole.optimizer / 8, rel=0.01)
    assert part.activations == whole.activations
