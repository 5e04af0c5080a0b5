"""A run on the CPU leaves a GPU that is there, and was used by others in the process, alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minillm.attention import ANY_LENGTH, allowed, attention_kernels, settle_own_order
from minillm.callbacks.clock import HostTimer, StepClock
from minillm.callbacks.throughput import Throughput
from minillm.compare.turns import Turns
from minillm.train import train
from tests.training.conftest import make_config

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the GPU was touched")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for name in ("get_device_capability", "synchronize", "reset_peak_memory_stats", "max_memory_allocated", "Event"):
        monkeypatch.setattr(torch.cuda, name, touched)
    for name in ("_record_memory_history", "_dump_snapshot"):
        monkeypatch.setattr(torch.cuda.memory, name, touched)
    monkeypatch.setattr(torch, "_fused_sdp_choice", touched)


def test_attention_asks_the_runs_device() -> None:
    settle_own_order.cache_clear()
    assert allowed("auto", 1024, CPU) == ANY_LENGTH
    with attention_kernels("auto", 128, CPU):
        pass


@pytest.mark.parametrize("profile_steps", [0, 2])
def test_training_neither_touches_it_nor_reports_its_memory(
    profile_steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minillm.hardware.attention_backend", lambda config: "math")  # asks PyTorch, of a CPU tensor
    result = train(make_config({"trainer.profile_steps": profile_steps}), tmp_path)
    assert result["steps"] == 6
    assert result["peak_allocated_gib"] is result["whole_run_peak_gib"] is None
    assert (tmp_path / "trace.json.gz").exists() == bool(profile_steps)
    assert not (tmp_path / "memory.pickle").exists()


def test_a_turn_ends_without_waiting_for_it() -> None:
    told: list[Any] = []
    keeper = SimpleNamespace(report=told.append, steps=lambda: 0)
    clock: StepClock = StepClock(HostTimer())
    throughput = Throughput(clock, warmup_steps=1, flops_per_token=1, peak_flops=None, devices=1, gpu=False, idle=None)
    trainer = SimpleNamespace(should_stop=False)
    turns = Turns(keeper, throughput, 1, lambda losses: losses)
    turns.on_train_batch_end(trainer, None, {"loss": torch.tensor(2.0)}, {"index": torch.arange(4)}, 0)
    assert told[0].losses == [2.0]
    assert trainer.should_stop
