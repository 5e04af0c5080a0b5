"""The optimizer step: accumulation, precision, and what it must not let pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer

from minillm.apply import compile_blocks, to_bf16
from minillm.build import build_module
from minillm.errors import UserError
from minillm.model import Llama
from tests.training.conftest import make_config, make_module

Run = Callable[..., tuple[dict[str, Any], Path]]


def gradients(sequences: int, micro: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one step over the same sequences, in micro-batches of `micro`."""
    module = make_module({"batch.micro": micro, "optim.clip_norm": None})
    tokens = torch.randint(97, (sequences, 17), generator=torch.Generator().manual_seed(1))
    grads: dict[str, torch.Tensor] = {}

    def keep(optimizer: object) -> torch.Tensor:
        grads.update({name: p.grad for name, p in module.named_parameters()})
        return torch.zeros(())

    module.optimizers = lambda: LightningOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    module.update, module.manual_backward = keep, torch.Tensor.backward
    module.trainer = FakeTrainer()
    return module.training_step({"tokens": tokens, "index": torch.arange(sequences)}, 0)["loss"].item(), grads


class FakeTrainer:
    global_step, world_size, barebones = 0, 1, False


@pytest.mark.parametrize(("sequences", "micro"), [(32, 8), (32, 1), (10, 4), (5, 8)])
def test_accumulation_is_a_mean_over_tokens_also_where_the_last_micro_batch_is_smaller(
    sequences: int, micro: int
) -> None:
    loss, grads = gradients(sequences, sequences)
    other_loss, other_grads = gradients(sequences, micro)
    assert other_loss == pytest.approx(loss, rel=1e-6)
    for name, grad in grads.items():
        torch.testing.assert_close(other_grads[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_every_norm_weight_moves_in_one_step(run: Run, precision: str) -> None:
    _, folder = run(
        {"trainer.precision": precision, "trainer.max_steps": 1, "optim.lr": 1e-4, "optim.weight_decay": 0.0}
    )
    weights = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    norms = {name: weight for name, weight in weights.items() if "norm" in name}
    assert len(norms) == 2 * 2 + 1
    for name, weight in norms.items():
        assert weight.dtype == torch.float32, name
        assert (weight != 1).all(), name
    assert weights["model.embedding.weight"].dtype == (torch.bfloat16 if precision == "bf16-true" else torch.float32)


def test_bf16_keeps_a_tied_matrix_one() -> None:
    model = make_module().model
    to_bf16(model)
    assert model.lm_head.weight is model.embedding.weight
    assert model.embedding.weight.dtype == torch.bfloat16


def test_compiling_changes_no_name_in_the_checkpoint() -> None:
    model = make_module().model
    before = list(model.state_dict())
    compile_blocks(model)
    assert list(model.state_dict()) == before


def test_every_norm_is_compiled_the_one_after_the_last_block_too() -> None:
    """Else norm=eager and norm=compiled, one and the same under compile=true, would differ in speed."""
    model = make_module().model
    compile_blocks(model)
    compiled = {id(part) for module in model.modules() if module._compiled_call_impl for part in module.modules()}
    norms = [module for name, module in model.named_modules() if name.endswith("norm")]
    assert len(norms) == 2 * len(model.blocks) + 1
    assert all(id(norm) in compiled for norm in norms)


def test_a_loss_that_is_no_number_stops_the_run_and_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Llama.forward
    calls, models = 0, set[Llama]()

    def breaks_in_step_4(self: Llama, tokens: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += self.training
        models.add(self)
        return forward(self, tokens) * (float("nan") if calls == 4 else 1.0)

    monkeypatch.setattr(Llama, "forward", breaks_in_step_4)
    with pytest.raises(UserError, match=r"wrong at step 4: loss nan.*samples \[.*last\.ckpt"):
        run({"checkpoint.every_steps": 2})
    (model,) = models
    assert all(p.isfinite().all() for p in model.parameters())  # step 4 has not reached them


def test_the_seed_alone_determines_the_weights() -> None:
    corpus = type("Corpus", (), {"bits_per_byte": None})
    first, again, other = (build_module(make_config({"seed": seed}), corpus).model for seed in (0, 0, 1))
    assert torch.equal(first.embedding.weight, again.embedding.weight)
    assert not torch.equal(first.embedding.weight, other.embedding.weight)
