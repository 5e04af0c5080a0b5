"""What is commonly said of the teaching example, beside what is counted or measured.

The example: RMSNorm of 2 x 3 x 512 in bf16, by the formula's operations (`textbook`), with fp32 inside (`eager`), as a
kernel of one program a row (`triton_simple`) and as a fast one (`triton`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.resources import Resources
from minillm.explain.card import Card
from minillm.explain.count import Counted, Launch, Triton
from minillm.explain.recorded import figures

NAMES = ("textbook", "eager", "triton_simple", "triton")
SHAPE = (2, 3, 512)
ROWS, WIDTH, ITEMSIZE = 6, 512, 2


@dataclass(frozen=True)
class Claim:
    """One sentence, what is found, and what to make of it: holds, loose, or wrong."""

    claim: str
    found: str
    verdict: str


def claims(counted: Mapping[str, Mapping[str, Counted]], resources: Mapping[str, Resources], card: Card) -> list[Claim]:
    """`counted`: name -> pass, of NAMES at SHAPE; `resources` of their Triton kernels."""
    forward = {name: counted[name]["forward"] for name in NAMES}
    simple, fast = (the_kernel(forward[name].launches) for name in ("triton_simple", "triton"))
    taken = resources[simple.key]
    elements = ROWS * WIDTH
    chain = [launch.name.removeprefix("aten::") for launch in forward["textbook"].launches]
    large = sum(round(launch.moved / elements / ITEMSIZE) for launch in forward["textbook"].launches)
    ours = forward["triton_simple"].moved
    saved, saved_fp32 = (1 - ours / forward[name].moved for name in ("textbook", "eager"))
    each = {name: forward[name].moved / elements for name in NAMES}
    middle, size = len(forward["textbook"].intermediates), sum(forward["textbook"].intermediates)
    flight = card.in_flight(simple.programs, taken, simple.warps)
    room = card.sms * card.programs_per_sm(taken, simple.warps)
    back = {name: len(counted[name]["backward"].launches) for name in NAMES}
    return [
        Claim(
            "PyTorch runs 3 kernels (some say 4)",
            f"{len(chain)}: {', '.join(chain)}; with fp32 inside {len(forward['eager'].launches)}",
            "loose: each operation is a kernel, the addition of eps and both products too",
        ),
        Claim(
            "Triton runs one kernel",
            f"forward 1; backward {back['triton_simple']} (triton_simple, PyTorch sums dW), {back['triton']} (triton), "
            f"against {back['textbook']} (textbook)",
            "holds forward",
        ),
        Claim(
            "The grid (6,) makes six thread blocks, each with a row of its own",
            f"triton_simple grid {simple.grid}, program i has row i; triton grid {fast.grid}, "
            f"{fast.constants.get('BLOCK_M', 1)} rows a program",
            "holds for the simple kernel",
        ),
        Claim(
            "The GPU's cores are organised into six groups, a part of them for each block",
            f"a block goes to an SM that has room and shares it: {flight} of {simple.programs} run at once on at most "
            f"{min(simple.programs, card.sms)} of {card.sms} SMs, which had room for {room}",
            "loose: cores are not divided among blocks, they work for whichever warp is ready",
        ),
        Claim(
            "1000 workers do a step together, or in six groups",
            f"{card.name}: {card.sms} SMs hold {card.sms * card.threads} threads; six blocks are "
            f"{simple.programs * simple.warps * 32} threads",
            "loose: six rows leave nearly all workers without work, in either form",
        ),
        Claim(
            "PyTorch makes intermediate tensors, Triton makes none",
            f"textbook {middle}, {size} bytes; triton_simple "
            f"{sum(forward['triton_simple'].intermediates)} bytes, one fp32 number a row",
            "holds, but for what backward needs",
        ),
        Claim(
            "Three quarters of the memory accesses are saved",
            f"{large} tensors against 2: {1 - 2 / large:.0%}; weight and statistics included {each['textbook']:.1f} "
            f"against {each['triton_simple']:.1f} bytes an element, {saved:.0%}; with fp32 inside {each['eager']:.1f}, "
            f"{saved_fp32:.0%}",
            "loose: a little less by the formula as written, and more as models compute it",
        ),
        Claim(
            "Between two kernels there are a global synchronisation and a trip to memory",
            f"{len(chain) - 1} boundaries against 0; over them {forward['textbook'].moved - ours} bytes more",
            "holds: kernels of a stream run one after the other; small tensors make the trip to L2 only",
        ),
        Claim(
            "Everything is computed in registers and L1",
            f"compiled for sm_{card.capability}: {taken.registers} registers a thread, {taken.stack} bytes spilled, "
            f"{taken.shared} bytes of shared memory",
            "holds",
        ),
        *measured_claims(),
    ]


def measured_claims() -> list[Claim]:
    """Those that only times can judge, by the recorded ones."""
    found = figures(ROWS, WIDTH)
    assert found is not None
    shares = {name: passes["forward"][1] for name, passes in found.passes.items()}
    own = 7 / 2 * shares["textbook"]
    at = f"recorded at {found.rows} x {found.width}"
    return [
        Claim(
            "No time is spent waiting for memory (latency hiding)",
            f"{at}: triton_simple {shares['triton_simple']:.2f} of the copy roof, triton {shares['triton']:.2f}, the "
            "same traffic",
            "loose: a program does wait for its loads; other warps work meanwhile, if enough bytes are in flight",
        ),
        Claim(
            "Faster because the same GPU is used better, not more of it",
            f"{at}: textbook {shares['textbook']:.2f} of the roof, and by all that it moves {own:.2f}; triton "
            f"{shares['triton']:.2f}",
            "holds",
        ),
        Claim(
            "On a par with expert CUDA code",
            f"{at}: triton {shares['triton']:.2f}, quack (CuTe) {shares['quack']:.2f}, PyTorch's own CUDA kernel "
            f"{shares['torch']:.2f}, torch.compile {shares['compiled']:.2f}",
            "holds here; the simple kernel alone would not show it",
        ),
    ]


def the_kernel(launches: list[Launch]) -> Triton:
    """The only Triton kernel among them."""
    (found,) = (launch.triton for launch in launches if launch.triton is not None)
    return found
