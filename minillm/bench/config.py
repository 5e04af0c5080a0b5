"""The benchmark's command line: `key=value` and `key=v1,v2` as types, everything that is wrong reported together.

(Hydra refuses a list with commas outside a sweep, and a benchmark is made of lists: hence these few lines.)
"""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from minillm.errors import UserError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Dtype = Literal["bf16", "fp16", "fp32"]
MAX_WIDTH = 262_144
Options = TypeVar("Options", bound=BaseModel)


def commas(value: object) -> object:
    return tuple(dict.fromkeys(value.split(","))) if isinstance(value, str) else value


Count = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]
Strings = Annotated[tuple[str, ...], BeforeValidator(commas)]
Counts = Annotated[tuple[Count, ...], BeforeValidator(commas)]
Widths = Annotated[tuple[Width, ...], BeforeValidator(commas)]


class BenchConfig(BaseModel):
    """What is measured. The descriptions are the command's help."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: str = Field(
        description="rms_norm, rotary, swiglu or linear_cross_entropy; step has options of its own",
        examples=["rms_norm"],
    )
    impl: Strings = Field((), description="names, or package.module:name of your own; all of them unless given")
    width: Widths = Field((), description="elements a row (of a loss: its vocabulary); those of models unless given")
    rows: Count | None = Field(None, description="rows; as many as make 2^28 elements unless given")
    sizes: Literal["roof", "real", "both"] = Field(
        "both", description="roof: 2^28 elements, the memory's own speed; real: a training step's; or both"
    )
    dtype: Dtype = Field(
        "bf16", description="of x (of the stream, with residual=true) and of the weight: bf16, fp16, fp32"
    )
    out_dtype: Dtype | None = Field(
        None, description="of the result (and of x, with residual=true); dtype unless given"
    )
    residual: bool = Field(False, description="true: add to the residual stream and normalise it")
    direction: Literal["forward", "backward", "both"] = Field(
        "both", validation_alias=AliasChoices("pass", "direction"), description="forward, backward or both"
    )
    check: bool = Field(False, description="true: conformance checks instead of timing; fails if one of them does")
    block: Counts = Field((), description="impl=triton_simple: elements of a row that a program holds, swept by hand")
    num_warps: Counts = Field((), description="impl=triton_simple: warps a program, swept by hand")
    out: Path | None = Field(
        None,
        validation_alias=AliasChoices("out", "hydra.run.dir"),
        description="folder for bench.json, bench.md and bench.png; runs/<date>/<time>_bench_<op> unless given",
    )

    @model_validator(mode="after")
    def combinations(self) -> "BenchConfig":
        if (self.block or self.num_warps) and self.impl != ("triton_simple",):
            raise ValueError("block= and num_warps= sweep the tile of triton_simple: add impl=triton_simple")
        if (self.width or self.rows) and "sizes" in self.model_fields_set:
            raise ValueError("sizes= is a choice of shapes, and so are width= and rows=: give one or the other")
        return self

    @property
    def passes(self) -> tuple[str, ...]:
        return ("forward", "backward", "forward+backward") if self.direction == "both" else (self.direction,)


def key_of(name: str) -> str:
    """A field's name as it is typed."""
    return "pass" if name == "direction" else name


def parse(arguments: list[str]) -> BenchConfig:
    """`["op=rms_norm", "width=512,768"]` as a BenchConfig."""
    return read(arguments, BenchConfig)


def read(arguments: list[str], options: type[Options]) -> Options:
    """`key=value` arguments as options. Raises UserError, one line for each thing that is wrong."""
    values: dict[str, Any] = {}
    problems = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not value:
            problems.append(f"{argument} is no key=value: type, for example, impl=eager,torch")
        elif key in values:
            problems.append(f"{key}= is given twice: give it once, with commas if it takes a list")
        else:
            values[key] = value
    try:
        config = options.model_validate(values)
    except ValidationError as error:
        problems += [sentence(detail, options) for detail in error.errors()]
    if problems:
        raise UserError("\n".join(problems))
    return config


def sentence(detail: Any, options: type[BaseModel]) -> str:
    """One of pydantic's findings, as it concerns what was typed."""
    key = str(detail["loc"][0]) if detail["loc"] else ""
    if detail["type"] == "extra_forbidden":
        return f"{key}= is no option: choose among {', '.join(key_of(name) for name in options.model_fields)}"
    if detail["type"] == "missing":
        example = options.model_fields[key].examples
        return f"{key}= is missing: type {key}={example[0] if example else 'VALUE'}"
    if not key:
        return str(detail["ctx"]["error"])
    message = detail["msg"][0].lower() + detail["msg"][1:]
    return f"{key}={detail['input']}: {message}"


def usage(options: type[BaseModel]) -> str:
    """The options, a line each."""
    fields = options.model_fields.items()
    return "\n".join(f"  {key_of(name) + '=':<12}{field.description}" for name, field in fields)
