"""Which rounds something else got into. They stay in the data, where they widen the interval; they are not trusted."""

import statistics
from collections.abc import Sequence

from minillm.compare.records import Round, Turn

CPU_SHARE = 0.1  # that others may take of our CPUs, where these do the work
CLOCK = 0.9  # of a variant's usual clock (upper quartile)
SPREAD, SPREAD_RATIO = 0.02, 3.0  # between a variant's windows: relative, and as a multiple of the other rounds'
LEVEL = 1.1  # times as long as in the fastest round


def reasons(rounds: Sequence[Round]) -> list[list[str]]:
    """For each round what speaks against it, a clause each; none for a quiet one."""
    spreads = [spread(one) for one in rounds]
    levels = [level(one) for one in rounds]
    usual = usual_clocks(rounds)
    result = []
    for number, one in enumerate(rounds):
        found = [*others(one), *slow_clock(one, usual)]
        rest = [value for i, value in enumerate(spreads) if i != number]
        if rest and spreads[number] > max(SPREAD, SPREAD_RATIO * statistics.median(rest)):
            found.append(f"windows {spreads[number]:.0%} apart")
        longer = max(
            (ms / min(every[v] for every in levels if v in every) for v, ms in levels[number].items()), default=1
        )
        if longer > LEVEL:
            found.append(f"steps {longer:.2f} times as long as in the fastest round")
        result.append(found)
    return result


def counted(one: Round) -> list[Turn]:
    return [turn for turn in one.turns if turn.sweep is not None]


def speeds(one: Round) -> dict[int, list[float]]:
    """By variant, tokens per ms of its windows."""
    result: dict[int, list[float]] = {}
    for turn in counted(one):
        result.setdefault(turn.variant, []).append(turn.window.tokens_per_ms)
    return result


def level(one: Round) -> dict[int, float]:
    """By variant, ms a token."""
    return {variant: 1 / statistics.fmean(values) for variant, values in speeds(one).items()}


def spread(one: Round) -> float:
    """The largest distance between windows of one variant, as a part of their mean."""
    return max(((max(v) - min(v)) / statistics.fmean(v) for v in speeds(one).values()), default=0.0)


def others(one: Round) -> list[str]:
    """Other processes on the device."""
    machines = [turn.machine for turn in counted(one)]
    found = []
    if most := max((m.other_gpu_processes for m in machines if m.other_gpu_processes is not None), default=0):
        found.append(f"{most} other process(es) on the GPU")
    on_cpu = all(ready.gpu is None for ready in one.ready.values())
    share = max((m.other_cpu_share for m in machines if m.other_cpu_share is not None), default=0.0)
    if on_cpu and share > CPU_SHARE:
        found.append(f"other processes took {share:.0%} of the CPUs")
    return found


def usual_clocks(rounds: Sequence[Round]) -> dict[int, float]:
    """By variant: kernels that draw more power run at a lower clock."""
    clocks: dict[int, list[float]] = {}
    for one in rounds:
        for turn in counted(one):
            if turn.machine.clock_mhz is not None:
                clocks.setdefault(turn.variant, []).append(turn.machine.clock_mhz)
    return {variant: sorted(values)[3 * (len(values) - 1) // 4] for variant, values in clocks.items()}


def slow_clock(one: Round, usual: dict[int, float]) -> list[str]:
    """By the middle one of the round's windows: at its power limit a card's clock swings by a quarter within seconds,
    and what one window alone ran into shows in its times."""
    clocks = [(turn.machine.clock_mhz, usual.get(turn.variant)) for turn in counted(one)]
    known = sorted((now / before, now, before) for now, before in clocks if now is not None and before is not None)
    if known and known[len(known) // 2][0] < CLOCK:
        _, clock, before = known[len(known) // 2]
        return [f"the GPU's clock fell to {clock:.0f} MHz (usually {before:.0f})"]
    return []
