"""What a measurement comes to: the numbers and sentences of comparison.json, from which all reports are drawn."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from minillm.callbacks.throughput import deciles
from minillm.compare import same
from minillm.compare.disturbed import counted, reasons
from minillm.compare.parity import curves, end, parity
from minillm.compare.plan import Plan
from minillm.compare.records import Measurement, Round
from minillm.compare.statistics import CONFIDENCE, MARGIN, interval, ratio, scatter, verdict
from minillm.flops import mfu

FORMAT = 1  # of comparison.json


def summarize(measurement: Measurement, status: str) -> dict[str, Any]:
    """All of comparison.json but the raw measurement.

    status: finished | interrupted | refused (not comparable) | running
    """
    plan, rounds = measurement.plan, measurement.rounds
    disturbances = reasons(rounds)
    ready = next((r for one in rounds for r in one.ready.values()), None)
    configs = [variant.config.model_dump(mode="json") for variant in plan.variants]
    return {
        "format": FORMAT,
        "status": status,
        "command": measurement.command,
        "started": measurement.started,
        "interleaved": True,
        "minutes": sum(one.seconds for one in rounds) / 60,
        "varied": plan.varied,
        "baseline": plan.names[0],
        "confidence": CONFIDENCE,
        "margin": MARGIN,
        "rounds": len(rounds),
        "rounds_planned": measurement.schedule.rounds if measurement.schedule else None,
        "disturbed": {str(i): found for i, found in enumerate(disturbances) if found},
        "env": ready.env if ready else None,
        "corpus": ready.corpus if ready else None,
        "differences": same.differences(configs),
        "variants": [summarize_variant(measurement, i, disturbances) for i in range(len(plan.variants))],
    }


def summarize_variant(measurement: Measurement, variant: int, disturbances: Sequence[Sequence[str]]) -> dict[str, Any]:
    """One variant; None for what was not measured, ratio and parity None for the baseline."""
    rounds = [one for one in measurement.rounds if variant in one.ready and variant not in one.failed]
    failed = next((one.failed[variant] for one in measurement.rounds if variant in one.failed), None)
    ready = next((one.ready[variant] for one in rounds), None)
    turns = [turn for one in rounds for turn in counted(one) if turn.variant == variant]
    windows = [turn.window for turn in turns]
    valid = bool(ready) and all(
        r.timings_valid for one in measurement.rounds for v, r in one.ready.items() if v in (0, variant)
    )
    by_seed = curves(measurement.rounds, variant)
    rows = [round_row(one, variant) for one in rounds]
    samples = [row["log_ratio"] for row in rows if row["log_ratio"] is not None]
    scattered = scatter([log_ratios(one, variant) for one in rounds])
    in_trouble = sum(bool(found) for one, found in zip(measurement.rounds, disturbances, strict=True) if one in rounds)
    step_ms = [ms for window in windows for ms in window.step_ms]
    rates = [row["tokens_per_sec"] for row in rows]
    middle = statistics.median(rates) if rates else None
    found = ratio(samples, scattered) if valid else None
    same_training = parity(measurement, variant) if variant else None
    return {
        "name": measurement.plan.names[variant],
        "config": measurement.plan.variants[variant].config.model_dump(mode="json"),
        "status": "failed" if failed else "ok",
        "error": failed.error if failed else None,
        "timings_valid": valid,
        "layers_ran": ready.layers_ran if ready else None,
        "attention_backend": ready.attention_backend if ready else None,
        "precision": ready.precision if ready else None,
        "parameters": ready.parameters if ready else None,
        "tokens_per_sec": spread(rates),
        "step_ms": deciles(step_ms) if step_ms else None,
        "predicted_ms": predicted_ms(measurement.plan, variant),
        "data_wait_ms": statistics.fmean(ms for window in windows for ms in window.wait_ms) if step_ms else None,
        "mfu": mfu(middle, ready.model_flops_per_token, ready.peak_flops, 1) if middle and ready else None,
        "machine": {
            key: middle_of([getattr(turn.machine, key) for turn in turns]) for key in ("clock_mhz", "watts", "celsius")
        },
        "memory": {
            key: most([window.memory[key] for window in windows]) for key in (windows[0].memory if windows else ())
        },
        "loss": statistics.fmean(end(losses, len(losses)) for losses in by_seed.values()) if by_seed else None,
        "val_loss": None,  # a comparison does not validate
        "ratio": asdict(found) if found else None,
        "rounds": rows,
        "verdict": asdict(verdict(samples, in_trouble, scattered)) if variant and valid else None,
        "parity": asdict(same_training) if same_training else None,
        "losses": {
            str(seed): {str(step): loss for step, loss in enumerate(losses, 1)} for seed, losses in by_seed.items()
        },
    }


def predicted_ms(plan: Plan, variant: int) -> float | None:
    """Of a step, what the layers that are compared take by explain.py's account; None where it has none of them."""
    times = [plan.layer_ms.get(name) for name in plan.names[variant].split()]
    known = [ms for ms in times if ms is not None]
    return sum(known) if len(known) == len(times) else None


def round_row(one: Round, variant: int) -> dict[str, Any]:
    """What a variant that did not fail did in a round."""
    peaks = [turn.window.memory.get("peak_allocated_gib") for turn in counted(one) if turn.variant == variant]
    return {
        "round": one.number,
        "seed": one.seed,
        "tokens_per_sec": round_rate(one, variant),
        "log_ratio": log_ratio(one, variant),
        "peak_allocated_gib": most(peaks),
    }


def round_rate(one: Round, variant: int) -> float:
    """Tokens/s over all windows of a round."""
    windows = [turn.window for turn in counted(one) if turn.variant == variant]
    return 1000 * sum(window.tokens for window in windows) / sum(sum(window.step_ms) for window in windows)


def log_ratio(one: Round, variant: int) -> float | None:
    """The round's sample: the mean over its sweeps. None for the first itself, and where it failed."""
    ratios = log_ratios(one, variant)
    return statistics.fmean(ratios) if ratios else None


def log_ratios(one: Round, variant: int) -> list[float]:
    """Of each sweep, log(speed / speed of the first in that sweep); empty for the first itself, and where it failed."""
    if variant == 0 or 0 in one.failed or 0 not in one.ready:
        return []
    speed = {(turn.sweep, turn.variant): turn.window.tokens_per_ms for turn in counted(one)}
    sweeps = {sweep for sweep, _ in speed}
    return [math.log(speed[sweep, variant] / speed[sweep, 0]) for sweep in sweeps]


def spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Median, ends, and the interval of the mean; None without values."""
    if not values:
        return None
    low, high = interval(values) or (None, None)
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "low": low, "high": high}


def middle_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def most(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
