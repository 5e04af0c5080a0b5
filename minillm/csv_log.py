"""`metrics.csv`: what every run logs, and a resumed run goes on with."""

import csv
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from minillm.errors import UserError, reading
from minillm.whole import whole_file

KEYS = (
    "train/loss", "train/grad_norm", "train/lr", "val/loss", "val/bits_per_byte",
    "perf/tokens_per_sec", "perf/step_ms", "perf/mfu", "perf/data_wait_ms",
    "memory/peak_allocated_gib", "memory/peak_reserved_gib", "tokens",
)  # fmt: skip
LOG = "metrics.csv"


class CSVLog(Logger):
    """`metrics.csv`: one row a logged step, one column a key, an empty cell where a thing was not measured.

    What is logged of one step in several calls is one row: the last row is written over while its step goes on. A
    resumed run goes on in the file, cut back to the rows of steps that it will not take again.
    """

    def __init__(self, path: Path, start_step: int) -> None:
        super().__init__()
        rows = whole_rows(path) if start_step else []
        if start_step and not path.exists():
            print(f"warning: {path} is gone: only the rows after step {start_step} will be there", file=sys.stderr)
        self.kept = [row for row in rows if int(row["step"]) <= start_step]
        with whole_file(path) as file:
            writer = csv.DictWriter(file, ("step", *KEYS))
            writer.writeheader()
            writer.writerows(self.kept)
        self.file = path.open("r+", newline="", encoding="utf-8")
        self.file.seek(0, os.SEEK_END)
        self.writer = csv.DictWriter(self.file, ("step", *KEYS))
        self.row: dict[str, Any] = {}
        self.row_at = self.file.tell()

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.row.get("step") == step:
            self.file.seek(self.row_at)
            self.file.truncate()
        else:
            self.row, self.row_at = {"step": step}, self.file.tell()
        self.row |= metrics
        self.writer.writerow(self.row)
        self.file.flush()

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run's folder has its config.yaml."""

    def finalize(self, status: str) -> None:
        self.file.close()


def whole_rows(path: Path) -> list[dict[str, str]]:
    """The rows that `CSVLog` has written to the end: what was cut off in the middle of a line is not one.

    Raises UserError, naming the line, for a file that is not as it was written.
    """
    with reading(path, instead="get the permission, or move it away"):
        if not path.exists():
            return []
        *lines, _ = path.read_bytes().split(b"\n")
    rows: list[dict[str, str]] = []
    for number, line in enumerate(lines or [b""], 1):  # it is never without its header
        cells = line.decode(errors="replace").removesuffix("\r").split(",")  # numbers: nothing is quoted
        if number == 1:
            names, wrong = cells, cells[0] != "step" or not {*cells[1:]} <= {*KEYS}
        else:
            rows.append(dict(zip(names, cells, strict=False)))
            numbers = cells[0].isdecimal() and all(map(is_number, filter(None, cells)))
            wrong = len(cells) != len(names) or not numbers
        if wrong:
            raise UserError(f"{path}, line {number}, is no line of a run's log: mend it, or move the file away")
    return rows


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
