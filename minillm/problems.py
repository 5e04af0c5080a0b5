"""What is wrong with a configuration, in sentences: what was given and what is possible, everything at once."""

import json
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from minillm.combinations import impossible
from minillm.config import LAYERS, Config
from minillm.errors import UserError


def validate(values: dict[str, Any]) -> Config:
    """The typed configuration. Raises UserError with one line a problem, combinations of valid sections included."""
    problems, wrong = [], set()
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems = [sentence(detail) for detail in error.errors()]
        wrong = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
    right = {name: section for name, section in section_types() if name in values and name not in wrong}
    problems += impossible({name: section.model_validate(values[name]) for name, section in right.items()})
    if problems:
        raise UserError("\n".join(problems))
    return config


def misnamed(config: Config, chosen: Iterable[str]) -> Iterator[str]:
    """A sentence for each choice of an implementation (`norm=triton`) that another value typed beside it has undone."""
    for text in chosen:
        layer, _, name = text.partition("=")
        if layer in LAYERS and name != "custom" and (ran := getattr(config, layer).name) != name:
            yield f"{text} would run {ran}, by what is typed beside it: leave one of them out"


def section_types() -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections of Config and their types."""
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def known_values() -> dict[str, FieldInfo]:
    """Every value of a configuration by its dotted key."""
    sections = dict(section_types())
    keys = {name: field for name, field in Config.model_fields.items() if name not in sections}
    for name, section in sections.items():
        keys |= {f"{name}.{key}": field for key, field in section.model_fields.items()}
    return keys


def sentence(detail: ErrorDetails) -> str:
    """One of pydantic's errors, as a line."""
    key = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "missing":
            field = known_values().get(key)
            return f"{key} has no value: type {key}={field.examples[0] if field and field.examples else 'VALUE'}"
        case "extra_forbidden":
            return unknown(key)
        case "value_error":  # a validator of ours: its sentence is whole unless it is about one value
            reason = str(detail["ctx"]["error"])
            return f"{key}={shown(detail['input'])} {reason}" if key in known_values() else reason
    must_be = detail["msg"].replace("Input should", "must")
    nullable = key in known_values() and type(None) in get_args(known_values()[key].annotation)
    return f"{key}={shown(detail['input'])} {must_be}" + (" or null" if nullable else "")


def shown(value: Any) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def unknown(key: str) -> str:
    """An unknown key, with the one that was probably meant."""
    section, _, name = key.rpartition(".")
    known = [k for k in (*Config.model_fields, "layers", "experiment", "debug", *known_values()) if k != key]
    beside = [k for k in known if k.rpartition(".")[0] == section]
    by_name: dict[str, str] = {}
    for k in (*beside, *known):
        by_name.setdefault(k.rpartition(".")[2], k)
    near = nearest(name, [k.rpartition(".")[2] for k in beside]) or nearest(name, by_name)
    if near:
        return f"{key} is unknown: did you mean {by_name[near]}?"
    if section in Config.model_fields:
        return f"{key} is unknown: {section} has {', '.join(k.rpartition('.')[2] for k in beside)}"
    return f"{key} is unknown: the sections are {', '.join(Config.model_fields)}"


def nearest(typed: str, possible: Iterable[str]) -> str | None:
    """What was probably meant, None where nothing possible (all in small letters) resembles what was typed."""
    return next(iter(get_close_matches(typed.lower(), possible, n=1)), None)


def did_you_mean(before: str, typed: str, possible: Iterable[str]) -> str:
    """The end of a sentence that lists what is possible: `; did you mean norm=triton?`, or nothing. `before`: norm="""
    near = nearest(typed, possible)
    return f"; did you mean {before}{near}?" if near else ""
