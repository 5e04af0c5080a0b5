"""What op=step found, as Markdown and JSON."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minillm.bench.report import table
from minillm.bench.step.results import Results, Variant
from minillm.bench.step.variants import BASELINE
from minillm.flops import CONVENTION
from minillm.waterfall.account import Account
from minillm.waterfall.parts import PARTS

TOP = 15  # kernels
NAME = 90  # characters of a kernel's
# Tokens a second of plain Llama code under torch.compile on one H200: below, it is the baseline that is at fault.
EXPECTED = {"110m": 560_000, "1b": 65_000}


def save(folder: Path, results: Results, command: str) -> str:
    """Write bench.json and bench.md into `folder`; returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(results, command)
    (folder / "bench.md").write_text(text, encoding="utf-8")
    (folder / "bench.json").write_text(to_json(results, command), encoding="utf-8")
    return text


def markdown(results: Results, command: str) -> str:
    config, env = results.config, ", ".join(f"{key} {value}" for key, value in results.env.items() if value)
    setting = (
        f"{config.model.name}: {config.batch.micro} x {config.data.sequence_length} random tokens a step, precision "
        f"{config.trainer.precision}, MFU: {CONVENTION}"
    )
    roof = None if results.roof is None else f"copy roof {results.roof.gb_per_second:.0f} GB/s"
    profiled = [variant for variant in results.variants if variant.parts]
    parts = [f"# `{command}`", env, setting, roof, *notes(results), "## Steps", steps_table(results)]
    if profiled:
        parts += ["## Waterfall, ms a step", waterfall_table(results, profiled)]
        parts += ["## Countable traffic", traffic_table(results)]
        parts += [kernels_section(variant) for variant in profiled]
    return "\n\n".join(part for part in parts if part) + "\n"


def notes(results: Results) -> list[str]:
    """What a reader must know before the figures."""
    lines = [f"- {v.name} failed: {v.trouble}" for v in results.variants if v.trouble]
    if results.roof is None:
        lines.append("- without a GPU: host times and host operators, to try the command out; they say nothing")
    baseline = next((v for v in results.variants if v.name == BASELINE), None)
    speed = results.tokens_per_second(baseline) if baseline else None
    expected = EXPECTED.get(results.options.model)
    if speed and expected and speed < expected and "H200" in results.env["device"]:
        lines.append(f"- {BASELINE} is below {expected} tokens/s, which it should reach: the ratios to it mean nothing")
    return ["\n".join(lines)] if lines else []


def steps_table(results: Results) -> str:
    lines = []
    for v in results.variants:
        ratio = results.ratio(v)
        lines.append(
            [
                v.name,
                number(v.step_ms, ".2f"),
                number(results.tokens_per_second(v), ".0f"),
                number(results.mfu(v), ".3f"),
                number(v.peak_gib, ".2f"),
                number(v.idle_share, ".3f"),
                "-" if ratio is None else f"{ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})",
                number(v.ready_s, ".0f"),
            ]
        )
    header = ["", "ms", "tokens/s", "MFU", "peak GiB", "idle share", f"x {BASELINE} (rounds)", "ready after s"]
    return table(header, lines)


def waterfall_table(results: Results, variants: list[Variant]) -> str:
    """A column a variant: its kernels by part, then what they add up to."""
    accounts = [found for v in variants if (found := results.account(v))]
    used = [part for part in PARTS if any(part in v.parts for v in variants)]
    lines = [[part, *(number(v.parts.get(part), ".2f") for v in variants)] for part in used]

    def line(name: str, value: Callable[[Account], float | None], digits: str = ".2f") -> None:
        lines.append([name, *(number(value(account), digits) for account in accounts)])

    line("idle", lambda a: a.idle)
    line("**all of it**", lambda a: a.floor + a.other + (a.idle or 0.0))
    lines.append(["the step as timed", *(number(v.step_ms, ".2f") for v in variants)])
    line("floor: matmul, attention, optimizer", lambda a: a.floor)
    line("traffic, at the copy roof", lambda a: a.traffic)
    line("other kernels / traffic", lambda a: a.over_traffic)
    line("waste: the rest", lambda a: a.waste)
    line("unattributed, part of the kernels", lambda a: a.unattributed, ".3f")
    return table(["", *(v.name for v in variants)], lines)


def traffic_table(results: Results) -> str:
    """What fused layers cannot avoid, layer by layer, and what the first variant's take."""
    roof, first = results.roof, next(v for v in results.variants if v.parts)
    lines = []
    for layer, count in results.traffic.items():
        ms = None if roof is None else count / roof.gb_per_second / 1e6
        lines.append([layer, f"{count / 1e9:.2f}", number(ms, ".2f"), number(first.parts.get(layer), ".2f")])
    return table(["layer", "GB a step", "ms at the copy roof", f"ms of {first.name}"], lines)


def kernels_section(variant: Variant) -> str:
    names = "\n".join(f"- `{name[:NAME]}`" for name in variant.attention) or "- none"
    lines = [[f"`{name[:NAME]}`", part, f"{ms:.3f}", f"{calls:g}"] for name, part, ms, calls in variant.kernels[:TOP]]
    top = table(["kernel", "part", "ms a step", "calls a step"], lines)
    return f"## {variant.name}\n\nAttention ran on\n\n{names}\n\nThe most expensive kernels\n\n{top}"


def number(value: float | None, digits: str) -> str:
    return "-" if value is None else format(value, digits)


def to_json(results: Results, command: str) -> str:
    def entry(v: Variant) -> dict[str, Any]:
        account = results.account(v)
        derived = {
            "step_ms": v.step_ms,
            "tokens_per_second": results.tokens_per_second(v),
            "mfu": results.mfu(v),
            "ratio": results.ratio(v),
            "attention": v.attention,
            "account": asdict(account) if account else None,
            "idle_share": v.idle_share,
        }
        return asdict(v) | {"config": v.config.model_dump(mode="json")} | derived

    content = {
        "command": command,
        "options": results.options.model_dump(mode="json"),
        "env": results.env,
        "roof": asdict(results.roof) if results.roof else None,
        "tokens_a_step": results.tokens,
        "traffic_bytes": results.traffic,
        "variants": [entry(v) for v in results.variants],
    }
    return json.dumps(content, indent=1)
