"""What a card has, and how many programs of a kernel it runs at once."""

from dataclasses import dataclass
from typing import Any

import torch

from kernels.resources import Resources
from minillm.hardware import peak_flops


@dataclass(frozen=True)
class Card:
    """A GPU, as far as launches depend on it. None: not known."""

    name: str
    capability: int  # 90 for 9.0
    sms: int  # streaming multiprocessors
    registers: int  # an SM, of 32 bits
    threads: int  # an SM
    shared: int  # bytes of shared memory an SM
    shared_program: int  # bytes of it that one program may have
    l2: int | None  # bytes
    peak_flops: float | None  # dense bf16

    def programs_per_sm(self, resources: Resources, warps: int) -> int:
        """How many programs of `warps` warps share an SM. Registers are given to a warp by 256, as the CUDA occupancy
        calculator has it; shared memory costs a program 1 KiB more than it asks for; at most 32 programs."""
        by_registers = self.registers // (-(-32 * resources.registers // 256) * 256 * warps)
        by_shared = self.shared // (resources.shared + 1024)
        return min(by_registers, self.threads // (32 * warps), by_shared, 32)

    def in_flight(self, grid: int, resources: Resources, warps: int) -> int:
        """Programs of a grid that run at the same time."""
        return min(grid, self.sms * self.programs_per_sm(resources, warps))


# What launches are counted for where there is no GPU: the card of the recorded figures.
H200 = Card("NVIDIA H200", 90, 132, 65536, 2048, 228 * 1024, 227 * 1024, None, peak_flops("NVIDIA H200"))


def this_card() -> Card:
    """The current GPU."""
    properties: Any = torch.cuda.get_device_properties()  # the stubs lack some of its fields
    return Card(
        name=properties.name,
        capability=10 * properties.major + properties.minor,
        sms=properties.multi_processor_count,
        registers=properties.regs_per_multiprocessor,
        threads=properties.max_threads_per_multi_processor,
        shared=properties.shared_memory_per_multiprocessor,
        shared_program=properties.shared_memory_per_block_optin,
        l2=properties.L2_cache_size,
        peak_flops=peak_flops(properties.name),
    )
