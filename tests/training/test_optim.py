"""The schedule, the parameter groups, clipping and skipping."""

import pytest
import torch

from minillm.config import OptimConfig
from minillm.optim import build_optimizer, clip_gradients, lr_factor, parameter_groups, skip_unless_finite
from tests.training.conftest import BASE, make_module


def schedule(max_steps: int, **values: object) -> list[float]:
    config = OptimConfig.model_validate(BASE["optim"] | {"min_lr_ratio": 0.0} | values)
    return [lr_factor(step, max_steps, config) for step in range(max_steps)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"schedule": "cosine", "warmup_steps": 2}, [0.5, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ({"schedule": "cosine", "warmup_steps": 2, "min_lr_ratio": 0.2}, [0.5, 1.0, 0.882843, 0.6, 0.317157, 0.2]),
        ({"schedule": "wsd", "warmup_steps": 2, "decay_fraction": 1 / 3}, [0.5, 1.0, 1.0, 1.0, 0.5, 0.0]),
        ({"schedule": "wsd", "warmup_steps": 4, "decay_fraction": 1.0}, [0.25, 0.5, 0.75, 1.0, 0.5, 0.0]),
        ({"schedule": "wsd", "warmup_steps": 0, "decay_fraction": 0.0}, [1.0] * 6),
        ({"schedule": "constant", "warmup_steps": 0}, [1.0] * 6),
        ({"schedule": "constant", "warmup_steps": 6}, [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0]),
    ],
)
def test_schedule_is_this_table(values: dict[str, object], expected: list[float]) -> None:
    assert schedule(6, **values) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["cosine", "wsd", "constant"])
def test_learning_rate_is_never_negative_and_never_zero_at_first(name: str) -> None:
    for warmup in (0, 1, 7):
        for max_steps in (max(1, warmup), 8, 50):
            factors = schedule(max_steps, schedule=name, warmup_steps=warmup, decay_fraction=0.5, min_lr_ratio=0.1)
            assert min(factors) > 0
            assert max(factors) <= 1


def test_only_matrices_decay_and_a_tied_one_is_there_once() -> None:
    model = make_module().model
    matrices, vectors = parameter_groups(model, weight_decay=0.1)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in vectors["params"]} == {1}
    assert len(vectors["params"]) == 2 * 2 + 1
    assert len(matrices["params"]) == 4 * 2 + 1  # the embedding is the output projection


def test_clipping_scales_all_gradients_by_one_factor_and_returns_the_norm_before() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0], dtype=torch.bfloat16)
    assert clip_gradients(parameters, max_norm=None) == 5
    assert clip_gradients(parameters, max_norm=10.0) == 5
    assert clip_gradients(parameters, max_norm=1.0) == 5
    assert parameters[0].grad.tolist() == pytest.approx([0.6, 0.0], rel=1e-5)
    assert parameters[1].grad.item() == pytest.approx(0.8, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_with_a_gradient_that_is_no_number_changes_nothing(dtype: torch.dtype, bad: float) -> None:
    module = make_module()
    model = module.model.to(dtype)
    optimizer = build_optimizer(model, module.config.optim, seed=0)

    def step(poison: float) -> None:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        model.final_norm.weight.grad[3] = poison
        skip_unless_finite(optimizer, clip_gradients(model.parameters(), 1.0))
        optimizer.step()

    step(1.0)
    before = [p.clone() for p in model.parameters()]
    step(bad)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    step(1.0)
    assert not any(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert all(p.isfinite().all() for p in model.parameters())
