"""The plot: fraction of the copy roof over width, a line an implementation, a panel a pass."""

from pathlib import Path

from minillm.bench.runner import Results


def save_plot(path: Path, results: Results) -> str:
    """Write the PNG. Returns a sentence if that could not be, else ""."""
    directions = results.passes
    rows = [row for row in results.rows if not row.case.real] or results.rows
    if not directions:
        return ""  # nothing was timed
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return "no plot: matplotlib is not installed (pip install matplotlib)"
    figure = Figure(figsize=(6 * len(directions), 4.5), layout="constrained")
    panels = figure.subplots(1, len(directions), squeeze=False, sharey=True)[0]
    for panel, direction in zip(panels, directions, strict=True):
        for name in results.implementations:
            points = [
                (r.case.width, r.passes[direction].of_roof) for r in rows if r.name == name and direction in r.passes
            ]
            if points:
                bold = results.implementations[name].role == "ours"
                panel.plot(*zip(*sorted(points), strict=True), marker="o", label=name, linewidth=3 if bold else 1.2)
        panel.set(xlabel="width", title=direction, ylim=(0, 1.05))
        widths = sorted({row.case.width for row in rows})
        panel.set_xscale("log", base=2)
        panel.set_xticks(widths, map(str, widths), rotation=60)
        panel.minorticks_off()
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("fraction of the copy roof")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=8, frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))
    return ""
