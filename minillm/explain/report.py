"""The tables, as Markdown, which is also what the terminal shows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minillm.bench.report import table
from minillm.explain import recorded
from minillm.explain.as_json import to_json
from minillm.explain.count import Counted, Launch, Triton
from minillm.explain.measure import PASSES, DeviceKernel
from minillm.explain.results import Explained, Explanation, Found
from minillm.hardware import why_no_gpu
from minillm.waterfall.parts import PARTS

NOTHING = "-"
NAME = 70  # characters of a kernel's
TILE = ("BLOCK", "PIECES")


def save(folder: Path, explanation: Explanation) -> str:
    """Write explain.json and explain.md into `folder`; returns the Markdown."""
    text = markdown(explanation)
    (folder / "explain.md").write_text(text, encoding="utf-8")
    (folder / "explain.json").write_text(json.dumps(to_json(explanation), indent=1), encoding="utf-8")
    return text


def markdown(explanation: Explanation) -> str:
    parts = [f"# `{explanation.command}`", header(explanation)]
    for explained in explanation.layers:
        parts += [f"## {explained.subject.title}", layer_table(explanation, explained), notes(explained)]
        parts += ["### Launches", launch_table(explanation, explained)]
        if explanation.measured:
            parts += ["### Kernels that the profiler saw", kernel_table(explained)]
    if explanation.walk:
        parts += ["## Program by program", explanation.walk]
    if explanation.claims:
        lines = [[c.claim, c.found, c.verdict] for c in explanation.claims]
        title = "## What is said of it, at 2 x 3 x 512 in bf16"
        parts += [title, table(["claim", "counted or measured", "so it"], lines)]
    parts += ["## The whole step", step_section(explanation), prediction_section(explanation)]
    return "\n\n".join(part for part in parts if part) + "\n"


def header(explanation: Explanation) -> str:
    """The card, and what of it the numbers depend on."""
    card, env = explanation.card, explanation.env
    l2 = "not recorded" if card.l2 is None else f"{card.l2 / 2**20:.0f} MiB"
    roof = explanation.roof if explanation.measured else recorded.table()["gb_per_second"]
    peak = "not known" if card.peak_flops is None else f"{card.peak_flops / 1e12:.0f} TFLOP/s"
    facts = (
        f"{card.name}: {card.sms} SMs, each with {card.registers} registers and {card.shared // 1024} KiB of shared "
        f"memory for up to {card.threads} threads; L2 {l2}; copy bandwidth {roof:.0f} GB/s; dense bf16 peak {peak}."
    )
    if not explanation.measured:
        facts = (
            f"{why_no_gpu()[0].upper()}{why_no_gpu()[1:]}: launches, tensors and bytes are counted as for the card "
            f"below, and nothing is timed. GPU figures are {recorded.source()}.\n\n{facts}"
        )
    versions = ", ".join(f"{key} {value}" for key, value in env.items() if key != "device" and value is not None)
    return f"{facts}\n\n{versions}"


def layer_table(explanation: Explanation, explained: Explained) -> str:
    """A column an implementation."""
    subject, lines = explained.subject, []

    def line(title: str, cells: list[str]) -> None:
        if set(cells) != {NOTHING}:
            lines.append([title, *cells])

    for d in PASSES:
        line(f"{d}: kernels (counted)", [counted(f, d, lambda c: str(len(c.launches))) for f in explained.found])
        line(f"{d}: kernels (profiled)", [str(len(f.kernels[d])) if f.kernels else NOTHING for f in explained.found])
        line(f"{d}: must move", [size(subject.floor[d])] * len(explained.found))
        line(f"{d}: moved (counted)", [counted(f, d, lambda c: size(c.moved)) for f in explained.found])
        over = [f.counted[d].moved / subject.floor[d] if f.counted else None for f in explained.found]
        line(f"{d}: moved / must move", [share(value) for value in over])
        made = [
            counted(f, d, lambda c: f"{len(c.intermediates)}, {size(sum(c.intermediates))}") for f in explained.found
        ]
        line(f"{d}: tensors made on the way", made)
        if d == "forward":
            line("kept for backward", [counted(f, d, lambda c: size(c.kept)) for f in explained.found])
        line(f"{d}: ms", [f"{f.ms[d].median:.4f}" if d in f.ms else NOTHING for f in explained.found])
        line(f"{d}: of the copy roof", [share(explanation.of_roof(subject, f, d)) for f in explained.found])
    figures = None if explanation.measured else recorded.of(subject)
    if figures is not None:
        at = f"recorded at {figures.rows} x {figures.width}"
        for d in PASSES:
            known = [figures.passes.get(f.name, {}).get(d) for f in explained.found]
            line(f"{d}: ms, {at}", [NOTHING if k is None else f"{k[0]:.4f}" for k in known])
            line(f"{d}: of the copy roof, {at}", [NOTHING if k is None else share(k[1]) for k in known])
    return table(["", *(found.name for found in explained.found)], lines)


def counted(found: Found, direction: str, text: Callable[[Counted], str]) -> str:
    return text(found.counted[direction]) if found.counted else NOTHING


def notes(explained: Explained) -> str:
    lines = [f"* {found.name}: {found.note}" for found in explained.found if found.note]
    if not explained.subject.adds and explained.subject.calls > 1:
        lines.append(f"* a step runs it {explained.subject.calls} times")
    elif explained.subject.adds:
        lines.append(f"* a step runs it {explained.subject.calls} times, and the form above for the first norm")
    return "\n".join(lines)


def launch_table(explanation: Explanation, explained: Explained) -> str:
    """What was counted: a line for all of PyTorch's kernels of a pass, and one for each of Triton's."""
    lines = []
    for found in explained.found:
        for direction, passed in found.counted.items():
            for launches in alike(passed.launches):
                cells = [size(sum(launch.moved for launch in launches)), *triton_cells(explanation, launches[0].triton)]
                lines.append([found.name, direction, names(launches), *cells])
    columns = ["grid", "tile", "warps", "registers", "spilled", "in flight"]
    return table(["implementation", "pass", "kernels", "moved", *columns], lines)


def alike(launches: list[Launch]) -> list[list[Launch]]:
    """Those of PyTorch together, and those of a Triton kernel with the same code and grid."""
    found: dict[Any, list[Launch]] = {}
    for launch in launches:
        key = launch.triton and (launch.triton.key, launch.triton.grid)
        found.setdefault(key, []).append(launch)
    return list(found.values())


def names(launches: list[Launch]) -> str:
    """In order; the same one several times is counted."""
    short = [launch.name.removeprefix("aten::") for launch in launches]
    counts = {name: short.count(name) for name in dict.fromkeys(short)}
    return ", ".join(name + (f" x {count}" if count > 1 else "") for name, count in counts.items())


def triton_cells(explanation: Explanation, triton: Triton | None) -> list[str]:
    """Grid, tile, warps, registers a thread, bytes of stack a thread, programs in flight."""
    if triton is None:
        return [NOTHING] * 6
    took = explanation.resources[triton.key]
    tile = [f"{key}={value}" for key, value in triton.constants.items() if key.startswith(TILE)]
    return [
        " x ".join(map(str, triton.grid)),
        " ".join(tile),
        str(triton.warps),
        str(took.registers),
        f"{took.stack} B",
        str(explanation.card.in_flight(triton.programs, took, triton.warps)),
    ]


def kernel_table(explained: Explained) -> str:
    def cells(kernel: DeviceKernel) -> list[str]:
        grid = NOTHING if kernel.grid is None else " x ".join(map(str, kernel.grid))
        numbers = (str(n) if n is not None else NOTHING for n in (kernel.threads, kernel.registers))
        return [f"`{kernel.name[:NAME]}`", f"{kernel.microseconds:.1f}", grid, *numbers]

    lines = [
        [found.name, direction, *cells(kernel)]
        for found in explained.found
        for direction, kernels in found.kernels.items()
        for kernel in kernels
    ]
    return table(["implementation", "pass", "kernel", "us, warm", "grid", "threads", "registers"], lines)


def step_section(explanation: Explanation) -> str:
    """GPU milliseconds by part, and the distance to the floor."""
    if not explanation.steps:
        if explanation.plan.shape:
            return "Not taken apart: a whole step has the model's own shape. Leave shape= out to see it."
        return "Not taken apart: that needs a GPU, and no whole step is recorded."
    steps = explanation.steps
    used = [part for part in PARTS if any(part in step.parts for step in steps)]
    lines = [[part, *(ms(step.parts.get(part)) for step in steps)] for part in used]
    lines += [
        ["idle", *(ms(step.account.idle) for step in steps)],
        ["**the step as timed**", *(ms(step.ms) for step in steps)],
        ["floor: matmul, attention, optimizer", *(ms(step.account.floor) for step in steps)],
        ["traffic that fused layers cannot avoid", *(ms(step.account.traffic) for step in steps)],
        ["the rest: waste", *(ms(step.account.waste) for step in steps)],
        ["unattributed, part of the kernels", *(f"{step.account.unattributed:.1%}" for step in steps)],
    ]
    taken = "A step here is one micro-batch and an update, without clipping the gradient."
    return f"{taken}\n\n{table(['ms a step', *(step.name for step in steps)], lines)}"


def prediction_section(explanation: Explanation) -> str:
    """What the choice should be worth in a step."""
    found = explanation.prediction()
    if found is None:
        return ""
    lines = [[name, ms(took), ms(found.saved_ms[name])] for name, took in found.layer_ms.items()]
    return (
        f"## Predicted for a step\n\nThe layer's times by itself, forward and backward, times how often an optimizer "
        f"step runs it ({found.source}).\n\n" + table(["", "ms a step", "saved"], lines)
    )


def size(count: int) -> str:
    """Bytes for people."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.2f} {unit}"
    return f"{count} B"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def ms(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"
