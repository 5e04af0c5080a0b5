"""A comparison's folder: comparison.json (results, and the raw measurement to go on from), its .md and .html, and a
folder for each worker."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from minillm.compare.records import Measurement
from minillm.compare.report.page import page
from minillm.compare.report.tables import Result, markdown
from minillm.compare.results import summarize
from minillm.errors import UserError, reading
from minillm.summary import finite
from minillm.whole import whole_file

NAME = "comparison.json"
Content = TypeVar("Content", bound=BaseModel)


class Kept(BaseModel):
    """What is read again of comparison.json. None: it compares finished runs."""

    measurement: Measurement | None


def write(folder: Path, measurement: Measurement, status: str) -> dict[str, Any]:
    """All three; returns the results."""
    result: dict[str, Any] = plain(summarize(measurement, status))
    save(folder, result, json.loads(measurement.model_dump_json()))
    return result


def save(folder: Path, result: Result, measurement: dict[str, Any] | None = None) -> None:
    """Each file is the old one or the new one at any moment. Without a measurement there is none to go on with."""
    content = {**result, "measurement": measurement}
    texts = {
        NAME: json.dumps(content, indent=1, allow_nan=False) + "\n",
        "comparison.md": markdown(result),
        "comparison.html": page(result),
    }
    for name, text in texts.items():
        with whole_file(folder / name) as file:
            file.write(text)


def read(folder: Path) -> Measurement:
    """What was measured so far. Raises UserError where that is not to be had."""
    measurement = read_as(
        Kept, folder / NAME, instead="type the folder of a comparison, or start a new one"
    ).measurement
    if measurement is None:
        raise UserError(f"compare.resume={folder}: it compares finished runs, there is nothing to go on with")
    return measurement


def read_as(kind: type[Content], path: Path, instead: str) -> Content:
    """A JSON file's content. Raises UserError, with what to do instead, for one that cannot be read or has another."""
    with reading(path, instead=instead):
        content = path.read_bytes()
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        found = error.errors()[0]
        what = ": ".join(filter(None, (".".join(map(str, found["loc"])), found["msg"])))
        raise UserError(f"{path} is not as this version of minillm writes it ({what}): {instead}") from error


def workers(folder: Path, start: str) -> Path:
    """Where those that started together (round_0, ..., rounding) leave log and metrics, each in its number's folder."""
    return folder / "workers" / start


def plain(value: Any) -> Any:
    """With null for nan and infinity, which JSON lacks."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return finite(value)
