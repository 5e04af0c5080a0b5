"""Throughput, memory and FLOPs by hand-made numbers."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minillm import hardware
from minillm.callbacks.clock import StepClock
from minillm.callbacks.idle import covered, idle_share
from minillm.callbacks.throughput import Throughput, quantile
from minillm.flops import flops_per_token, matmul_parameters
from minillm.model import Llama
from tests.training.conftest import make_config, make_module

Run = Callable[..., tuple[dict[str, Any], Path]]


class FakeTimer:
    """A clock that is set by hand, in ms; marks later than `seen` have not been reached by the device."""

    def __init__(self) -> None:
        self.now, self.seen = 0.0, float("inf")

    def mark(self) -> float:
        return self.now

    def elapsed_ms(self, start: float, end: float) -> float | None:
        return end - start if end <= self.seen else None


def measured(steps: list[tuple[float, float]], warmup: int = 0, sequences: int = 8) -> Throughput:
    """Steps of (ms, ms of logging and validation after it), 8 sequences of 16 tokens each."""
    timer = FakeTimer()
    clock = StepClock(timer)
    throughput = Throughput(
        clock, warmup_steps=warmup, flops_per_token=1000, peak_flops=1e9, devices=2, gpu=False, idle=None
    )
    trainer = SimpleNamespace(global_step=0, max_steps=len(steps))
    batch = {"tokens": torch.zeros(sequences, 17), "index": torch.zeros(sequences)}
    for ms, between in steps:
        clock.start(StepClock.FETCH)
        clock.stop(StepClock.FETCH)
        clock.start(StepClock.STEP)
        timer.now += ms
        clock.stop(StepClock.STEP)
        trainer.global_step += 1
        throughput.on_train_batch_end(trainer, None, None, batch, 0)
        timer.now += between
    return throughput


def test_tokens_per_second_is_tokens_over_elapsed_without_warmup_and_what_lies_between() -> None:
    result = measured([(9000, 0), (100, 7000), (100, 0), (200, 500), (100, 0)], warmup=1).summary()
    assert result["tokens_per_sec"] == pytest.approx(2 * 4 * 8 * 16 / 0.5)
    assert result["step_ms"] == {"median": 100, "p10": 100, "p90": pytest.approx(170)}
    assert result["mfu"] == pytest.approx(2 * 4 * 8 * 16 / 0.5 * 1000 / (2 * 1e9))


def test_a_run_no_longer_than_its_warmup_has_no_timings() -> None:
    result = measured([(100, 0)] * 3, warmup=3).summary()
    assert result["tokens_per_sec"] is result["step_ms"] is result["mfu"] is None


def test_steps_that_the_device_has_not_reached_are_counted_later() -> None:
    throughput = measured([(100, 0)] * 4)
    throughput.clock.timer.seen = 250
    assert throughput.row()["perf/step_ms"] == 100
    assert len(throughput.counted) == 2
    throughput.clock.timer.seen = 1000
    throughput.summary()
    assert len(throughput.counted) == 4


def test_lightning_announces_every_step_and_accumulation_does_not_change_the_tokens(run: Run) -> None:
    for accumulate in (1, 4):
        result, _ = run({"batch.micro": 8 // accumulate, "batch.accumulate": accumulate}, name=str(accumulate))
        elapsed_s = result["step_ms"]["median"] / 1000
        assert result["tokens"] == 6 * 8 * 16
        assert result["tokens_per_sec"] == pytest.approx(8 * 16 / elapsed_s, rel=2)  # the right order, not a speed


def test_quantiles_are_linear_between_values() -> None:
    assert [quantile([4, 1, 3, 2], q) for q in (0, 0.5, 0.9, 1)] == pytest.approx([1, 2.5, 3.7, 4])


def test_model_flops_by_hand() -> None:
    config = make_config().model
    per_layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64
    assert matmul_parameters(config) == 2 * per_layer + 97 * 32
    assert flops_per_token(config, 16) == 6 * (2 * per_layer + 97 * 32) + 6 * 2 * 32 * 16


def test_matmul_parameters_are_those_of_the_model() -> None:
    model: Llama = make_module().model
    assert matmul_parameters(model.config) == sum(p.numel() for p in model.parameters() if p.ndim == 2)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA H20", 148e12),
        ("Tesla V100-SXM2-16GB", None),
        ("Some new thing", None),
    ],
)
def test_peaks_are_dense_bf16_or_unknown(name: str, peak: float | None) -> None:
    assert hardware.peak_flops(name) == peak


def test_what_no_kernel_covers_is_idle_and_what_two_cover_is_busy_once() -> None:
    assert covered([(0, 10), (5, 12), (20, 40), (22, 25)]) == 32
    assert covered([]) == 0
    assert idle_share(32.0, 40.0) == pytest.approx(0.2)
    assert idle_share(41.0, 40.0) == 0  # two measurements, each with its noise
    assert idle_share(None, 40.0) is idle_share(32.0, None) is None
