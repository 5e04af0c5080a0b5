"""Building a corpus: split by document, train the tokenizer, tokenize, store, count."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from minillm.config import Config
from minillm.data.files import Repairs
from minillm.data.packing import Tokens
from minillm.data.sources import Source
from minillm.data.tokenizer import encode, token_dtype, train_tokenizer, vocabulary_size
from minillm.errors import UserError, reading

if TYPE_CHECKING:
    from datasets import Dataset

PIECES_OF_ONE = 100  # documents that a text of a single one is cut into
COUNTS = "train_counts.npy"
DOCUMENTS_AT_ONCE = 256  # tokenized in parallel; all of them are in memory

Rows = npt.NDArray[np.int64]


def build_corpus(folder: Path, source: Source, given: Tokenizer | None, config: Config) -> None:
    """Write tokenizer.json, train.arrow, val.arrow (one column `token`), info.json, and the training tokens' counts."""
    repairs = Repairs()
    with TemporaryDirectory(dir=folder) as scratch:
        documents = _cut_single(source.load(Path(scratch), repairs))
        sides, sizes = _split(documents, config.data.val_fraction)
        texts = (batch["text"] for batch in documents.select(sides["train"]).iter(DOCUMENTS_AT_ONCE))
        tokenizer = given or train_tokenizer(texts, config.tokenizer.vocab_size, config.tokenizer.end_token)
        tokenizer.save(str(folder / "tokenizer.json"))
        for side, rows in sides.items():
            _store_tokens(documents.select(rows), tokenizer, config.tokenizer.end_token, folder / f"{side}.arrow")
    vocab_size = vocabulary_size(tokenizer)
    info: dict[str, Any] = {"vocab_size": vocab_size, "replaced_utf8": repairs.count}
    for side, rows in sides.items():
        info |= {f"{side}_documents": len(rows), f"{side}_bytes": int(sizes[rows].sum())}
        info[f"{side}_tokens"] = sum(len(chunk) for chunk in token_chunks(folder / f"{side}.arrow"))
    np.save(folder / COUNTS, _count_tokens(folder / "train.arrow", vocab_size))
    (folder / "info.json").write_text(json.dumps(info, indent=2))
    repairs.report()


def _cut_single(documents: "Dataset") -> "Dataset":
    """A text that is one document (a book in one file) as some hundred, cut at line ends: else it could not split."""
    import datasets

    if len(documents) != 1:
        return documents
    text = documents[0]["text"] or ""
    pieces, size, start, end = [], len(text) / PIECES_OF_ONE, 0, 0
    for line in text.splitlines(keepends=True):
        if end - start >= size:
            pieces.append(text[start:end])
            start = end
        end += len(line)
    pieces.append(text[start:])
    if len(pieces) > 1:
        print(f"data: one document, taken as {len(pieces)}, cut at line ends: training and validation get their own")
    return datasets.Dataset.from_dict({"text": pieces})


def _split(documents: "Dataset", val_fraction: float) -> tuple[dict[str, Rows], Rows]:
    """Rows for training and validation, and each document's bytes. Empty documents are in neither.

    A document's side depends on its text alone: equal documents are on one side, and new ones move no old one
    (but for a side that would be empty, which gets the nearest).
    """
    places: list[float] = []  # a hash of the text, uniform in [0, 1)
    sizes: list[int] = []
    for raw in _raw_texts(documents):
        places.append(int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big") / 2**64)
        sizes.append(len(raw))
    place, size = np.array(places), np.array(sizes, dtype=np.int64)
    filled = size > 0
    distinct = np.unique(place[filled])
    if distinct.size < 2:
        raise UserError(
            f"the text has {filled.sum()} documents, {distinct.size} of them different, but training and validation "
            "take at least one each; give more files (a .txt file is a document) or more lines (a .jsonl line is one)"
        )
    in_val = place <= np.clip(val_fraction, distinct[0], distinct[-2])
    return {"train": np.flatnonzero(filled & ~in_val), "val": np.flatnonzero(filled & in_val)}, size


def _raw_texts(documents: "Dataset") -> Iterator[bytes]:
    for batch in documents.iter(DOCUMENTS_AT_ONCE):
        for text in batch["text"]:
            yield (text or "").encode()


def _store_tokens(documents: "Dataset", tokenizer: Tokenizer, end_token: str, file: Path) -> None:
    import datasets

    documents.map(
        lambda texts: {"token": encode(tokenizer, texts, end_token)},
        input_columns="text",
        batched=True,
        batch_size=DOCUMENTS_AT_ONCE,
        remove_columns="text",
        features=datasets.Features({"token": datasets.Value(token_dtype(vocabulary_size(tokenizer)).name)}),
        cache_file_name=str(file),
        new_fingerprint=file.stem,  # else the tokenizer is pickled to hash it
        writer_batch_size=2**31 - 1,  # rows are tokens here: keep the chunks long
        desc=f"tokenizing for {file.stem}",
    )


def token_chunks(file: Path) -> list[Tokens]:
    """The stored tokens, memory-mapped: no copy until a block is read."""
    import datasets

    with reading(file, pa.ArrowException, instead=f"remove {file.parent}, it is built again"):
        return [chunk.to_numpy() for chunk in datasets.Dataset.from_file(str(file)).data.column("token").chunks]


def _count_tokens(file: Path, vocab_size: int) -> Rows:
    counts = np.zeros(vocab_size, dtype=np.int64)
    for chunk in token_chunks(file):
        counts += np.bincount(chunk, minlength=vocab_size)
    return counts
