"""Where documents come from: each source knows a hash of its content before any text is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.config import DataConfig
from minillm.data.files import Repairs, digest_files, find_files, read_documents, stdlib_files
from minillm.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Source:
    """Documents that are read only when nothing cached answers to their hash."""

    digest: str
    load: Callable[[Path, Repairs], "Dataset"]  # (scratch folder, ...) -> a data set with the one column `text`


def find_source(data: DataConfig) -> Source:
    """The source that `data.name` and its settings mean.

    Raises:
        UserError: files, data set or column that are missing or cannot be used.
    """
    if data.name == "hub":
        from minillm.data.hub import load_hub_documents  # slow to import

        documents = load_hub_documents(data)
        # The library's own name for this content: it has the data set's revision and the split in it
        return Source(documents._fingerprint, lambda scratch, repairs: documents)
    files = stdlib_files() if data.name == "stdlib" else find_files(data.files)
    digest = f"{digest_files(files)}-{data.text_column}"
    return Source(digest, partial(_load_files, files, data.text_column))


def _load_files(files: list[Path], column: str, scratch: Path, repairs: Repairs) -> "Dataset":
    import datasets

    def rows() -> Iterator[dict[str, str]]:
        empty = True
        for text in read_documents(files, column, repairs):
            empty = False
            yield {"text": text}
        if empty:
            raise UserError("data.files has no documents: there is no line or row in it")

    features = datasets.Features({"text": datasets.Value("large_string")})
    try:
        return datasets.Dataset.from_generator(rows, features=features, cache_dir=str(scratch))
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError | OSError):  # a full disk is the latter
            raise error.__cause__ from None
        raise
