"""Documents in local files: which files are meant, a hash of what is in them, and their text one document at a time."""

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from minillm.errors import UserError, reading

KINDS = (".txt", ".jsonl", ".parquet")
INSTEAD = "mend that, or leave it out of data.files"


@dataclass
class Repairs:
    """Bytes that were no UTF-8 and became U+FFFD."""

    count: int = 0
    first: str | None = None  # where

    def decode(self, raw: bytes, place: str) -> str:
        """The text, repaired and counted where need be; `place` is where `raw` comes from."""
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            text = raw.decode(errors="replace")
            self.count += text.count("\ufffd") - raw.count("\ufffd".encode())  # less those that were in the text
            self.first = self.first or f"{place}, byte {error.start}"
            return text

    def report(self) -> None:
        """Print how many there were, if any."""
        if self.first:
            print(f"data: replaced {self.count} sequences of bytes that were not UTF-8, the first in {self.first}")


def stdlib_files() -> list[Path]:
    """The sources of the running Python's standard library, without its tests and without what was installed later."""
    root = sysconfig.get_paths()["stdlib"]
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    files = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = set(subfolders) - skipped
        # _sysconfigdata holds the paths of this installation, which are no business of the corpus
        files += [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith("_sysconfig")]
    if not files:
        raise UserError(f"data=stdlib: no Python sources in {root}; use data=text data.files=...")
    return sorted(file for file in files if file.stat().st_size)


def find_files(patterns: Sequence[str]) -> list[Path]:
    """The files that paths, globs and folders name, sorted, each once. A folder means all files of `KINDS` below it."""
    found: dict[Path, Path] = {}  # each file under one of its names: a link's own name tells the kind
    for pattern in patterns:
        path = Path(pattern).expanduser()
        with reading(path, instead=INSTEAD):
            if path.is_dir():
                matches = files_below(path)
            elif path.exists():  # before the glob: a name may have brackets in it
                matches = [path]
            else:
                matches = [Path(match) for match in glob.glob(str(path), recursive=True) if os.path.isfile(match)]
        if not matches:
            raise UserError(
                f"data.files={pattern} matches nothing in {Path.cwd()}; give {', '.join(KINDS)} files, globs or folders"
            )
        for match in matches:
            found.setdefault(match.resolve(), match.absolute())
    for file in sorted(found.values()):
        if file.suffix.lower() not in KINDS:
            raise UserError(f"{file} is of a kind that cannot be read; data.files takes {', '.join(KINDS)}")
    return sorted(found.values())


def files_below(folder: Path) -> list[Path]:
    """The files of `KINDS` in it and in all folders below; none that cannot be looked into is passed over."""
    found = []
    for place, _, names in os.walk(folder, onerror=refuse):
        found += [file for name in names if (file := Path(place, name)).suffix.lower() in KINDS and file.is_file()]
    return found


def refuse(error: OSError) -> None:
    """What os.walk would pass over without a word."""
    raise error


def digest_files(files: Sequence[Path]) -> str:
    """A hash of the files' content in their order, whatever their names and places.

    Raises:
        UserError: a file is empty, unreadable, or binary where it should be text.
    """
    total = hashlib.sha256()
    for file in files:
        content, size = hashlib.sha256(), 0
        with reading(file, instead=INSTEAD), file.open("rb") as stream:
            while piece := stream.read(1 << 20):
                if file.suffix.lower() != ".parquet" and b"\0" in piece:
                    offset = size + piece.index(b"\0")
                    raise UserError(f"{file} is binary (a zero byte at byte {offset}); give UTF-8 text")
                content.update(piece)
                size += len(piece)
        if not size:
            raise UserError(f"{file} is empty; leave it out of data.files or fill it")
        total.update(file.suffix.lower().encode() + content.digest())
    return total.hexdigest()


def read_documents(files: Sequence[Path], column: str, repairs: Repairs) -> Iterator[str]:
    """Each document's text, as it stands in its file; `column` is the text's name in jsonl and parquet."""
    for file in files:
        with reading(file, pa.ArrowException, instead=INSTEAD):
            match file.suffix.lower():
                case ".jsonl":
                    yield from _read_jsonl(file, column, repairs)
                case ".parquet":
                    yield from _read_parquet(file, column, repairs)
                case _:  # .txt, and Python sources: one document
                    yield repairs.decode(file.read_bytes(), str(file))


def _read_jsonl(file: Path, column: str, repairs: Repairs) -> Iterator[str]:
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            if not raw.strip():
                continue
            line = repairs.decode(raw, f"{file} line {number}")
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{file} line {number} is not JSON ({error}); give one object a line") from error
            if not isinstance(row, dict):
                raise UserError(f"{file} line {number} is not a JSON object; give one object a line")
            _require(column, list(row), f"{file} line {number}")
            text = row[column]
            if not isinstance(text, str | None):
                raise UserError(f"{file} line {number}: {column!r} is not text; set data.text_column")
            # An escaped half of a surrogate pair is JSON, but no text
            encoded = (text or "").encode("utf-8", "surrogatepass")
            yield repairs.decode(encoded, f"{file} line {number}, {column!r}")


def _read_parquet(file: Path, column: str, repairs: Repairs) -> Iterator[str]:
    parquet = pa.parquet.ParquetFile(file, page_checksum_verification=True)
    schema = parquet.schema_arrow
    _require(column, schema.names, str(file))
    if schema.field(column).type not in (pa.string(), pa.large_string()):
        raise UserError(f"{file}: column {column!r} is {schema.field(column).type}, not text; set data.text_column")
    number = 0
    for batch in parquet.iter_batches(batch_size=1000, columns=[column]):
        for raw in batch.column(0).cast(pa.large_binary()).to_pylist():
            yield repairs.decode(raw or b"", f"{file} row {number}")
            number += 1


def _require(column: str, columns: list[str], where: str) -> None:
    if column not in columns:
        raise UserError(f"{where} has no column {column!r} but {columns}; set data.text_column")
