"""What was typed, made into a layer, its implementations, and the shape that they are looked at.

`norm=textbook,eager,triton` names the layer and the implementations; all else is as train.py has it: model=110m,
experiment=norm_110m, batch.micro=8.
"""

import re
from dataclasses import dataclass

import torch

from minillm import compose
from minillm.cli import taken
from minillm.compare.plan import custom_norm
from minillm.config import LAYERS, Config
from minillm.errors import UserError
from minillm.problems import misnamed

EXAMPLE = "norm=textbook,eager,triton_simple,triton"
DTYPES = {"32-true": torch.float32, "16-mixed": torch.float16}


@dataclass(frozen=True)
class Plan:
    """What will be explained."""

    layer: str
    configs: dict[str, Config]  # by the implementation's name, the baseline first
    shape: tuple[int, ...] | None  # None: the model's

    @property
    def names(self) -> list[str]:
        return list(self.configs)

    @property
    def config(self) -> Config:
        """The baseline's: all have the same shapes."""
        return next(iter(self.configs.values()))

    @property
    def dtype(self) -> torch.dtype:
        """Of activations at this precision; `auto` is what a GPU would take."""
        return DTYPES.get(self.config.trainer.precision, torch.bfloat16)


def make_plan(typed: list[str]) -> Plan:
    """Raises UserError with one line for each thing that is wrong."""
    own, rest = taken(typed, ("shape",))
    layers = {text: text.partition("=")[0] for text in rest if text.partition("=")[0] in LAYERS}
    lists = [text for text in layers if "," in text] or list(layers)
    if len(lists) != 1:
        said = f"{' '.join(lists)}: one layer is explained at a time" if lists else "nothing to explain"
        raise UserError(f"{said}: type one of {', '.join(LAYERS)} with its implementations, for example {EXAMPLE}")
    (chosen,) = lists
    others = [text for text in rest if text != chosen]
    problems = [
        f"{text} has several values: choose one; only {layers[chosen]}= takes a list" for text in several(others)
    ]
    shape = None
    try:
        shape = read_shape(own["shape"]) if own else None
    except UserError as error:
        problems.append(str(error))
    layer, _, names = chosen.partition("=")
    configs = {}
    for name in dict.fromkeys(names.split(",")):
        overrides = custom_norm(name) if layer == "norm" else [f"{layer}={name}"]
        try:
            (configs[name],) = compose.check(compose.read([*others, *overrides]))
        except UserError as error:
            problems += str(error).splitlines()
        else:
            problems += misnamed(configs[name], overrides)
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return Plan(layer, configs, shape)


def several(typed: list[str]) -> list[str]:
    """Those that hold a list of values."""
    return [t for t in typed if "=" in t and compose.parsed(compose.normalized(t, multirun=True)).is_sweep_override()]


def read_shape(text: str) -> tuple[int, ...]:
    """`2x3x512` as (2, 3, 512)."""
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8})+", text):
        raise UserError(
            f"shape={text} is no shape: type the sizes of a tensor of at least two dimensions, the last one the width, "
            "with x between them, for example shape=2x3x512"
        )
    return tuple(map(int, text.split("x")))
