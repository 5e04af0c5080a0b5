"""Throughput and memory of the training steps, first ones excluded."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from minillm import distributed
from minillm.callbacks.clock import Step, StepClock
from minillm.callbacks.idle import IdleProbe, idle_share
from minillm.flops import mfu

GIB = 2**30
PROFILED_STEPS = 3  # the last ones, profiled for the time of their kernels: not counted


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, linear between the two nearest values."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def deciles(values: Sequence[float]) -> dict[str, float]:
    """The middle and the outer ones, of one value or more."""
    return {"median": statistics.median(values), "p10": quantile(values, 0.1), "p90": quantile(values, 0.9)}


class Throughput(Callback):
    """Counts the steps after the first `warmup_steps` of this process: compiling, allocator, clocks.

    On a GPU the last three are profiled and not counted either. Peak memory is reset after the warm-up, and the whole
    run's peak kept beside it.
    """

    def __init__(
        self,
        clock: StepClock,
        *,
        warmup_steps: int,
        flops_per_token: int,
        peak_flops: float | None,
        devices: int,
        gpu: bool,
        idle: IdleProbe | None,
    ) -> None:
        """Measure for one rank of `devices`, which work in step.

        Args:
            flops_per_token: the model's (`flops.py`).
            peak_flops: of one device, FLOP/s; None where unknown.
            gpu: whether they are GPUs, whose memory is reported.
            idle: None without a GPU.
        """
        self.clock, self.warmup_steps = clock, warmup_steps
        self.flops_per_token, self.peak_flops, self.devices = flops_per_token, peak_flops, devices
        self.gpu, self.idle = gpu, idle
        self.steps_here = 0
        self.counted: list[Step] = []
        self.since_last_row: list[Step] = []
        self.warmup_peak = (0, 0)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.steps_here += 1
        remaining = trainer.max_steps - trainer.global_step
        profiled = self.idle is not None and remaining < PROFILED_STEPS
        if self.steps_here > self.warmup_steps and not profiled:
            self.clock.close(batch["index"].numel() * (batch["tokens"].shape[1] - 1))
        if self.steps_here == self.warmup_steps:
            self.warmup_peak = self.peaks()
            if self.gpu:
                torch.cuda.reset_peak_memory_stats()
        if self.idle is not None and self.steps_here > self.warmup_steps:
            if remaining == PROFILED_STEPS:
                self.idle.start()
            elif remaining == 0:
                self.idle.stop()

    def peaks(self) -> tuple[int, int]:
        """Peak bytes (allocated, reserved) of this rank since the last reset; zeros without a GPU."""
        if not self.gpu:
            return 0, 0
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()

    def collect(self) -> None:
        steps = self.clock.take()
        self.counted += steps
        self.since_last_row += steps

    def row(self) -> dict[str, float | None]:
        """The logged metrics: speed over the counted steps since the last row."""
        self.collect()
        steps, self.since_last_row = self.since_last_row, []
        speed, memory = self.rates(steps), self.memory()
        step_ms = speed["step_ms"]
        return {
            "perf/tokens_per_sec": speed["tokens_per_sec"],
            "perf/step_ms": None if step_ms is None else step_ms["median"],
            "perf/mfu": speed["mfu"],
            "perf/data_wait_ms": speed["data_wait_ms"],
            "memory/peak_allocated_gib": memory["peak_allocated_gib"],
            "memory/peak_reserved_gib": memory["peak_reserved_gib"],
        }

    def rates(self, steps: Sequence[Step]) -> dict[str, Any]:
        if not steps:
            return dict.fromkeys(("tokens_per_sec", "step_ms", "mfu", "data_wait_ms"))
        times = [step.ms for step in steps]
        tokens_per_sec = 1000 * sum(step.tokens for step in steps) * self.devices / sum(times)
        return {
            "tokens_per_sec": tokens_per_sec,
            "step_ms": deciles(times),
            "mfu": mfu(tokens_per_sec, self.flops_per_token, self.peak_flops, self.devices),
            "data_wait_ms": statistics.mean(step.wait_ms for step in steps),
        }

    def memory(self) -> dict[str, float | None]:
        """Of the rank that needed most; all ranks take part."""
        keys = ("peak_allocated_gib", "peak_reserved_gib", "whole_run_peak_gib")
        if not self.gpu:
            return dict.fromkeys(keys)
        allocated, reserved = self.peaks()
        most = distributed.highest((allocated, reserved, max(allocated, self.warmup_peak[0])))
        return {key: peak / GIB for key, peak in zip(keys, most, strict=True)}

    def summary(self) -> dict[str, Any]:
        """`summary.json`'s part; None for what was not measured."""
        self.collect()
        rates = self.rates(self.counted)
        step_ms = rates["step_ms"] and rates["step_ms"]["median"]
        return {
            **rates,
            "model_flops_per_token": self.flops_per_token,
            "peak_flops": self.peak_flops,
            "gpu_idle_share": idle_share(self.idle.busy_ms, step_ms) if self.idle else None,
            **self.memory(),
        }
