"""What a run of op=step finds, filled in stage by stage."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from minillm.bench.roofs import Roof
from minillm.bench.step.config import StepConfig
from minillm.bench.step.variants import BASELINE
from minillm.callbacks.idle import idle_share
from minillm.config import Config
from minillm.flops import flops_per_token, mfu
from minillm.waterfall.account import Account, account
from minillm.waterfall.traffic import countable_traffic


@dataclass
class Variant:
    """One variant; None and empty is what is not known, yet or here."""

    name: str
    config: Config
    trouble: str = ""  # what it failed with
    ready_s: float | None = None  # to build and warm up, compiling included
    peak_gib: float | None = None  # its own, warm-up included
    ms: list[float] = field(default_factory=list)  # a step, the mean of each round's block
    busy_ms: float | None = None  # a step, some kernel running
    parts: dict[str, float] = field(default_factory=dict)  # line of the waterfall -> ms a step
    kernels: list[tuple[str, str, float, float]] = field(default_factory=list)  # name, line, ms and calls a step

    @property
    def step_ms(self) -> float | None:
        return statistics.mean(self.ms) if self.ms else None

    @property
    def idle_share(self) -> float | None:
        return idle_share(self.busy_ms, self.step_ms)

    @property
    def attention(self) -> list[str]:
        """The kernels that attention ran on, whatever was asked for."""
        return [name for name, part, _, _ in self.kernels if part == "attention"]


@dataclass
class Results:
    """All variants of a run."""

    options: StepConfig
    variants: list[Variant]
    env: dict[str, Any]
    peak_flops: float | None
    roof: Roof | None = None

    @property
    def config(self) -> Config:
        """The shapes, which all variants share."""
        return self.variants[0].config

    @property
    def tokens(self) -> int:
        return self.config.batch.micro * self.config.data.sequence_length

    @property
    def traffic(self) -> dict[str, int]:
        return countable_traffic(self.config.model, self.tokens)

    def tokens_per_second(self, variant: Variant) -> float | None:
        return None if variant.step_ms is None else 1000 * self.tokens / variant.step_ms

    def mfu(self, variant: Variant) -> float | None:
        speed = self.tokens_per_second(variant)
        flops = flops_per_token(self.config.model, self.config.data.sequence_length)
        return None if speed is None else mfu(speed, flops, self.peak_flops, devices=1)

    def ratio(self, variant: Variant) -> tuple[float, float, float] | None:
        """How much faster than the baseline: geometric mean over the rounds, lowest, highest."""
        baseline = next((v.ms for v in self.variants if v.name == BASELINE), [])
        ratios = [base / ms for base, ms in zip(baseline, variant.ms, strict=False)]
        if not ratios:
            return None
        return math.exp(statistics.mean(map(math.log, ratios))), min(ratios), max(ratios)

    def account(self, variant: Variant) -> Account | None:
        if not variant.parts:
            return None
        share, step_ms = variant.idle_share, variant.step_ms
        idle = None if share is None or step_ms is None else share * step_ms
        roof = None if self.roof is None else self.roof.gb_per_second
        return account(variant.parts, sum(self.traffic.values()), roof, idle)
