"""Is training still the same? The loss of a variant minus the baseline's, at equal steps of the same seed, beside two
yardsticks: what rounding alone makes of it (the same training with the other of PyTorch's two norms, eager and fused),
and how far seeds are apart."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from minillm.compare.plan import Plan, Variant
from minillm.compare.records import Losses, Measurement, Round

LAST_STEPS = 10  # the end of a curve: the mean over these
TOLERANCE = 2.0  # a difference is rounding's up to so many times the one that rounding made: that is one draw, too
OTHER_NORM = {"torch": "eager"}  # of any other: torch
Curve = list[float]  # loss by optimizer step, from the first on


@dataclass(frozen=True)
class Parity:
    """Differences in nats, of the mean over the last LAST_STEPS steps that were taken by all."""

    difference: float  # the largest of any seed, with its sign
    rounding: float | None  # 0 where the yardstick came out bit-equal (on a CPU): then it measures nothing
    seeds: float | None  # standard deviation of the baseline's loss; None: only one seed
    kind: Literal["same", "small", "different", "unknown"]
    text: str


def curve(one: Round, variant: int) -> Curve:
    """The losses of a variant in a round, without a gap; a process that began anew repeats the beginning."""
    parts = [one.ready[variant].warmup, *(turn.window.trained for turn in one.turns if turn.variant == variant)]
    by_step: dict[int, float] = {}
    for part in parts:
        for step, loss in enumerate(part.losses, part.first_step):
            by_step.setdefault(step, loss)
    return [by_step[step] for step in sorted(by_step)]


def curves(rounds: Sequence[Round], variant: int) -> dict[int, Curve]:
    """By seed, of the first round that had it and did not lose the variant."""
    result: dict[int, Curve] = {}
    for one in rounds:
        if variant in one.ready and variant not in one.failed:
            result.setdefault(one.seed, curve(one, variant))
    return result


def end(losses: Curve, steps: int) -> float:
    """Mean over the last of the first `steps` losses."""
    return statistics.fmean(losses[max(0, steps - LAST_STEPS) : steps])


def largest(baseline: Mapping[int, Curve], variant: Mapping[int, Curve]) -> float | None:
    """Of the differences over the seeds that both have, the one farthest from 0."""
    found = []
    for seed in sorted(set(baseline) & set(variant)):
        steps = min(len(baseline[seed]), len(variant[seed]))
        found.append(end(variant[seed], steps) - end(baseline[seed], steps))
    return max(found, key=abs, default=None)


def baseline_rounded(baseline: Variant) -> Variant:
    """The baseline with the other of PyTorch's norms."""
    name = OTHER_NORM.get(baseline.config.norm.name, "torch")
    norm = baseline.config.norm.model_copy(update={"name": name, "fuse_residual": True})
    return Variant(name=f"norm={name}", config=baseline.config.model_copy(update={"norm": norm}))


def compared_already(plan: Plan) -> int | None:
    """The variant that is the baseline with that other norm: then nothing more needs to run."""
    wanted = baseline_rounded(plan.variants[0]).config
    return next((number for number, variant in enumerate(plan.variants) if variant.config == wanted), None)


def rounding_curves(measurement: Measurement) -> dict[int, Curve]:
    """By seed, of that."""
    other = compared_already(measurement.plan)
    if other is not None:
        return curves(measurement.rounds, other)
    losses: Losses | None = measurement.rounding
    return {0: losses.losses} if losses else {}


def parity(measurement: Measurement, variant: int) -> Parity | None:
    """None where one of the two did not train."""
    baseline = curves(measurement.rounds, 0)
    difference = largest(baseline, curves(measurement.rounds, variant))
    if difference is None:
        return None
    rounding = largest(baseline, rounding_curves(measurement))
    ends = [end(losses, min(map(len, baseline.values()))) for losses in baseline.values()]
    seeds = statistics.stdev(ends) if len(ends) > 1 else None
    kind, words = judged(abs(difference), None if rounding is None else abs(rounding), seeds)
    text = f"loss {difference:+.2g}: {words}"
    return Parity(difference, rounding, seeds, kind, text)


def judged(
    difference: float, rounding: float | None, seeds: float | None
) -> tuple[Literal["same", "small", "different", "unknown"], str]:
    if difference == 0:
        return "same", "the same training, to the last bit"
    if rounding and difference <= TOLERANCE * rounding:
        return "same", f"the same training, rounding alone makes {rounding:.2g}"
    beyond = "" if not rounding else f"more than rounding ({rounding:.2g}), "
    if seeds is None:
        return "unknown", f"{beyond}no second seed to compare with"
    if difference <= seeds:
        return "small", f"{beyond}less than seeds do ({seeds:.2g})"
    return "different", f"{beyond}more than seeds do ({seeds:.2g})"
