"""The command line of the scripts that use a run: their own options, and values over the run's own configuration.

`key=value` throughout. An option's value is everything after the first `=`, byte for byte: it never reaches Hydra.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minillm.cli import in_sentences, taken
from minillm.compose import check, read, resumed
from minillm.config import Config
from minillm.errors import UserError
from minillm.folders import run_folder


class Options(BaseModel):
    """Options that every command has. The descriptions are the commands' help."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = Field(description="last, or a run's folder")


Own = TypeVar("Own", bound=Options)


def run_command(arguments: list[str], usage: str, kind: type[Own], act: Callable[[Own, list[str]], None]) -> int:
    """Read the options and act; returns the exit status: 0 done, 2 a mistake, told in sentences, 130 interrupted."""
    if not arguments or {"-h", "--help"} & set(arguments):
        fields = kind.model_fields.items()
        print(usage + "\n" + "\n".join(f"  {name + '=':<13}{field.description}" for name, field in fields))
        return 0

    def run() -> int:
        act(*split(arguments, kind))
        return 0

    return in_sentences(run)


def split(arguments: list[str], kind: type[Own]) -> tuple[Own, list[str]]:
    """The command's own options, and what else was typed. Raises UserError, a line for each that is wrong."""
    own, rest = taken(arguments, kind.model_fields)
    try:
        return kind.model_validate(own), rest
    except ValidationError as error:
        raise UserError("\n".join(sentence(detail) for detail in error.errors())) from error


def sentence(detail: Any) -> str:
    """One of pydantic's findings, as it concerns what was typed."""
    if not detail["loc"]:
        return str(detail["ctx"]["error"])
    key = str(detail["loc"][0])
    if detail["type"] == "missing":
        return f"{key}= is missing: type run=last" if key == "run" else f"{key}= is missing"
    return f"{key}={detail['input']}: {detail['msg'][0].lower()}{detail['msg'][1:]}"


def run_config(run: str, typed: list[str]) -> tuple[Config, Path]:
    """The configuration of a run with what was typed over it, and its folder."""
    folder = run_folder("run", run)
    for argument in typed:
        if argument.startswith(("resume=", "init_from=", "hydra.", "-")):
            raise UserError(f"{argument} is not for this command: leave it out")
    (config,) = check(resumed(read(typed), str(folder), "run"))
    return config, folder
