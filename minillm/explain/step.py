"""The whole training step with each implementation, by part of the model, and its distance to its floor."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from minillm.bench.runner import brief
from minillm.bench.step.results import Variant
from minillm.bench.step.runner import block, compiling_them_all, look_inside, ready
from minillm.callbacks.clock import DeviceTimer, HostTimer, Timer
from minillm.config import Config
from minillm.waterfall.account import Account, account
from minillm.waterfall.traffic import countable_traffic

BLOCKS = 3


@dataclass(frozen=True)
class WholeStep:
    """One implementation's: `batch.micro` sequences and an update, without clipping. Milliseconds."""

    name: str
    ms: float
    parts: dict[str, float]
    account: Account

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"waste": self.account.waste}


def whole_steps(
    layer: str, configs: Mapping[str, Config], device: torch.device, roof: float, progress: Callable[[str], None]
) -> list[WholeStep]:
    """One after the other, so that memory need only hold one. One that fails is told of and left out."""
    found: list[WholeStep] = []
    timer: Timer = DeviceTimer() if device.type == "cuda" else HostTimer()
    for name, config in configs.items():
        variant = Variant(f"{layer}={name}", config.with_vocabulary(config.tokenizer.vocab_size))
        try:
            with compiling_them_all(len(configs)):
                step = ready(variant, device)
                variant.ms = [block(step, timer, device) for _ in range(BLOCKS)]
                look_inside(variant, step, device)
                del step
        except Exception as error:  # out of memory, most likely: a finding, not the end of the run
            progress(f"{variant.name}: no whole step, {brief(error)}")
            continue
        found.append(accounted(variant, roof))
        progress(f"{variant.name}: whole step {found[-1].ms:.2f} ms")
    return found


def accounted(variant: Variant, roof: float) -> WholeStep:
    config, step_ms = variant.config, statistics.mean(variant.ms)
    traffic = countable_traffic(config.model, config.batch.micro * config.data.sequence_length)
    idle = None if variant.idle_share is None else variant.idle_share * step_ms
    return WholeStep(variant.name, step_ms, variant.parts, account(variant.parts, sum(traffic.values()), roof, idle))
