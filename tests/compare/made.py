"""Workers that train nothing: their times and losses are made, so the truth is known and a round takes no time."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from minillm.compare.plan import Options, Plan, Variant
from minillm.compare.process import WorkerError
from minillm.compare.records import Failed, Losses, Measurement, Ready, Window
from minillm.compare.worker import Job
from tests.training.conftest import make_config

ENV = {"device": "a device", "torch": "2.13", "commit": "abc"}
NORMS = ("eager", "torch", "textbook")


def make_plan(norms: tuple[str, ...] = NORMS[:2], **options: Any) -> Plan:
    """A comparison of these norms."""
    variants = [Variant(name=f"norm={norm}", config=make_config({"norm.name": norm})) for norm in norms]
    return Plan(varied=["norm"], variants=variants, options=Options(**{"rounds": 4} | options))


def measurement(plan: Plan | None = None, **values: Any) -> Measurement:
    return Measurement(plan=plan or make_plan(), command="compare", started="now", **values)


class Workshop:
    """Makes the workers, in place of `crew.Worker`.

    Fields say how they behave, by norm: `speed` (factor on the tokens/s), `offset` (nats on every loss), `memory` (part
    of the device; None: a CPU), `fails` (raises at this turn of its life, 0 the start), `env`, `samples`.
    """

    def __init__(self) -> None:
        self.speed: dict[str, float] = {}
        self.offset: dict[str, float] = {}
        self.memory: dict[str, float] = {}
        self.fails: dict[str, tuple[int, Exception | KeyboardInterrupt]] = {}
        self.env: dict[str, dict[str, Any]] = {}
        self.samples: dict[str, str] = {}
        self.valid = True
        self.noise = 0.001
        self.drift = 1.0  # factor on everybody's speed
        self.living: list[MadeWorker] = []
        self.log: list[tuple[str, str]] = []  # (norm, what it was told)
        self.draw = random.Random(0)
        self.before_turn: Callable[[], None] = lambda: None

    def __call__(self, job: Job, log: Path) -> "MadeWorker":
        return MadeWorker(self, job)


class MadeWorker:
    """One of them."""

    process = SimpleNamespace(pid=1)

    def __init__(self, shop: Workshop, job: Job) -> None:
        self.shop, self.norm, self.seed = shop, job.config.norm.name, job.config.seed
        self.step, self.turn = 0, 0
        self.level = shop.draw.gauss(0, shop.noise)
        shop.living.append(self)
        shop.log.append((self.norm, "start"))

    def train(self, steps: int) -> Losses:
        turn, error = self.shop.fails.get(self.norm, (None, None))
        if turn == self.turn and error is not None:
            raise error
        self.turn += 1
        first, self.step = self.step + 1, self.step + steps
        offset = self.shop.offset.get(self.norm, 0.0) + 0.1 * self.seed
        losses = [3 + offset + math.exp(-step / 10) for step in range(first, first + steps)]
        return Losses(first_step=first, losses=losses, samples=self.shop.samples.get(self.norm, f"{self.step}"))

    def ready(self) -> Ready:
        used = sum(self.shop.memory.get(worker.norm, 0.0) for worker in self.shop.living)
        if used > 1:
            raise WorkerError(Failed(error="CUDA out of memory", out_of_memory=True))
        return Ready(
            env=ENV | self.shop.env.get(self.norm, {}),
            corpus={"hash": "abc", "source": "made"},
            layers_ran={"norm": self.norm},
            attention_backend=None,
            precision="32-true",
            parameters=1,
            model_flops_per_token=6,
            peak_flops=None,
            timings_valid=self.shop.valid,
            gpu=None,
            free_memory=1 - used if self.shop.memory else None,
            warmup=self.train(3),
        )

    def window(self, steps: int) -> Window:
        self.shop.before_turn()
        self.shop.log.append((self.norm, f"{steps}"))
        trained = self.train(steps)
        noise = math.exp(self.level + self.shop.draw.gauss(0, self.shop.noise))
        speed = self.shop.drift * self.shop.speed.get(self.norm, 1.0) * noise
        return Window(
            step_ms=[100 / speed] * steps,
            wait_ms=[0.0] * steps,
            tokens=64 * steps,
            memory={"peak_allocated_gib": None},
            trained=trained,
        )

    def stop(self) -> None:
        if self in self.shop.living:
            self.shop.living.remove(self)

    kill = stop
