"""What is found out, and what it predicts."""

import math
from dataclasses import dataclass, field
from typing import Any

from kernels.resources import Resources
from minillm.bench.timing import Summary
from minillm.explain import recorded
from minillm.explain.card import Card
from minillm.explain.claims import Claim
from minillm.explain.count import Counted
from minillm.explain.measure import PASSES, DeviceKernel
from minillm.explain.plan import Plan
from minillm.explain.step import WholeStep
from minillm.explain.subjects import Subject


@dataclass
class Found:
    """One implementation of one subject; empty where a thing is not known here. By pass: counted, ms, kernels."""

    name: str
    note: str = ""  # why it was not counted, what it failed with, what its times hold
    counted: dict[str, Counted] = field(default_factory=dict)
    ms: dict[str, Summary] = field(default_factory=dict)
    kernels: dict[str, list[DeviceKernel]] = field(default_factory=dict)


@dataclass
class Explained:
    """A layer at one shape."""

    subject: Subject
    found: list[Found]


@dataclass
class Prediction:
    """Milliseconds of an optimizer step that the layer takes, by `layer=name`."""

    source: str  # measured, or where the figures come from
    layer_ms: dict[str, float]

    @property
    def saved_ms(self) -> dict[str, float]:
        """Against the first."""
        baseline = next(iter(self.layer_ms.values()))
        return {name: baseline - ms for name, ms in self.layer_ms.items()}


@dataclass
class Explanation:
    """All of a run."""

    plan: Plan
    command: str
    env: dict[str, Any]
    card: Card
    measured: bool  # on this card; else it was counted for it
    roof: float | None = None  # copy bandwidth, GB/s, of this run
    layers: list[Explained] = field(default_factory=list)
    resources: dict[str, Resources] = field(default_factory=dict)  # by `count.Triton.key`
    claims: list[Claim] = field(default_factory=list)
    walk: str = ""
    steps: list[WholeStep] = field(default_factory=list)

    def of_roof(self, subject: Subject, found: Found, direction: str) -> float | None:
        """Speed as a fraction of the copy roof, if only the floor were moved."""
        if self.roof is None or direction not in found.ms:
            return None
        return subject.floor[direction] / found.ms[direction].median / 1e6 / self.roof

    def prediction(self) -> Prediction | None:
        """From the layer's times by itself, to be set beside what compare.py measures; None at a shape that no step
        has, or without times."""
        if self.plan.shape is not None:
            return None
        by_name = {name: [f for e in self.layers for f in e.found if f.name == name] for name in self.plan.names}
        calls = [explained.subject.calls for explained in self.layers]
        measured = {
            name: sum(n * sum(f.ms[d].median for d in PASSES) for n, f in zip(calls, founds, strict=True))
            for name, founds in by_name.items()
            if all(set(f.ms) == set(PASSES) for f in founds)
        }
        if self.plan.names[0] in measured:
            return Prediction("measured", self.keyed(measured))
        subject = self.layers[0].subject
        figures = recorded.of(subject)
        if self.measured or figures is None or figures.rows != subject.rows or self.plan.names[0] not in figures.passes:
            return None
        known = [name for name in self.plan.names if name in figures.passes]
        took = {name: sum(calls) * math.fsum(ms for ms, _ in figures.passes[name].values()) for name in known}
        return Prediction(f"{recorded.source()}; of the norm without the addition to the stream", self.keyed(took))

    def keyed(self, by_name: dict[str, float]) -> dict[str, float]:
        return {f"{self.plan.layer}={name}": ms for name, ms in by_name.items()}
