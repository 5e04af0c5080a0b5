"""The norms train alike, and every precision trains on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_run import rows

Run = Callable[..., tuple[dict[str, Any], Path]]


def losses(run: Run, norm: str, overrides: dict[str, Any]) -> list[float]:
    _, folder = run({"norm.name": norm, "trainer.val_every_steps": 1000, **overrides}, name=norm)
    return [float(loss) for (loss,) in rows(folder, "train/loss")]


def distance(first: list[float], second: list[float]) -> float:
    """Mean absolute difference of two loss curves."""
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


def check_parity(run: Run, norms: tuple[str, ...], overrides: dict[str, Any]) -> None:
    """No norm is further from eager than 3 x what rounding alone does: eager against PyTorch's own."""
    eager = losses(run, "eager", overrides)
    rounding = distance(eager, losses(run, "torch", overrides))
    for norm in norms:
        # an fp32 loss near 4.6 is itself known to 5e-7
        assert distance(eager, losses(run, norm, overrides)) <= 3 * rounding + 5e-7, norm


def test_norms_train_alike_for_10_steps(run: Run) -> None:
    check_parity(run, ("textbook", "triton", "triton_simple"), {"trainer.max_steps": 10, "batch.micro": 2})


@pytest.mark.gpu
def test_norms_train_alike_for_200_steps_in_fp32(run: Run) -> None:
    overrides = {
        "trainer.max_steps": 200,
        "trainer.accelerator": "gpu",
        "optim.lr": 1e-3,
        "data.synthetic_tokens": 40000,
    }
    check_parity(run, ("textbook", "compiled", "triton", "triton_simple"), overrides)


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed", "bf16-true"])
def test_every_precision_trains_and_is_measured_on_a_gpu(run: Run, precision: str, compile: bool) -> None:
    # one batch again and again: a model that learns knows it by heart
    result, _ = run(
        {
            "norm.name": "triton",
            "trainer.accelerator": "gpu",
            "trainer.precision": precision,
            "trainer.max_steps": 60,
            "data.synthetic_tokens": 180,
            "compile": compile,
        }
    )
    assert result["train_loss"] < 3.5  # ln 97 = 4.57 at first
    assert result["gpu_idle_share"] is not None
    assert 0 <= result["gpu_idle_share"] < 1
    for key in ("tokens_per_sec", "data_wait_ms", "peak_allocated_gib", "peak_reserved_gib", "whole_run_peak_gib"):
        assert result[key] > 0, key
    assert result["whole_run_peak_gib"] >= result["peak_allocated_gib"]
