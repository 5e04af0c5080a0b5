"""Figures that a GPU gave before, for machines without one: the table of bench.py op=rms_norm in docs/recorded."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from minillm.explain.subjects import Subject

FILE = Path(__file__).parents[2] / "docs/recorded/rms_norm_h200.json"
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Figures:
    """Of one shape. name -> pass -> (ms, fraction of the copy roof)."""

    rows: int
    width: int
    passes: dict[str, dict[str, tuple[float, float]]]


@cache
def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def source() -> str:
    """What the figures are, for people."""
    env = table()["env"]
    return (
        f"recorded: `{table()['command']}` on one {env['device']}, torch {env['torch']}, triton {env['triton']}, copy "
        f"roof {table()['gb_per_second']:.0f} GB/s"
    )


def figures(rows: int, width: int) -> Figures | None:
    """At that shape; else at this width with the most rows; None where the width was not measured."""
    there = sorted({row["rows"] for row in table()["rows"] if row["width"] == width})
    if not there:
        return None
    taken = rows if rows in there else there[-1]
    return Figures(
        taken,
        width,
        {
            row["name"]: {direction: tuple(row[direction]) for direction in ("forward", "backward")}
            for row in table()["rows"]
            if (row["rows"], row["width"]) == (taken, width)
        },
    )


def of(subject: Subject) -> Figures | None:
    """What is recorded of a subject: of norms in bf16, without the addition."""
    plain = subject.layer == "norm" and not subject.adds and subject.dtype == DTYPE
    return figures(subject.rows, subject.shape[-1]) if plain else None
