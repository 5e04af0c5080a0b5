"""comparison.html: one page that needs nothing else, no network and no script; light or dark as the reader has it."""

from html import escape
from typing import Any

from minillm.compare.report import drawing, tables
from minillm.compare.report.charts import charts
from minillm.compare.report.tables import NOTHING, Result, Table
from minillm.compare.same import flat

# The page may load nothing and run nothing: a variant's name is the user's text, even if it were not escaped.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; }
body { margin: 2.5rem auto; max-width: 960px; padding: 0 1rem; background: var(--ink-paper); color: var(--ink-text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
p, figcaption, summary { color: var(--ink-quiet); }
p, figure { max-width: 760px; }
code, pre { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--ink-grid); text-align: right;
  white-space: nowrap; }
th { font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, .words td, .words th { text-align: left; }
td:first-child { white-space: normal; min-width: 7rem; }
figure { margin: 1rem 0; }
svg { width: 100%; max-width: 560px; height: auto; font-family: system-ui, sans-serif; }
.verdicts { list-style: none; padding: 0; margin: 1.2rem 0; }
.verdicts li { padding: .5rem .9rem; margin: .4rem 0; background: var(--ink-band);
  border-left: 5px solid var(--ink-quiet); }
.verdicts .faster { border-color: var(--ink-3); }
.verdicts .slower, .verdicts .failed { border-color: var(--ink-5); }
.verdicts .equal { border-color: var(--ink-1); }
.verdicts .undecided, .verdicts .invalid { border-color: var(--ink-7); }
"""

CAPTIONS = {
    "ratio": "Bar: the interval; stroke: the estimate; dots: one a round, hollow where the round was disturbed. What "
    "lies within the band counts as equal.",
    "throughput": "Median of the rounds; whisker: the interval of their mean.",
    "memory": "The most that was allocated after the warm-up; whisker: from the least to the most of the rounds.",
    "loss": "Of the first seed; lines that coincide hide each other, so see the differences below.",
    "loss_difference": "At the same step of the same seed, a curve a seed.",
}


def page(result: Result) -> str:
    """The whole file."""
    title = escape(tables.title(result))
    foreseen = tables.predictions(result)
    drawn = charts(result)
    body = [
        f"<h1>{title}</h1>",
        f"<p><code>{escape(result['command'])}</code><br>{escape(when(result))}</p>",
        verdicts(result),
        html_table(tables.numbers(result)),
        f"<p>{escape(tables.how_measured(result))}</p>",
        *(section(charted.label, figure(charted, name, result)) for name, charted in drawn.items()),
        section("A step's milliseconds saved, predicted by explain.py and measured", html_table(foreseen))
        if foreseen.rows
        else "",
        section("Rounds: tokens/s (ratio)", html_table(tables.by_round(result))) if result["interleaved"] else "",
        section("Disturbed rounds", disturbed(result)) if result["disturbed"] else "",
        section("What differs", html_table(tables.differences(result), "words")) if result["differences"] else "",
        section("What ran", html_table(tables.what_ran(result))),
        section("Where, and on what data", html_table(surroundings(result), "words")) if result["env"] else "",
        configuration(result),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{drawing.style()}{STYLE}</style>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n'
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def when(result: Result) -> str:
    state = "" if result["status"] == "finished" else f", {result['status']}"
    return f"{result['started'].replace('T', ' ')}{state}"


def verdicts(result: Result) -> str:
    items = [
        f'<li class="{line.kind}"><strong>{escape(line.name)}</strong> {escape(line.text)}</li>'
        for line in tables.verdicts(result)
    ]
    return f'<ul class="verdicts">{"".join(items)}</ul>' if items else ""


def section(title: str, content: str) -> str:
    return f"<h2>{escape(title[:1].upper() + title[1:])}</h2>\n{content}"


def figure(drawn: drawing.Drawing, name: str, result: Result) -> str:
    caption = CAPTIONS[name] if result["interleaved"] else ""
    return f"<figure>{drawn.svg()}<figcaption>{escape(caption)}</figcaption></figure>"


def html_table(table: Table, kind: str = "") -> str:
    """kind: `words` where the columns are not numbers."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header if cell)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def disturbed(result: Result) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in tables.troubles(result))
    return f"<p>They are in the numbers, where they widen the interval.</p><ul>{lines}</ul>"


def surroundings(result: Result) -> Table:
    values = flat({**result["env"], "data": result["corpus"]})
    return Table(["", ""], [[key.replace(".", ": ").replace("_", " "), in_digits(v)] for key, v in values.items()])


def in_digits(value: Any) -> str:
    """A value for people: numbers with thousands set apart, and no more digits than are read."""
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else NOTHING if value is None else str(value)


def configuration(result: Result) -> str:
    """The first variant's, folded away."""
    lines = "\n".join(f"{key}={value}" for key, value in flat(result["variants"][0]["config"]).items())
    summary = f"The whole configuration of {result['baseline']}"
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(lines)}</pre></details>"
