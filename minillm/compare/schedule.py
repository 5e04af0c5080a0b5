"""How many rounds, windows and steps, from how long a step and a start-up take."""

import math
from collections.abc import Sequence

from minillm.compare.plan import DEFAULT_ROUNDS, Options
from minillm.compare.records import Schedule
from minillm.compare.statistics import MIN_ROUNDS

SETTLE_STEPS = 3  # after a start and before what counts: caches and clocks come back from other processes' start-ups
WINDOW_MS, WINDOW_STEPS = 1000, 10  # a window has at least as many steps and, in the fastest variant, takes as long
SWEEPS = 2  # windows of each variant in a round, where the time does not ask for more


def make_schedule(options: Options, step_ms: Sequence[float], start_seconds: float, together: bool) -> Schedule:
    """The schedule for variants whose steps take `step_ms`.

    Args:
        start_seconds: until all variants have started (one after the other where not `together`).
    """
    steps = max(WINDOW_STEPS, math.ceil(WINDOW_MS / min(step_ms)))
    sweep = steps * sum(step_ms) / 1000  # seconds of a window of every variant
    settle = SETTLE_STEPS * sum(step_ms) / 1000

    def round_seconds(sweeps: int) -> float:
        starts = 1 if together else sweeps
        return starts * (start_seconds + settle) + sweeps * sweep

    rounds, sweeps = options.rounds or DEFAULT_ROUNDS, SWEEPS
    if options.minutes is not None:
        budget = 60 * options.minutes
        if options.rounds is None:  # rounds are the samples: more of them rather than longer ones
            rounds = max(MIN_ROUNDS, int(budget / round_seconds(SWEEPS)))
        else:
            while round_seconds(sweeps + 2) * rounds <= budget:
                sweeps += 2
    return Schedule(
        rounds=rounds, sweeps=sweeps, steps=steps, together=together, seconds=rounds * round_seconds(sweeps)
    )
