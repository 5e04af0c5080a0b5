"""The plot: kernels, bytes and memory by implementation, a row of panels a form of the layer; with a GPU, times too."""

from collections.abc import Callable
from pathlib import Path

from minillm.explain.count import Counted
from minillm.explain.measure import PASSES
from minillm.explain.results import Explained, Explanation

COLORS = {"forward": "#4477aa", "backward": "#ee9944"}


def save_plot(path: Path, explanation: Explanation) -> str:
    """Write the PNG. Returns a sentence if that could not be, else ""."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return "no plot: matplotlib is not installed (pip install matplotlib)"
    rows = [panels(explanation, explained) for explained in explanation.layers]
    width, height = max(map(len, rows)), len(rows)
    figure = Figure(figsize=(4.6 * width, 0.9 + 2.9 * height), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False)
    for row, explained, content in zip(axes, explanation.layers, rows, strict=True):
        names = [found.name for found in explained.found]
        for axis, (title, bars) in zip(row, content.items(), strict=False):
            ends = [0.0] * len(names)
            for direction, values in bars.items():
                lengths = [value or 0.0 for value in values]
                axis.barh(names, lengths, left=ends, color=COLORS[direction], label=direction)
                ends = [end + length for end, length in zip(ends, lengths, strict=True)]
            for number, (name, end) in enumerate(zip(names, ends, strict=True)):
                known = all(values[number] is not None for values in bars.values())
                axis.text(end, name, f" {end:.3g}" if known else " not known here", va="center")
            axis.set_title(title, fontsize=10)
            axis.set_xlim(0, 1.2 * max(ends) or 1)
            axis.invert_yaxis()
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlabel(explained.subject.title if axis is row[0] else "", fontsize=8, loc="left")
        for unused in row[len(content) :]:
            unused.set_axis_off()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))
    return ""


def panels(explanation: Explanation, explained: Explained) -> dict[str, dict[str, list[float | None]]]:
    """Title -> pass -> a number an implementation; None where it is not known."""
    elements = explained.subject.rows * explained.subject.shape[-1]

    def values(value: Callable[[Counted], float], *directions: str) -> dict[str, list[float | None]]:
        return {d: [value(f.counted[d]) if f.counted else None for f in explained.found] for d in directions}

    floor = sum(explained.subject.floor.values()) / elements
    found = {
        "kernels (counted)": values(lambda one: len(one.launches), *PASSES),
        f"bytes moved an element (counted; floor {floor:.3g})": values(lambda one: one.moved / elements, *PASSES),
        "bytes kept an element (counted)": values(lambda one: one.kept / elements, "forward"),
    }
    if explanation.measured:
        found["ms"] = {d: [f.ms[d].median if d in f.ms else None for f in explained.found] for d in PASSES}
    return found
