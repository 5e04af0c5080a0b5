"""A small tensor, program by program: who handles which row."""

import math
from collections.abc import Mapping

from minillm.explain.claims import ITEMSIZE, the_kernel
from minillm.explain.count import Counted, Triton

MOST_ROWS = 32


def walk(shape: tuple[int, ...], counted: Mapping[str, Mapping[str, Counted]]) -> str:
    """Of RMSNorm's forward in bf16; `counted`: name -> pass, of textbook, triton_simple and triton at this shape."""
    rows, width, row_bytes = math.prod(shape[:-1]), shape[-1], shape[-1] * ITEMSIZE
    forward = {name: counted[name]["forward"] for name in ("textbook", "triton_simple", "triton")}
    simple, fast = the_kernel(forward["triton_simple"].launches), the_kernel(forward["triton"].launches)
    size = " x ".join(map(str, shape))
    return "\n\n".join(
        [
            f"x ({size}) in bf16 is {rows} rows of {width} elements, {row_bytes} bytes each, one after the other in "
            "memory. A row needs nothing of another: rows are the units of work.",
            f"`textbook` runs operation by operation, each over all {rows} rows, and every one leaves a tensor:",
            "\n".join(
                f"{number}. {launch.name.removeprefix('aten::')}: {launch.outputs[0]}, {launch.moved} bytes moved"
                for number, launch in enumerate(forward["textbook"].launches, 1)
            ),
            f"`triton_simple` is launched over the grid {simple.grid}. The program with number i (`tl.program_id(0)`) "
            f"has row i, in a block of {simple.constants['BLOCK_N']} elements on {warps(simple)}; it loads the row, "
            f"squares, sums, scales in registers and stores it: {forward['triton_simple'].moved} bytes in all.",
            "\n".join(
                f"* program {row}: x[{', '.join(map(str, index(row, shape[:-1])))}], bytes {row * row_bytes} to "
                f"{(row + 1) * row_bytes - 1}"
                for row in range(rows)
            ),
            fast_form(fast, rows),
        ]
    )


def fast_form(fast: Triton, rows: int) -> str:
    block = int(fast.constants.get("BLOCK_M", 1))
    shared = (
        "\n".join(
            f"* program {program}: rows {program * block} to {min(rows, (program + 1) * block) - 1}"
            + (f", {(program + 1) * block - rows} masked" if (program + 1) * block > rows else "")
            for program in range(fast.programs)
        )
        if block > 1
        else "* one row a program here, too"
    )
    return (
        f"`triton` is launched over the grid {fast.grid}, {block} row(s) a program on {warps(fast)}:\n\n{shared}\n\n"
        "Not for these few rows, of which any form leaves the card nearly empty, but for the thousands of a training "
        "step: memory is only busy if enough loads are under way at once, and a thread with more elements has more of "
        "them. The weight is then read once for several rows, too. Backward, a fixed number of programs walks over all "
        "rows, each with its part of dW in registers, which one program a row could not add up."
    )


def warps(launch: Triton) -> str:
    return f"{launch.warps} warp{'s' * (launch.warps > 1)} ({launch.warps * 32} threads)"


def index(row: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The row's place in the leading dimensions."""
    place = []
    for size in reversed(shape):
        row, rest = divmod(row, size)
        place.append(rest)
    return tuple(reversed(place))
