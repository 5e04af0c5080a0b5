"""Launch shapes: which tile, how many warps, how many programs. Data, chosen by size; nothing is tuned at run time, so
that the same machine makes the same choice and the same bits. The norms' ladders are in `launch_norm.py`.

The numbers behind the choices: one H200, torch 2.11, triton 3.6, bf16; fractions of the copy bandwidth (4.16 TB/s)
measured in the same run.
"""

from dataclasses import dataclass

from triton import cdiv, next_power_of_2

from kernels.operator import INTERPRETED, alignment

INTERPRETED_TILE = 2**19  # elements; a program costs about a millisecond there, so each gets many rows


@dataclass(frozen=True)
class Rows:
    """One program a tile of rows: as wide as they are, or walking along them."""

    block_m: int
    block_n: int
    num_warps: int

    def programs(self, M: int, sms: int) -> int:
        return (M + self.block_m - 1) // self.block_m

    def constants(self) -> dict[str, int]:
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "num_warps": self.num_warps}


def interpreted_rows(N: int, rows: int) -> int:
    return max(1, min(next_power_of_2(rows), INTERPRETED_TILE // next_power_of_2(N)))


def elementwise(size: int) -> int:
    """Elements a program, 16 a thread of 4 warps, of a kernel that walks straight through memory."""
    return max(16, min(next_power_of_2(size), INTERPRETED_TILE if INTERPRETED else 2048))


LOGITS_BYTES = 384 * 2**20  # of one chunk: with 16384 x 2048 x 128256 in bf16 all extra memory stays below 1.5 GiB


def chunk_tokens(tokens: int, token_bytes: int) -> int:
    """Tokens of a chunk of linear_cross_entropy, whose logits take `token_bytes` each: as few chunks as LOGITS_BYTES
    allows, of one size but the last, in multiples of 128 (a matmul's tile)."""
    tiles = cdiv(tokens, 128)
    chunks = cdiv(tiles, max(1, LOGITS_BYTES // (128 * token_bytes)))
    return min(tokens, 128 * cdiv(tiles, chunks)) if tokens else 1


def cross_entropy(V: int, rows: int) -> Rows:
    """Shape of the kernel that walks along rows of V logits in blocks of block_n. `rows` matters in the interpreter.

    16 elements a thread, by eights. The wider the row, the more warps share it: fewer rows are in flight, and the
    second reading finds them in L2 (2 x 132 rows of 128256 in bf16 are 68 MB, half of which is still to be read again).
    """
    if INTERPRETED:
        block_n = max(8, min(next_power_of_2(V), 4096))
        return Rows(interpreted_rows(block_n, rows), block_n, 4)
    num_warps = 32 if V > 65536 else 16 if V > 16384 else 8
    return Rows(1, 512 * num_warps, num_warps)


@dataclass(frozen=True)
class Tile:
    """One program a tile of rows and columns, with nothing to carry from one to the next."""

    block_m: int
    block_n: int
    num_warps: int

    def programs(self, M: int, N: int) -> int:
        return cdiv(M, self.block_m) * cdiv(N, self.block_n)

    def constants(self) -> dict[str, int]:
        return {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "num_warps": self.num_warps}


def swiglu(M: int, N: int) -> Tile:
    """Shape of both SwiGLU kernels for M rows of N outputs, 16 of them a thread: forward .99 to 1.03, backward 1.00 to
    1.03, with h written anew .98 to 1.00; half and twice as many are within 1%. M matters in the interpreter only.
    """
    block_n = next_power_of_2(N) if INTERPRETED else min(next_power_of_2(N), 1024)
    return Tile(interpreted_rows(N, M) if INTERPRETED else min(2048 // block_n, 64), block_n, 4)


@dataclass(frozen=True)
class Heads:
    """One program a tile of heads of some tokens of one sequence."""

    block_t: int
    block_h: int
    block_d: int  # of half a head
    num_warps: int

    def programs(self, B: int, T: int, H: int, K: int) -> int:
        return B * cdiv(T, self.block_t) * (cdiv(H, self.block_h) + 2 * cdiv(K, self.block_h))

    def constants(self) -> dict[str, int]:
        return {"BLOCK_T": self.block_t, "BLOCK_H": self.block_h, "BLOCK_D": self.block_d, "num_warps": self.num_warps}


def rotary(T: int, H: int, K: int, D: int) -> Heads:
    """Shape of both rotary kernels: at least 16 pairs a thread of one warp. T matters in the interpreter only.

    32768 tokens of 12 + 24 heads of 64: .95 both ways, by two warps .95 and .94, half the pairs .78; 16384 of 32 + 16:
    forward .91, backward .90, by two warps .91 and .89.
    """
    block_d = next_power_of_2(D // 2)
    block_h = next_power_of_2(max(H, K)) if INTERPRETED else alignment(H, K)  # divides both: no tile is partly empty
    half = block_h * block_d
    block_t = interpreted_rows(half, T) if INTERPRETED else max(1, 512 // half)
    return Heads(block_t, block_h, block_d, 4 if INTERPRETED else 1)
