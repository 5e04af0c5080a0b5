"""Rounds: in each a fresh process of every variant, taking turns on windows of steps (A B B A ...)."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from minillm.compare import same
from minillm.compare.crew import Crew
from minillm.compare.files import workers
from minillm.compare.parity import baseline_rounded, compared_already
from minillm.compare.plan import Plan
from minillm.compare.records import Losses, Measurement, Round, Schedule
from minillm.compare.results import round_rate
from minillm.compare.schedule import SETTLE_STEPS, make_schedule

ORDER_SEED = 0  # of the order of variants, anew in each round
Save = Callable[[Measurement], None]
Say = Callable[[str], None]


def measure(measurement: Measurement, folder: Path, save: Save, say: Say) -> Measurement:
    """Go on from `measurement` until all rounds are there, each saved as soon as it is.

    Raises UserError where the variants turn out not to be comparable.
    """
    plan = measurement.plan
    same.check_configs([v.config.model_dump(mode="json") for v in plan.variants], plan.varied, plan.names)
    while unfinished(measurement):
        measurement = next_round(measurement, folder, say)
        save(measurement)
        say(progress(measurement))
    if measurement.rounding is None and 0 in alive(measurement):
        measurement = with_rounding(measurement, folder, say)
        save(measurement)
    return measurement


def alive(measurement: Measurement) -> list[int]:
    """The variants that have not failed in any round."""
    failed = {variant for one in measurement.rounds for variant in one.failed}
    return [variant for variant in range(len(measurement.plan.variants)) if variant not in failed]


def unfinished(measurement: Measurement) -> bool:
    schedule, done = measurement.schedule, len(measurement.rounds)
    return bool(alive(measurement)) and (schedule is None or done < schedule.rounds)


def next_round(measurement: Measurement, folder: Path, say: Say) -> Measurement:
    plan, schedule, number = measurement.plan, measurement.schedule, len(measurement.rounds)
    started = time.monotonic()
    order = alive(measurement)
    random.Random(f"{ORDER_SEED} {number}").shuffle(order)
    seed = number % plan.seeds
    with Crew(plan, seed, workers(folder, f"round_{number}")) as crew:
        if schedule is None:
            schedule = first_start(crew, order, plan, say)
        elif schedule.together:
            crew.start(order)
            for variant in order:
                crew.settle(variant)
        if schedule is not None:
            play(crew, order, schedule)
        check_turns(crew, plan)
        done = Round(
            number=number,
            seed=seed,
            ready=crew.ready,
            turns=crew.turns,
            failed=crew.failed,
            seconds=time.monotonic() - started,
        )
    rounds = [*measurement.rounds, done]
    same.check_rounds(rounds)
    return measurement.model_copy(update={"schedule": schedule, "rounds": rounds})


def first_start(crew: Crew, order: list[int], plan: Plan, say: Say) -> Schedule | None:
    """Start all variants, together where they fit; from how long that took, the schedule. None where none has lived."""
    say(f"starting {len(order)} variants, a process each; when they train it is known how long all of it will take")
    seconds = crew.start(order)
    together = len(order) == 1 or not crew.crowded()
    if together:
        for variant in order:
            crew.settle(variant)
    else:
        say("the variants do not fit into the device's memory together: whole processes alternate")
        crew.stop()
        crew.failed.clear()
        seconds = 0.0
        for variant in order:
            seconds += crew.start([variant])
            crew.settle(variant)
            crew.stop()
    step_ms = [fmean(turn.window.step_ms) for turn in crew.turns]
    if not step_ms:
        return None
    schedule = make_schedule(plan.options, step_ms, seconds, together)
    say(
        f"{schedule.rounds} rounds of {len(step_ms)} variants, {schedule.sweeps} windows of {schedule.steps} steps "
        f"each: about {schedule.seconds / 60:.1f} minutes"
    )
    return schedule


def play(crew: Crew, order: list[int], schedule: Schedule) -> None:
    """The windows that count: there and back again, so that what drifts meets all variants alike."""
    for sweep in range(schedule.sweeps):
        for variant in order if sweep % 2 == 0 else reversed(order):
            if not schedule.together and variant not in crew.failed:
                crew.start([variant])
                crew.settle(variant)
            crew.turn(variant, schedule.steps, sweep)
            if not schedule.together:
                crew.stop()


def check_turns(crew: Crew, plan: Plan) -> None:
    """Raise UserError where the variants did not see the same samples in the same order."""
    for sweep in {turn.sweep for turn in crew.turns}:
        samples = {turn.variant: turn.window.trained.samples for turn in crew.turns if turn.sweep == sweep}
        same.check_samples(samples, plan.varied, plan.names)


def with_rounding(measurement: Measurement, folder: Path, say: Say) -> Measurement:
    """Train the baseline once more with the other of PyTorch's two norms: the yardstick for differences in loss."""
    plan, schedule = measurement.plan, measurement.schedule
    if schedule is None or compared_already(plan) is not None:
        return measurement
    other = baseline_rounded(plan.variants[0])
    say(f"the baseline once more with {other.name}: what rounding alone does to its loss")
    steps = SETTLE_STEPS + schedule.steps * (schedule.sweeps if schedule.together else 1)
    with Crew(plan.model_copy(update={"variants": [other]}), 0, workers(folder, "rounding")) as crew:
        crew.start([0])
        crew.turn(0, steps, None)
    if crew.failed:
        say(f"it failed: {crew.failed[0].error}")
        return measurement
    parts = [crew.ready[0].warmup, crew.turns[0].window.trained]
    losses = Losses(first_step=1, losses=[loss for part in parts for loss in part.losses], samples=parts[-1].samples)
    return measurement.model_copy(update={"rounding": losses})


def progress(measurement: Measurement) -> str:
    """The last round in a line."""
    one = measurement.rounds[-1]
    total = measurement.schedule.rounds if measurement.schedule else 1
    parts = []
    for variant, name in enumerate(measurement.plan.names):
        if variant in one.failed:
            parts.append(f"{name} failed: {one.failed[variant].error}")
        elif variant in one.ready:
            parts.append(f"{name} {round_rate(one, variant):,.0f} tokens/s")
    return f"round {one.number + 1} of {total}, {one.seconds:.0f} s: " + "; ".join(parts)
