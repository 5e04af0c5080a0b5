"""What a run found, as JSON, as Markdown and as verdicts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from minillm.bench.config import BenchConfig
from minillm.bench.op import Case
from minillm.bench.runner import HOST_ROWS, Results, Row


def verdicts(results: Results) -> list[str]:
    """One line for each case and pass: ours against the best peer that is right. Empty where nothing was timed."""
    lines = []
    for case, rows in by_case(results.rows).items():
        ours = next((row for row in rows if results.implementations[row.name].role == "ours"), None)
        peers = [r for r in rows if results.implementations[r.name].role == "peer" and r.status == "ok"]
        if ours is None or not any(row.passes for row in rows):
            continue
        if ours.status != "ok":
            lines.append(f"{case.label}: {ours.name} is {ours.status} ({ours.note}), so there is no verdict")
            continue
        for direction, measured in ours.passes.items():
            share = f"{case.label} {direction}: {ours.name} {speed(case, measured.of_roof, measured.ms.median)}"
            timed = {peer.name: peer.passes[direction].ms.median for peer in peers if direction in peer.passes}
            if not timed:
                lines.append(f"{share}, no peer to compare with")
                continue
            best = min(timed, key=lambda name: timed[name])
            best_share = measured.of_roof * measured.ms.median / timed[best]
            ratio = timed[best] / measured.ms.median
            lines.append(f"{share}, best peer {best} {speed(case, best_share, timed[best])}: {ratio:.3f}x")
    return lines


def speed(case: Case, of_roof: float, ms: float) -> str:
    """In the operator's own terms: of the copy roof where its traffic decides, in ms where matrix products do."""
    return f"{ms:.2f} ms" if case.inner else f"{of_roof:.2f} of the roof"


def by_case(rows: list[Row]) -> dict[Case, list[Row]]:
    grouped: dict[Case, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.case, []).append(row)
    return grouped


def markdown(results: Results, command: str, environment: dict[str, Any]) -> str:
    """The tables, with what they depend on above them."""
    parts = [f"# `{command}`", ", ".join(f"{key} {value}" for key, value in environment.items() if value)]
    parts += ["\n".join(f"- {note}" for note in results.notes)] if results.notes else []
    if results.roof is None:
        parts.append(checked_table(results))
    else:
        parts += [share_table(results, direction) for direction in results.passes]
        parts += [timed_table(results), host_table(results)]
    remarks = dict.fromkeys(
        f"- {'' if row.status == 'missing' else row.case.label + ' '}{row.name} is {row.status}: {row.note}"
        for row in results.rows
        if row.note
    )
    parts += ["\n".join(remarks)] if remarks else []
    found = verdicts(results)
    parts += ["## Verdict\n\n" + "\n".join(f"- {line}" for line in found)] if found else []
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: list[str], lines: list[list[str]]) -> str:
    """Markdown, its columns aligned so that a terminal shows it well too."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]

    def row(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([row(header), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(row, lines)])


def share_table(results: Results, direction: str) -> str:
    """Fractions of the copy roof, or ms: a line an implementation, a column a case."""
    cases = by_case(results.rows)
    in_ms = any(case.inner for case in cases)

    def cell(row: Row) -> str:
        if direction not in row.passes:
            return row.status
        measured = row.passes[direction]
        return f"{measured.ms.median if in_ms else measured.of_roof:.2f}" + (" wrong" if row.status == "wrong" else "")

    lines = [
        [n, *(cell(next(r for r in rows if r.name == n)) for rows in cases.values())] for n in results.implementations
    ]
    title = f"## {direction.capitalize()}, {'ms' if in_ms else 'fraction of the copy roof'}"
    return title + "\n\n" + table(["", *(case.label for case in cases)], lines)


def timed_table(results: Results) -> str:
    """Every number of every pass."""
    lines = [
        [
            row.case.label,
            direction,
            row.name,
            *(f"{value:.4f}" for value in (m.ms.median, m.ms.p10, m.ms.p90)),
            f"{m.gb_per_second:.0f}",
            f"{m.of_roof:.3f}",
            f"{m.extra / 2**20:.1f}",
            f"{m.kept / 2**20:.1f}",
        ]
        for row in results.rows
        for direction, m in row.passes.items()
    ]
    header = ["case", "pass", "implementation", "ms", "p10", "p90", "GB/s", "of roof", "peak extra MiB", "kept MiB"]
    return "## Times\n\n" + table(header, lines)


def host_table(results: Results) -> str:
    """Medians, with the spread from the first to the last decile; a column for each way to call."""

    def cell(name: str, way: str) -> str:
        s = results.host[way].get(name)
        return f"{s.median:.0f} ({s.p10:.0f} to {s.p90:.0f})" if s else "-"

    lines = [[name, *(cell(name, way) for way in results.host)] for name in results.host.get("eager", {})]
    header = ["implementation", *results.host]
    title = f"## Host time of forward + backward, {HOST_ROWS} rows, microseconds"
    return title + "\n\n" + (table(header, lines) if lines else "none was timed")


def checked_table(results: Results) -> str:
    """Without times: the errors against float64, and the bytes that have to be moved."""
    lines = []
    for row in results.rows:
        errors = ", ".join(f"{f.tensor} {f.l2:.1e}" for f in row.findings)
        traffic = results.op.traffic(row.case)
        counted = [f"{count / 2**20:.1f}" for count in traffic.values()]
        lines.append([row.case.label, row.name, row.status, errors or "-", *counted])
    directions = [f"MiB {direction}" for direction in results.op.traffic(results.rows[0].case)]
    header = ["case", "implementation", "status", "relative L2 error", *directions]
    return "## Checked, not timed\n\n" + table(header, lines)


def plain(value: object) -> Any:
    """What JSON cannot say by itself, as plain data: dtypes by name."""
    return str(value).removeprefix("torch.")


def to_json(results: Results, config: BenchConfig, command: str, environment: dict[str, Any]) -> str:
    """Everything, samples summarised (ms, GB/s, bytes, microseconds)."""
    content = {
        "command": command,
        "config": config.model_dump(mode="json"),
        "env": environment,
        "notes": results.notes,
        "roof": asdict(results.roof) if results.roof else None,
        "host_us": {way: {n: asdict(summary) for n, summary in times.items()} for way, times in results.host.items()},
        "rows": [asdict(row) for row in results.rows],
        "verdicts": verdicts(results),
    }
    return json.dumps(content, indent=1, default=plain)


def save(folder: Path, results: Results, config: BenchConfig, command: str, environment: dict[str, Any]) -> str:
    """Write bench.json and bench.md into `folder`; returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(results, command, environment)
    (folder / "bench.md").write_text(text, encoding="utf-8")
    (folder / "bench.json").write_text(to_json(results, config, command, environment), encoding="utf-8")
    return text
