"""The words and tables of a comparison; as Markdown they are comparison.md, which is also what the terminal shows."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minillm.bench.report import table
from minillm.compare.parity import LAST_STEPS
from minillm.config import LAYERS

NOTHING = "-"
Result = Mapping[str, Any]  # comparison.json's content


class Table(NamedTuple):
    """Cells for people."""

    header: list[str]
    rows: list[list[str]]

    def filled(self) -> "Table":
        """Without the columns that nobody has anything in."""
        kept = [i for i in range(len(self.header)) if any(row[i] != NOTHING for row in self.rows)]
        return Table([self.header[i] for i in kept], [[row[i] for i in kept] for row in self.rows])


class Line(NamedTuple):
    """A variant's verdict. kind: of `statistics.Verdict`, or failed, or invalid."""

    name: str
    kind: str
    text: str


def markdown(result: Result) -> str:
    """The comparison for people, what they want to know first on top."""
    lines = [f"* {line.name}: {line.text}" for line in verdicts(result)]
    troubled = [f"* {line}" for line in troubles(result)]
    parts = [
        f"# {title(result)}",
        f"`{result['command']}`",
        "\n".join(lines),
        table(*numbers(result)),
        how_measured(result),
        "A step's milliseconds saved, as explain.py predicts and as measured:\n\n" + table(*predictions(result))
        if predictions(result).rows
        else "",
        "The configurations differ in:\n\n" + table(*differences(result)) if result["differences"] else "",
        "Disturbed rounds (they are in the numbers):\n\n" + "\n".join(troubled) if troubled else "",
        environment(result),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def title(result: Result) -> str:
    return f"{', '.join(result['varied']) or 'equal runs'} compared"


def verdicts(result: Result) -> list[Line]:
    """One for each variant but the baseline (for that too where it failed): the speed, then the training."""
    lines = []
    for number, variant in enumerate(result["variants"]):
        name, verdict, parity = variant["name"], variant["verdict"], variant["parity"]
        trained = [parity["text"]] if parity else []
        if variant["status"] == "failed":
            lines.append(Line(name, "failed", f"failed: {variant['error']}"))
        elif number == 0 or not result["interleaved"]:
            continue
        elif variant["layers_ran"] is not None and not variant["timings_valid"]:
            lines.append(
                Line(name, "invalid", "; ".join(["no verdict, in Triton's interpreter timings mean nothing", *trained]))
            )
        elif verdict:
            lines.append(Line(name, verdict["kind"], "; ".join([verdict["text"], *trained])))
    return lines


def numbers(result: Result) -> Table:
    """A line a variant."""
    rows = []
    for variant in result["variants"]:
        rate, step, ratio = (variant[key] or {} for key in ("tokens_per_sec", "step_ms", "ratio"))
        rows.append(
            [
                variant["name"],
                shown(rate.get("median"), ",.0f") + ("" if variant["timings_valid"] or not rate else " (invalid)"),
                f"{rate['min']:,.0f} to {rate['max']:,.0f}" if len(variant["rounds"]) > 1 else NOTHING,
                shown(step.get("median"), ".2f"),
                shown(variant["mfu"], ".1%"),
                shown(variant["memory"].get("peak_allocated_gib"), ".2f"),
                shown(ratio.get("estimate"), ".3f"),
                f"{ratio['low']:.3f} to {ratio['high']:.3f}" if ratio.get("low") else NOTHING,
                shown(variant["loss"], ".4f"),
                shown(variant["val_loss"], ".4f"),
            ]
        )
    header = ["variant", "tokens/s", "of rounds", "median step ms", "MFU", "peak GiB"]
    header += ["ratio", "interval", "loss", "val loss"]
    return Table(header, rows).filled()


def predictions(result: Result) -> Table:
    """A line for each variant that explain.py has a prediction for, if it has one for the baseline."""
    base, *others = result["variants"]
    rows = []
    for variant in others:
        expected = known([v["predicted_ms"] for v in (base, variant)])
        took = known([(v["step_ms"] or {}).get("median") for v in (base, variant)])
        if len(expected) == len(took) == 2:
            predicted, measured = expected[0] - expected[1], took[0] - took[1]
            rows.append([variant["name"], *(f"{ms:.2f}" for ms in (predicted, measured, measured - predicted))])
    return Table(["variant", "predicted", "measured", "difference"], rows)


def how_measured(result: Result) -> str:
    """What the table's numbers mean."""
    base = f"Ratios are to {result['baseline']}, in tokens/s"
    if not result["interleaved"]:
        return (
            f"{base}. These runs were not interleaved: whatever else changed between them is in the ratio, and nothing "
            "says how sure it is. For an interval and a verdict let compare.py run them."
        )
    planned = result["rounds_planned"]
    of = f" of {planned}" if planned and planned != result["rounds"] else ""
    return (
        f"{result['rounds']}{of} rounds in {result['minutes']:.1f} minutes. {base}: the rounds' geometric "
        f"mean, each with its own {result['confidence']:.0%} interval (Student's t over rounds), while tokens/s is the "
        f"median round's; what is within {result['margin']:.0%} counts as equal. "
        f"The loss is the mean of the training's last {LAST_STEPS} steps, up to step {last_step(result)}, compared at "
        "equal steps of the same seed."
    )


def last_step(result: Result) -> int:
    return max((int(step) for v in result["variants"] for curve in v["losses"].values() for step in curve), default=0)


def by_round(result: Result) -> Table:
    """The raw samples: tokens/s of each variant in each round, and its ratio to the first."""
    variants = result["variants"]
    rows: dict[int, list[str]] = {}
    for number, variant in enumerate(variants):
        for one in variant["rounds"]:
            label = f"{one['round'] + 1}{' (disturbed)' if str(one['round']) in result['disturbed'] else ''}"
            row = rows.setdefault(one["round"], [label, str(one["seed"]), *[NOTHING] * len(variants)])
            ratio = "" if one["log_ratio"] is None else f" ({math.exp(one['log_ratio']):.3f})"
            row[2 + number] = f"{one['tokens_per_sec']:,.0f}{ratio}"
    header = ["round", "seed", *(variant["name"] for variant in variants)]
    return Table(header, [rows[number] for number in sorted(rows)]).filled()


def differences(result: Result) -> Table:
    """The configurations where they differ."""
    names = [variant["name"] for variant in result["variants"]]
    columns = result["differences"]
    rows = [[name, *(str(values[i]) for values in columns.values())] for i, name in enumerate(names)]
    return Table(["variant", *columns], rows)


def what_ran(result: Result) -> Table:
    """What the configurations came to, and the state of the machine meanwhile."""
    rows = []
    for variant in result["variants"]:
        layers, machine = variant["layers_ran"] or {}, variant["machine"]
        rows.append(
            [
                variant["name"],
                *(layers.get(layer, NOTHING) for layer in LAYERS),
                variant["attention_backend"] or NOTHING,
                variant["precision"] or NOTHING,
                shown(variant["parameters"], ","),
                shown(variant["data_wait_ms"], ".2f"),
                shown(machine.get("clock_mhz"), ".0f"),
                shown(machine.get("watts"), ".0f"),
                shown(machine.get("celsius"), ".0f"),
            ]
        )
    measured = ["attention", "precision", "parameters", "data wait ms", "clock MHz", "W", "°C"]
    return Table(["variant", *LAYERS, *measured], rows).filled()


def troubles(result: Result) -> list[str]:
    return [f"round {int(number) + 1}: {', '.join(what)}" for number, what in result["disturbed"].items()]


def environment(result: Result) -> str:
    env, corpus = result["env"], result["corpus"]
    if env is None:
        return ""
    versions = ", ".join(f"{key} {value}" for key, value in env.items() if key != "device" and value is not None)
    return f"{env['device']}; {versions}; data {corpus['source']} {corpus['hash']}"


def shown(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def known(values: Sequence[float | None]) -> list[float]:
    """Those that were measured and are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]
