"""The shapes of an operator whose cost is its traffic: at the memory's own speed, and those of a training step."""

from collections.abc import Iterable
from dataclasses import replace

from minillm.bench.config import DTYPES, BenchConfig
from minillm.bench.op import Case
from minillm.errors import UserError


def cases(config: BenchConfig, widths: Iterable[int], elements: int, real: Iterable[tuple[int, int]]) -> list[Case]:
    """What `config` asks for among (`elements` / width, width) of each width and the (rows, width) that are `real`.

    Of an operator whose result has its input's dtype. Raises UserError for the options that only rms_norm has.
    """
    foreign = [f"{name}=" for name in ("out_dtype", "residual") if name in config.model_fields_set]
    if foreign:
        raise UserError(f"op={config.op} takes no {' and no '.join(foreign)}: leave it out, or type op=rms_norm")
    dtype = DTYPES[config.dtype]
    shapes = [(config.rows or max(1, elements // width), width) for width in config.width or widths]
    at_the_roof = [Case(rows, width, dtype, dtype) for rows, width in shapes]
    if config.width or config.rows:
        return [replace(case, real=config.rows is not None) for case in at_the_roof]
    in_training = [Case(rows, width, dtype, dtype, real=True) for rows, width in real]
    return {"roof": at_the_roof, "real": in_training, "both": at_the_roof + in_training}[config.sizes]
