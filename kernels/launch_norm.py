"""Launch shapes of RMSNorm, chosen by width. A tile is BLOCK_M rows x (PIECES x BLOCK_N) columns.

The numbers behind the rungs: one H200, torch 2.11, triton 3.6, bf16, 2^28 elements a tensor; fractions of the copy
bandwidth (4.16 TB/s) measured in the same run.
"""

from dataclasses import dataclass, replace

from triton import next_power_of_2

from kernels.launch import Rows, interpreted_rows
from kernels.operator import INTERPRETED


@dataclass(frozen=True)
class Chunks:
    """A program reads its row twice in chunks; the second reading hits the caches."""

    block_n: int
    num_warps: int
    programs_per_sm: int | None = None  # None: one program a row

    def programs(self, M: int, sms: int) -> int:
        return M if self.programs_per_sm is None else min(M, self.programs_per_sm * sms)

    def constants(self) -> dict[str, int]:
        return {"BLOCK_N": self.block_n, "num_warps": self.num_warps}


@dataclass(frozen=True)
class PersistentRows:
    """A fixed number of programs, each walking over tiles of whole rows with its part of dW in registers."""

    block_m: int
    block_n: int
    pieces: int  # of block_n columns: a row of 768 is 3 x 256 exactly, where one block of 1024 would be 1/4 padding
    num_warps: int
    num_stages: int  # tiles in flight, in shared memory; 1: none
    programs_per_sm: int

    def programs(self, N: int, sms: int) -> int:
        """As many whatever the number of rows: the parts of dweight are then summed in the same order."""
        return self.programs_per_sm * sms

    def constants(self) -> dict[str, int]:
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "PIECES": self.pieces,
            "STAGES": self.num_stages,
            "num_warps": self.num_warps,
        }


@dataclass(frozen=True)
class Strips:
    """A kernel for the row statistics, then one in which a program owns a strip of columns of many rows."""

    statistics: Chunks
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int

    def programs(self, N: int, sms: int) -> int:
        """Of each strip: one program an SM in all."""
        return max(1, sms // -(-N // self.block_n))

    def constants(self) -> dict[str, int]:
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "STAGES": self.num_stages,
            "num_warps": self.num_warps,
        }


def forward(N: int, rows: int, fused_add: bool) -> Rows | Chunks:
    """Shape of the forward kernel for rows of N elements. `rows` matters in the interpreter only."""
    width = next_power_of_2(N)
    if INTERPRETED and width <= 16384:
        return Rows(interpreted_rows(N, rows), width, 4)
    if fused_add and width <= 4096:  # 16 elements a thread: 1024 1.02, 2048 1.02, 4096 .99
        return Rows(min(max(1, 2048 // width), 64), width, 4 if width <= 2048 else 8)
    if fused_add and width <= 16384:  # 8192 1.01, 16384 1.01; 16 warps .99
        return Rows(1, width, 32)
    if width <= 1024:  # 32 elements a thread: 512 1.00, 768 1.00, 1024 1.00; with 16, 512 .97 and 768 .92
        return Rows(min(2048 // width, 64), width, 2)
    if N < 4096:  # a row a program, by 4 warps: 2048 1.01, 3072 1.00; by 8, 3072 .95
        return Rows(1, width, 4)
    if N == 4096:  # a row in one tile .99
        return Chunks(2048, 8)  # 1.02
    if N < 8192:  # 5120 1.02; a row in one tile by 4 warps .98, by 8 1.00
        return Chunks(4096, 8)
    if N == 16384:  # 1.00; in chunks .96 to 1.00
        return Rows(1, width, 16)
    # Reading again beats holding: fewer registers, more rows in flight.
    if N < 16384:  # 8192 1.02
        return Chunks(8192, 16)
    if N <= 32768:  # 1.01; in chunks of 8192 the same within .2%, by 16 warps 1.00
        return Chunks(16384, 32)
    if N <= 65536:  # .95; two programs an SM .88: the rows in flight no longer fit in L2
        return Chunks(16384, 32, programs_per_sm=1)
    return Chunks(16384, 32, programs_per_sm=2)  # 131072 .78, 262144 .71; one program an SM .77, .70


def split(N: int) -> tuple[int, int]:
    """(block_n, pieces) of a row: three blocks where that pads less than one. 11008 is 3 x 4096, not 16384."""
    third = next_power_of_2((N + 2) // 3)
    return (third, 3) if third >= 128 and 3 * third < next_power_of_2(N) else (next_power_of_2(N), 1)


THREE_BLOCKS = {  # backward in 16 bits, by block_n; the fraction of the roof, and that of one padded block
    128: PersistentRows(32, 128, 3, 16, 1, 1),  # .99, .90
    256: PersistentRows(4, 256, 3, 4, 3, 2),  # .97, .86; at 32768 rows of 768 .67, where 16 rows by 16 warps take .60
    512: PersistentRows(2, 2048, 1, 4, 3, 2),  # the exception: three .92, one .94
    1024: PersistentRows(4, 1024, 3, 16, 3, 1),  # .98, .97 (.94 in bench.py)
    2048: PersistentRows(1, 2048, 3, 4, 3, 2),  # .96, .94
    4096: PersistentRows(1, 4096, 3, 8, 3, 1),  # .99, .95
}


def backward(N: int, rows: int, input_bytes: int, fused_add: bool, shared_memory: int) -> PersistentRows | Strips:
    """Shape of the backward kernel for rows of N elements.

    `input_bytes`: bytes that a column takes in the inputs (dy, x and, with fused_add, the stream's gradient), which
    wait in shared memory; a program may have `shared_memory` bytes. `rows` matters in the interpreter only.
    """
    if INTERPRETED and N <= 16384:
        return PersistentRows(interpreted_rows(N, rows), next_power_of_2(N), 1, 4, 1, 1)
    if INTERPRETED:
        return Strips(Chunks(16384, 4), interpreted_rows(16384, rows), 16384, 4, 1)
    block_n, pieces = split(N)
    width = next_power_of_2(N)
    narrow = input_bytes <= (6 if fused_add else 4)  # 16-bit inputs
    three = narrow and pieces == 3 and (N > 8192 or not fused_add)
    if N > 16384 or (fused_add and N > 8192 and not three):  # one tile of 16384 with the addition spills: .61
        # Statistics 1.08 + strips 1.02 of their own traffic would make .63 of one reading.
        if N <= 32768:  # .62; by the shape below .57
            return Strips(Chunks(4096, 8), 4, 2048, 8, 3)
        # 65536 .63; by the shape above .60
        return Strips(Chunks(8192, 16), 8, 1024, 8, 3) if N <= 131072 else Strips(Chunks(8192, 16), 4, 2048, 8, 3)
    if three:
        shape = THREE_BLOCKS[block_n]
    elif narrow and not fused_add and width == 256:  # .97
        shape = PersistentRows(16, width, 1, 4, 3, 2)
    elif narrow and not fused_add and width <= 128:  # 64 .97, 128 .96
        shape = PersistentRows(min(8192 // width, 128), width, 1, 8, 3, 2)
    else:
        # About 32 KiB of inputs a tile, two tiles ahead of the one in registers. bf16: 512 .99, 1024 1.00, 2048 1.00,
        # 4096 1.01, 8192 1.00, 16384 .98 (bench.py found .86); with the addition 512 to 8192 1.02; fp32 1.01; an fp32
        # stream .98.
        tile = 8192 if narrow else 4096
        shape = PersistentRows(max(1, min(tile // width, 128)), width, 1, 8, 3, 1)
    return fit(shape, input_bytes, shared_memory)


def sum_parts(parts: int, N: int) -> tuple[int, int]:
    """(parts, columns) of a tile of the kernel that sums the parts of dweight: all parts are loaded at once, since at
    real sizes it lasts as long as one load takes to arrive."""
    block_p = next_power_of_2(parts)
    return block_p, next_power_of_2(N) if INTERPRETED else max(16, 8192 // block_p)


def fit(shape: PersistentRows, input_bytes: int, shared_memory: int) -> PersistentRows:
    """No tiles in flight where they do not fit in shared memory; twice the programs hide the latency instead (8192 wide
    with an fp32 stream .99; one tile in flight is worse than none: .85)."""
    tiles = (shape.num_stages - 1) * shape.block_m * shape.block_n * shape.pieces * input_bytes
    scratch = 4096  # of reductions, and what the driver keeps
    if shape.programs_per_sm * (tiles + scratch) <= shared_memory:
        return shape
    return replace(shape, num_stages=1, programs_per_sm=2)
