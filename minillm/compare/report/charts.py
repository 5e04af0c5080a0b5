"""The charts of a comparison. Each is None where nothing was measured that it could show."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minillm.compare.report.drawing import Box, Dot, Drawing, Line, Text, series_ink
from minillm.compare.report.tables import Result, known

WIDTH, ROW, HEIGHT = 520, 52, 240  # px: of every drawing, to be read on a phone; of a variant in it; of a plot's area
LEFT, RIGHT = 80, 12  # margins of that area
LETTER = 7.2  # about the width of one
MOST_POINTS = 300  # of a curve: more cannot be seen
Shape = Box | Dot | Line | Text
Curve = list[tuple[float, float]]  # (step, loss)


@dataclass(frozen=True)
class Scale:
    """Maps low..high onto the pixels start..end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """At most seven round values, with their labels."""
        rough = ((self.high - self.low) or 1.0) / 6
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        numbers = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [(number * step, f"{number * step:,.{digits}f}") for number in numbers]


def charts(result: Result) -> dict[str, Drawing]:
    """All that there are, by name."""
    drawn = {
        "ratio": ratios(result),
        "throughput": throughput(result),
        "memory": memory(result),
        "loss": losses(result),
        "loss_difference": loss_differences(result),
    }
    return {name: drawing for name, drawing in drawn.items() if drawing is not None}


def in_rows(
    label: str,
    unit: str,
    result: Result,
    values: Mapping[int, str],
    scale: Scale,
    draw: Callable[[int, float], list[Shape]],
) -> Drawing:
    """A row for each variant, by number, that has a value: its name, the value, and what `draw` makes of the row, whose
    top it is given, on a common scale in `unit`."""
    bottom = ROW * len(values)
    shapes: list[Shape] = [Text(WIDTH - 8, bottom + 32, unit, "quiet", "end")]
    for tick, text in scale.ticks():
        shapes += [
            Line([(scale(tick), 0), (scale(tick), bottom)], "grid"),
            Text(scale(tick), bottom + 16, text, "quiet", "middle"),
        ]
    for row, (number, value) in enumerate(values.items()):
        top, name = ROW * row, result["variants"][number]["name"]
        shapes += [*draw(number, top), Text(8, top + 15, name), Text(WIDTH - 8, top + 15, value, anchor="end")]
    return Drawing(label, WIDTH, bottom + 40, shapes)


def ratios(result: Result) -> Drawing | None:
    """Interval and rounds of every variant against the first, over the band that counts as equal."""
    variants = {i: variant for i, variant in enumerate(result["variants"]) if variant["ratio"]}
    if not variants or not result["interleaved"]:
        return None
    samples = {
        i: [(one["round"], math.exp(one["log_ratio"])) for one in v["rounds"] if one["log_ratio"] is not None]
        for i, v in variants.items()
    }
    equal = (1 / (1 + result["margin"]), 1 + result["margin"])
    ends = [v["ratio"][key] for v in variants.values() for key in ("estimate", "low", "high")]
    seen = [*equal, *known(ends), *(value for rows in samples.values() for _, value in rows)]
    room = 0.08 * (max(seen) - min(seen))
    scale = Scale(min(seen) - room, max(seen) + room, 24, WIDTH - 24)

    def draw(number: int, top: float) -> list[Shape]:
        ratio, ink, y = variants[number]["ratio"], series_ink(number), top + 25
        shapes: list[Shape] = [
            Box(scale(equal[0]), top, scale(equal[1]) - scale(equal[0]), ROW, "band"),
            Line([(scale(1), top), (scale(1), top + ROW)], "quiet"),
        ]
        if ratio["low"] is not None:
            shapes.append(Line([(scale(ratio["low"]), y), (scale(ratio["high"]), y)], ink, 7))
        shapes.append(Line([(scale(ratio["estimate"]), y - 7), (scale(ratio["estimate"]), y + 7)], "text", 2))
        dots = []
        for one, value in samples[number]:
            troubled = result["disturbed"].get(str(one), [])
            title = ", ".join([f"round {one + 1}: {value:.4f}", *troubled])
            dots.append(Dot(scale(value), y + 11, ink, title, hollow=bool(troubled)))
        return shapes + sorted(dots, key=lambda dot: dot.hollow)  # none is hidden by others

    values = {i: f"{variant['ratio']['estimate']:.3f}x" for i, variant in variants.items()}
    label = f"tokens/s as a multiple of {result['baseline']}'s"
    return in_rows(label, "ratio of tokens/s", result, values, scale, draw)


def bars(
    label: str,
    unit: str,
    result: Result,
    values: Mapping[int, float],
    whiskers: Mapping[int, Sequence[float]],
    form: str,
) -> Drawing | None:
    """From 0; a whisker over all of a variant's `whiskers`."""
    if not values:
        return None
    most = max(max([values[i], *whiskers[i]]) for i in values)
    scale = Scale(0, 1.02 * most, 8, WIDTH - 8)

    def draw(number: int, top: float) -> list[Shape]:
        y = top + 29
        shapes: list[Shape] = [Box(scale(0), y - 6, scale(values[number]) - scale(0), 12, series_ink(number))]
        if whiskers[number]:
            low, high = scale(min(whiskers[number])), scale(max(whiskers[number]))
            shapes += [Line([(x, y - 4), (x, y + 4)], "text", 1.5) for x in (low, high)]
            shapes.append(Line([(low, y), (high, y)], "text", 1.5))
        return shapes

    return in_rows(label, unit, result, {i: format(value, form) for i, value in values.items()}, scale, draw)


def throughput(result: Result) -> Drawing | None:
    rates = {
        i: variant["tokens_per_sec"]
        for i, variant in enumerate(result["variants"])
        if variant["timings_valid"] and variant["tokens_per_sec"]
    }
    whiskers = {i: known([rate["low"], rate["high"]]) for i, rate in rates.items()}
    return bars("throughput", "tokens/s", result, {i: rate["median"] for i, rate in rates.items()}, whiskers, ",.0f")


def memory(result: Result) -> Drawing | None:
    peaks = {i: v["memory"].get("peak_allocated_gib") for i, v in enumerate(result["variants"])}
    found = {i: peak for i, peak in peaks.items() if peak is not None}
    whiskers = {i: known([one["peak_allocated_gib"] for one in result["variants"][i]["rounds"]]) for i in found}
    return bars("peak memory", "GiB", result, found, whiskers, ".2f")


def losses(result: Result) -> Drawing | None:
    """One curve a variant, of its first seed."""
    curves = [
        (number, curve(points))
        for number, variant in enumerate(result["variants"])
        for points in list(variant["losses"].values())[:1]
    ]
    return plot("training loss", result, curves)


def loss_differences(result: Result) -> Drawing | None:
    """A curve a variant and seed: its loss minus the baseline's at the same step of the same seed."""
    baseline, *others = result["variants"]
    curves = []
    for number, variant in enumerate(others, 1):
        for seed in [seed for seed in variant["losses"] if seed in baseline["losses"]]:
            base = dict(curve(baseline["losses"][seed]))
            curves.append((number, [(x, y - base[x]) for x, y in curve(variant["losses"][seed]) if x in base]))
    return plot(f"training loss minus that of {result['baseline']}", result, curves)


def curve(points: Mapping[str, float | None]) -> Curve:
    """In order, without what is no number."""
    return sorted((int(step), loss) for step, loss in points.items() if loss is not None and math.isfinite(loss))


def thinned(points: Curve) -> Curve:
    """At most MOST_POINTS, each the mean of its neighbours."""
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def plot(label: str, result: Result, curves: Sequence[tuple[int, Curve]]) -> Drawing | None:
    """Curves of variants, by number, over the steps: losses, in nats a token."""
    drawn = [(number, thinned(points)) for number, points in curves if points]
    if not drawn:
        return None
    xs, ys = zip(*(point for _, points in drawn for point in points), strict=True)
    legend, top = legend_above(result, sorted({number for number, _ in drawn}))
    room = 0.04 * (max(ys) - min(ys)) or 0.5
    across = Scale(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = Scale(min(ys) - room, max(ys) + room, top + HEIGHT, top)
    shapes: list[Shape] = [*legend, Text(0, 14, "nats/token", "quiet")]
    for value, text in up.ticks():
        shapes += [
            Line([(LEFT, up(value)), (WIDTH - RIGHT, up(value))], "grid"),
            Text(LEFT - 8, up(value) + 4, text, "quiet", "end"),
        ]
    for value, text in across.ticks():
        shapes.append(Text(across(value), top + HEIGHT + 18, text, "quiet", "middle"))
    shapes.append(Text(WIDTH - RIGHT, top + HEIGHT + 34, "optimizer step", "quiet", "end"))
    for number, points in drawn:
        shapes.append(Line([(across(x), up(y)) for x, y in points], series_ink(number), 1.5))
    return Drawing(label, WIDTH, top + HEIGHT + 42, shapes)


def legend_above(result: Result, numbers: Sequence[int]) -> tuple[list[Shape], float]:
    """In as many lines as it takes; also where the plot may begin."""
    shapes: list[Shape] = []
    x, y = float(LEFT), 14.0
    for number in numbers:
        name = result["variants"][number]["name"]
        width = 40 + LETTER * len(name)
        if x > LEFT and x + width > WIDTH:
            x, y = float(LEFT), y + 18
        shapes += [Line([(x, y - 4), (x + 18, y - 4)], series_ink(number), 3), Text(x + 24, y, name)]
        x += width
    return shapes, y + 14
