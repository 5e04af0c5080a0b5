"""A small tensor, program by program: who handles which row, what is made on the way, what a fast kernel changes."""

import math
from collections.abc import Mapping

from kernels import MAX_BLOCK_SIZE
from kernels.resources import Resources
from minillm.bench.report import table
from minillm.explain.card import Card
from minillm.explain.claims import ITEMSIZE, the_kernel
from minillm.explain.count import Counted, Triton
from minillm.explain.recorded import figures

MOST_ROWS = 32


def is_small(shape: tuple[int, ...]) -> bool:
    """Whether every row can be told of, and the simple kernel can run."""
    return math.prod(shape[:-1]) <= MOST_ROWS and shape[-1] <= MAX_BLOCK_SIZE


def walk(
    shape: tuple[int, ...],
    counted: Mapping[str, Mapping[str, Counted]],
    resources: Mapping[str, Resources],
    card: Card,
) -> str:
    """Of RMSNorm in bf16; `counted`: name -> pass, of the teaching example's norms at this shape, for `card`;
    `resources` of their Triton kernels."""
    rows, width, row_bytes = math.prod(shape[:-1]), shape[-1], shape[-1] * ITEMSIZE
    forward, backward = ({name: passes[d] for name, passes in counted.items()} for d in ("forward", "backward"))
    simple, fast = (the_kernel(forward[name].launches) for name in ("triton_simple", "triton"))
    size = " x ".join(map(str, shape))
    return "\n\n".join(
        [
            f"x ({size}) in bf16 is {rows} rows of {width} elements, {row_bytes} bytes each, one after the other in "
            "memory. A row needs nothing of another: rows are the units of work.",
            f"`textbook` runs operation by operation, each over all {rows} rows, and every one leaves a tensor:",
            operations(forward["textbook"]),
            "`eager` does so with fp32 inside, as models do: there and back again are operations, too.",
            operations(forward["eager"]),
            f"`triton_simple` is launched over the grid {simple.grid}. The program with number i (`tl.program_id(0)`) "
            f"has row i, in a block of {simple.constants['BLOCK_N']} elements on {warps(simple)}; it loads the row, "
            f"squares, sums, scales in registers and stores it: {forward['triton_simple'].moved} bytes in all.",
            "\n".join(
                f"* program {row}: x[{', '.join(map(str, index(row, shape[:-1])))}], bytes {row * row_bytes} to "
                f"{(row + 1) * row_bytes - 1}"
                for row in range(rows)
            ),
            f"`triton` is launched over the grid {fast.grid}, {rows_at_once(fast)} row(s) a program on {warps(fast)}:",
            rows_of_programs(fast, rows),
            why_forward(simple, fast, rows, width, resources, card) + recorded(rows, width, "forward"),
            on_the_way(forward),
            why_backward(backward, rows) + recorded(rows, width, "backward"),
        ]
    )


def operations(passed: Counted) -> str:
    """What each leaves and moves, numbered."""
    return "\n".join(
        f"{number}. {launch.name.removeprefix('aten::')}: {launch.outputs[0]}, {launch.moved} bytes moved"
        for number, launch in enumerate(passed.launches, 1)
    )


def rows_of_programs(fast: Triton, rows: int) -> str:
    block = rows_at_once(fast)
    if block == 1:
        return "* one row a program here, too"
    return "\n".join(
        f"* program {program}: rows {program * block} to {min(rows, (program + 1) * block) - 1}"
        + (f", {(program + 1) * block - rows} masked" if (program + 1) * block > rows else "")
        for program in range(fast.programs)
    )


def why_forward(
    simple: Triton, fast: Triton, rows: int, width: int, resources: Mapping[str, Resources], card: Card
) -> str:
    held = [card.programs_per_sm(resources[launch.key], launch.warps) for launch in (simple, fast)]
    loads = [
        programs * rows_at_once(launch) * min(width, int(launch.constants["BLOCK_N"])) * ITEMSIZE
        for programs, launch in zip(held, (simple, fast), strict=True)
    ]
    busy = [min(launch.programs, card.sms) for launch in (simple, fast)]
    return (
        f"With {rows} rows either leaves the card nearly empty: `triton_simple` has work for {busy[0]} of its "
        f"{card.sms} SMs, `triton` for {busy[1]}. With the thousands of a training step all have work, and memory is "
        "only busy if enough loads are under way at once. By registers and warps an SM holds "
        f"{held[0]} program(s) of `triton_simple`, which load {loads[0] / 1024:.0f} KiB, or {held[1]} of `triton`, "
        f"{loads[1] / 1024:.0f} KiB" + ("." if loads[1] > loads[0] else ": not what it gains by at this width.")
    )


def on_the_way(forward: Mapping[str, Counted]) -> str:
    lines = [
        [name, *map(str, (len(one.launches), len(one.intermediates), sum(one.intermediates), one.kept, one.moved))]
        for name, one in forward.items()
    ]
    header = ["forward", "kernels", "tensors made on the way", "their bytes", "kept for backward", "bytes moved"]
    return table(header, lines)


def why_backward(backward: Mapping[str, Counted], rows: int) -> str:
    """Its last kernel is `sum_parts`."""
    simple, fast = backward["triton_simple"], backward["triton"]
    kernels = [(launch.name, launch.triton, launch.moved) for launch in fast.launches if launch.triton]
    listed = "\n".join(
        f"* {name}: grid {kernel.grid} on {warps(kernel)}, {moved} bytes" for name, kernel, moved in kernels
    )
    parts = kernels[-1][1].constants["P"]
    return (
        "Backward, `triton_simple` has a program a row again. None of them sees another row, and dW is a sum over all: "
        f"PyTorch adds it up, which makes {len(simple.launches)} kernels and {simple.moved} bytes. `triton` takes "
        f"{len(kernels)} and {fast.moved} bytes:\n\n{listed}\n\n"
        f"Its programs walk over the rows and add up dW on the way, in registers; their {parts} parts, "
        f"{max(fast.intermediates)} bytes, are what the last kernel sums. There are as many of them for thousands of "
        f"rows as for these {rows}."
    )


def recorded(rows: int, width: int, direction: str) -> str:
    """A sentence; nothing where the width was not measured."""
    found = figures(rows, width)
    if found is None:
        return ""
    simple, fast = (found.passes[name][direction][1] for name in ("triton_simple", "triton"))
    at = f"recorded at {found.rows} x {found.width}"
    return f" What that is worth, {at}: `triton_simple` {simple:.2f} of the copy roof, `triton` {fast:.2f}."


def rows_at_once(launch: Triton) -> int:
    return int(launch.constants.get("BLOCK_M", 1))


def warps(launch: Triton) -> str:
    return f"{launch.warps} warp{'s' * (launch.warps > 1)} ({launch.warps * 32} threads)"


def index(row: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The row's place in the leading dimensions."""
    place = []
    for size in reversed(shape):
        row, rest = divmod(row, size)
        place.append(rest)
    return tuple(reversed(place))
