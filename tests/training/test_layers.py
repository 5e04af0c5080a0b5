"""The layers train alike, a checkpoint of one is a checkpoint of all, and every precision trains on a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.operator import INTERPRETED
from minillm.config import LAYERS
from minillm.layers import layer_names
from minillm.train import build_loggers
from tests.training.conftest import make_config
from tests.training.test_run import rows

Run = Callable[..., tuple[dict[str, Any], Path]]


Names = dict[str, str]
FUSED: Names = dict.fromkeys(LAYERS, "triton")


def losses(run: Run, names: Names, overrides: dict[str, Any]) -> list[float]:
    """The loss of every step with these implementations, by layer."""
    _, folder = run(
        {f"{layer}.name": name for layer, name in names.items()} | {"trainer.val_every_steps": 1000} | overrides,
        name="-".join(f"{layer}-{name}" for layer, name in names.items()),
    )
    return [float(loss) for (loss,) in rows(folder, "train/loss")]


def distance(first: list[float], second: list[float]) -> float:
    """Mean absolute difference of two loss curves."""
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / len(first)


def check_parity(run: Run, variants: list[Names], overrides: dict[str, Any]) -> None:
    """No variant is further from eager than 3 x what rounding alone does: eager against PyTorch's own norm."""
    eager = losses(run, {"norm": "eager"}, overrides)
    rounding = distance(eager, losses(run, {"norm": "torch"}, overrides))
    for names in variants:
        # an fp32 loss near 4.6 is itself known to 5e-7
        assert distance(eager, losses(run, names, overrides)) <= 3 * rounding + 5e-7, names


def test_layers_train_alike_for_10_steps(run: Run) -> None:
    norms = [{"norm": name} for name in ("textbook", "triton", "triton_simple")]
    check_parity(run, [*norms, {"loss": "torch"}, FUSED], {"trainer.max_steps": 10, "batch.micro": 1})


@pytest.mark.gpu
def test_layers_train_alike_for_200_steps_in_fp32(run: Run) -> None:
    overrides = {
        "trainer.max_steps": 200,
        "trainer.accelerator": "gpu",
        "optim.lr": 1e-3,
        "data.synthetic_tokens": 40000,
    }
    norms = [{"norm": name} for name in ("textbook", "compiled", "triton", "triton_simple")]
    check_parity(run, [*norms, *({layer: "triton"} for layer in LAYERS[1:]), FUSED], overrides)


def test_a_checkpoint_of_any_layers_goes_on_with_any_other_and_says_what_ran(run: Run) -> None:
    eager = dict.fromkeys(LAYERS, "eager")
    for number, names in enumerate((eager, FUSED, eager | {"loss": "torch"}, FUSED | {"norm": "eager"})):
        steps = number + 1
        overrides = {f"{layer}.name": name for layer, name in names.items()}
        result, _ = run(overrides | {"trainer.max_steps": steps, "resume": "last" if number else None})
        assert result["steps"] == steps
        assert result["layers_ran"] == names
        assert result["timings_valid"] is ("triton" not in names.values() or not INTERPRETED)


def test_wandb_is_told_what_ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, Any] = {}

    class Recorder:
        def __init__(self, folder: Path, config: Any, run_config: dict[str, Any], tags: list[str], **_: Any) -> None:
            told.update(run_config, tags=tags)

        def where(self) -> str:
            return ""

    monkeypatch.setattr("minillm.train.WandbLog", Recorder)
    config = make_config({"logger.name": "wandb", "mlp.name": "triton"})
    ran = layer_names(config)
    known = {"env": {}, "layers_ran": ran, "attention_backend": "flash", "precision": "32-true"}
    build_loggers(config, tmp_path, known, start_step=0)
    assert (told["layers_ran"], told["attention_backend"]) == (ran, "flash")
    assert {"norm=eager", "rope=eager", "mlp=triton", "loss=eager", "32-true"} <= set(told["tags"])


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed", "bf16-true"])
def test_every_precision_trains_and_is_measured_on_a_gpu(run: Run, precision: str, compile: bool) -> None:
    # one batch again and again: a model that learns knows it by heart
    result, _ = run(
        {
            **{f"{layer}.name": "triton" for layer in LAYERS},
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
