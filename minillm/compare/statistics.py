"""From rounds to a verdict; numbers in, sentences out, no clock and no torch.

Steps of one process are not independent: they share its memory layout, its compiled code, the card's temperature. So a
sample is a *round*, in which every variant has a fresh process: the mean, over the round's neighbouring windows, of
log(speed of the variant / speed of the first). Its mean over rounds gets Student's t interval (Gosset 1908).

A few rounds may lie closer together by luck than their own windows do; then the windows' scatter counts.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

CONFIDENCE = 0.95
MARGIN = 0.01  # ratios nearer to 1 than this do not matter
MIN_ROUNDS = 4  # fewer have no interval worth the name: t is 4.3 with three, 12.7 with two
MOST_ROUNDS = 1000  # not looked for beyond


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the first, and the CONFIDENCE interval of that; None: too few rounds."""

    estimate: float
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Verdict:
    """`text` is for people. `none`: not enough was measured to say anything."""

    kind: Literal["faster", "slower", "equal", "undecided", "none"]
    text: str


def within(angle: float, df: int) -> float:
    """P(|T| <= tan(angle) sqrt(df)) for Student's T with `df` degrees of freedom: the finite series of Abramowitz and
    Stegun 26.7.3 (odd) and 26.7.4 (even)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if df % 2 else (1.0, 0.0)
    for k in range(2 + df % 2, df + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    return 2 / math.pi * (angle + sine * total) if df % 2 else sine * total


@cache
def t_quantile(df: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| <= t) = confidence, by bisection of the angle."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, df) < confidence else (low, middle)
    return math.tan(low) * math.sqrt(df)


def scatter(rounds: Sequence[Sequence[float]]) -> float:
    """The standard deviation that a round's mean has by the scatter inside rounds; 0 where that is not known.

    rounds: of each, the log-ratios of its pairs of windows.
    """
    variances = [statistics.variance(pairs) / len(pairs) for pairs in rounds if len(pairs) > 1]
    return math.sqrt(statistics.fmean(variances)) if variances else 0.0


def interval(samples: Sequence[float], scattered: float = 0.0) -> tuple[float, float] | None:
    """Of the samples' mean; None for fewer than MIN_ROUNDS. `scattered`: their least standard deviation."""
    n = len(samples)
    if n < MIN_ROUNDS:
        return None
    half = t_quantile(n - 1) * max(statistics.stdev(samples), scattered) / math.sqrt(n)
    mean = statistics.fmean(samples)
    return mean - half, mean + half


def ratio(samples: Sequence[float], scattered: float = 0.0) -> Ratio | None:
    """Of log-ratios, one a round; None without any."""
    if not samples:
        return None
    ends = interval(samples, scattered)
    low, high = (math.exp(ends[0]), math.exp(ends[1])) if ends else (None, None)
    return Ratio(math.exp(statistics.fmean(samples)), low, high, len(samples))


def verdict(samples: Sequence[float], disturbed: int = 0, scattered: float = 0.0) -> Verdict:
    """What the samples (log-ratios, one a round, `disturbed` of them measured in trouble) decide.

    A disturbed round stays in: it widens the interval. Where most are disturbed the interval may be narrow around the
    wrong place, and nothing is decided.
    """
    found = ratio(samples, scattered)
    if found is None or found.low is None or found.high is None:
        return Verdict("none", f"no verdict: {len(samples)} round(s), {MIN_ROUNDS} are needed")
    if 2 * disturbed > len(samples):
        return Verdict("undecided", f"not decided: {disturbed} of {len(samples)} rounds were disturbed")
    if found.low > 1 / (1 + MARGIN) and found.high < 1 + MARGIN:
        return Verdict("equal", f"no difference larger than {MARGIN:.0%}")
    if found.low > 1:
        return Verdict("faster", times(found.estimate, "faster", found.low, found.high))
    if found.high < 1:
        return Verdict("slower", times(1 / found.estimate, "slower", 1 / found.high, 1 / found.low))
    more = rounds_needed(samples, scattered) - len(samples)
    count = f"about {more} more rounds" if more < MOST_ROUNDS else f"more than {MOST_ROUNDS} rounds"
    return Verdict("undecided", f"not decided, needs {count}")


def times(estimate: float, word: str, low: float, high: float) -> str:
    """`1.27x faster [1.26, 1.28]`; near 1 with one more digit, where [1.00, 1.02] would leave open what was said."""
    digits = 2 if low >= 1.05 else 3
    return f"{estimate:.{digits}f}x {word} [{low:.{digits}f}, {high:.{digits}f}]"


def rounds_needed(samples: Sequence[float], scattered: float = 0.0) -> int:
    """Rounds after which an interval around this mean, with this spread, would decide: exclude 1, or lie within the
    margin. More than there are, at most len(samples) + MOST_ROUNDS."""
    center, spread = abs(statistics.fmean(samples)), max(statistics.stdev(samples), scattered)
    reach = max(center, math.log1p(MARGIN) - center)
    n = len(samples) + 1
    while t_quantile(n - 1) * spread / math.sqrt(n) >= reach and n < len(samples) + MOST_ROUNDS:
        n += 1
    return n
