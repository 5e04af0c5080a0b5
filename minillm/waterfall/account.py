"""What a step's time is made of: its floor, the traffic that can be counted, and the rest, which is waste."""

from collections.abc import Mapping
from dataclasses import dataclass

from minillm.waterfall.parts import FLOOR, UNATTRIBUTED


@dataclass(frozen=True)
class Account:
    """Milliseconds a step. `traffic` is None where the roof is not known, `idle` where nothing was seen of it."""

    floor: float  # the step's own matmul, attention and optimizer kernels
    other: float  # all other kernels
    traffic: float | None  # what those would take if they moved the countable bytes at the copy roof
    idle: float | None  # the device has nothing to do
    unattributed: float  # part of the kernels' time that no line is known for, in [0, 1]

    @property
    def over_traffic(self) -> float | None:
        """`other` as a multiple of `traffic`."""
        return None if self.traffic is None else self.other / self.traffic

    @property
    def waste(self) -> float | None:
        """What is neither floor nor traffic."""
        return None if self.traffic is None else self.other - self.traffic + (self.idle or 0.0)


def account(
    parts: Mapping[str, float], traffic_bytes: int, roof_gb_per_second: float | None, idle_ms: float | None
) -> Account:
    """Of the lines of `parts.by_part`, ms a step, that hold some time."""
    kernels = sum(parts.values())
    floor = sum(ms for part, ms in parts.items() if part in FLOOR)
    return Account(
        floor=floor,
        other=kernels - floor,
        traffic=None if roof_gb_per_second is None else traffic_bytes / roof_gb_per_second / 1e6,
        idle=idle_ms,
        unattributed=parts.get(UNATTRIBUTED, 0.0) / kernels,
    )
