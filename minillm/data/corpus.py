"""The corpus: from what the config names to blocks of tokens, with the numbers that describe them."""

import hashlib
import json
import math
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from minillm.config import Config
from minillm.data.build import COUNTS, Rows, build_corpus, token_chunks
from minillm.data.cache import cached
from minillm.data.packing import Blocks, Tokens
from minillm.data.sources import find_source
from minillm.data.tokenizer import load_tokenizer, text_bytes, token_dtype, vocabulary_size
from minillm.errors import UserError, reading

FORMAT = 2  # of the cached files: count up when the same input gives other ones


@dataclass(frozen=True)
class Corpus:
    """Text, ready to train on.

    `info` holds plain values for a run's summary. Those that depend on text are None for synthetic tokens.
        hash                    of everything that determines the tokens
        source, sequence_length, vocab_size
        train_/val_documents, _bytes (of UTF-8), _tokens (one end token a document), _blocks,
                    _remainder (tokens after the last whole block)
        replaced_utf8           sequences of bytes that were no UTF-8
        validated_blocks        of val_blocks: a validation takes the first trainer.val_batches batches
        bytes_per_token         of their targets
        unigram_bits_per_byte   of the same targets, by the training tokens' frequencies alone
    """

    tokenizer: Tokenizer | None  # None: synthetic tokens
    vocab_size: int
    train: Blocks
    val: Blocks
    info: dict[str, Any]

    def bits_per_byte(self, nats_per_token: float) -> float | None:
        """A validation's mean loss, in bits per byte of the text of its targets: comparable between vocabularies."""
        ratio = self.info["bytes_per_token"]
        return None if ratio is None else nats_per_token / math.log(2) / ratio


def prepare_corpus(config: Config) -> Corpus:
    """The corpus that `config` describes, built or from the cache.

    Raises:
        UserError: input that cannot be used, fewer tokens than a block takes, or more token ids than the model has.
    """
    data = config.data
    if data.name == "synthetic":
        tokenizer, chunks, info, train_counts = _synthetic(config)
    else:
        tokenizer, chunks, info, train_counts = _from_text(config)
    vocab_size = info["vocab_size"]
    if config.model.vocab_size is not None and config.model.vocab_size < vocab_size:
        raise UserError(
            f"model.vocab_size={config.model.vocab_size} is smaller than the tokenizer's {vocab_size}; "
            f"raise it to {vocab_size} at least, or lower tokenizer.vocab_size"
        )
    train = Blocks(chunks["train"], data.sequence_length, data.train_blocks)
    val = Blocks(chunks["val"], data.sequence_length)
    if not len(train) or not len(val):
        counts = " and ".join(
            f"{info[f'{side}_tokens']} tokens of {info[f'{side}_documents'] or 'no'} documents for {purpose}"
            for side, purpose in (("train", "training"), ("val", "validation"))
        )
        raise UserError(
            f"data={data.name} is too small: {counts}, where a block takes data.sequence_length={data.sequence_length} "
            "on each side; give more text or lower data.sequence_length"
        )
    info |= {
        "source": data.name,
        "sequence_length": data.sequence_length,
        "train_blocks": len(train),
        "val_blocks": len(val),
        "train_remainder": train.remainder,
        "val_remainder": val.remainder,
        "validated_blocks": min(len(val), config.trainer.val_batches * config.batch.micro * config.trainer.devices),
    }
    if tokenizer is not None and train_counts is not None:
        info |= _of_text(tokenizer, val.targets(info["validated_blocks"]), train_counts)
    return Corpus(tokenizer, vocab_size, train, val, info)


def _synthetic(config: Config) -> tuple[None, dict[str, list[Tokens]], dict[str, Any], None]:
    """Uniform random tokens: nothing to learn, nothing to prepare. As `_from_text`, without what belongs to text."""
    data = config.data
    vocab_size = config.model.vocab_size or config.tokenizer.vocab_size
    generator = np.random.default_rng(config.seed)
    tokens = generator.integers(vocab_size, size=data.synthetic_tokens, dtype=token_dtype(vocab_size))
    val, train = np.split(tokens, [math.ceil(tokens.size * data.val_fraction)])
    unknown = ("replaced_utf8", "bytes_per_token", "unigram_bits_per_byte")
    info: dict[str, Any] = dict.fromkeys(unknown) | {"vocab_size": vocab_size}
    info["hash"] = _digest([vocab_size, config.seed, data.synthetic_tokens, data.val_fraction])
    for side, part in (("train", train), ("val", val)):
        info |= {f"{side}_documents": None, f"{side}_bytes": None, f"{side}_tokens": part.size}
    return None, {"train": [train], "val": [val]}, info, None


def _from_text(config: Config) -> tuple[Tokenizer, dict[str, list[Tokens]], dict[str, Any], Rows]:
    """Tokenizer, tokens of both sides, info, and the counts of each training token."""
    import datasets  # half a second

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    path, end_token = config.tokenizer.path, config.tokenizer.end_token
    given = None if path is None else load_tokenizer(Path(path).expanduser(), end_token)
    source = find_source(config.data)
    key = {
        "format": FORMAT,
        "tokenizers": version("tokenizers"),
        "content": source.digest,
        "val_fraction": config.data.val_fraction,
        "tokenizer": _digest(given.to_str()) if given else config.tokenizer.vocab_size,
        "end_token": end_token,
    }
    folder = cached(key, lambda folder: build_corpus(folder, source, given, config))
    tokenizer = load_tokenizer(folder / "tokenizer.json", end_token)
    # The end token before the first document makes that document's first token a target as well
    start = np.array([tokenizer.token_to_id(end_token)], dtype=token_dtype(vocabulary_size(tokenizer)))
    chunks: dict[str, list[Tokens]] = {
        side: [start, *token_chunks(folder / f"{side}.arrow")] for side in ("train", "val")
    }
    with reading(folder / "info.json", ValueError, instead=f"remove {folder}, it is built again"):
        info: dict[str, Any] = json.loads((folder / "info.json").read_text())
        train_counts: Rows = np.load(folder / COUNTS)
    return tokenizer, chunks, info | {"hash": folder.name}, train_counts


def _of_text(tokenizer: Tokenizer, targets: Rows, train_counts: Rows) -> dict[str, float | None]:
    """What `info` says of the text of these targets; nothing (None) of no targets."""
    if not targets.size:
        return {"bytes_per_token": None, "unigram_bits_per_byte": None}
    probability = (train_counts + 1) / (train_counts.sum() + train_counts.size)
    size = text_bytes(tokenizer, targets)
    bits = float(-np.log2(probability)[targets].sum())
    return {"bytes_per_token": size / targets.size, "unigram_bits_per_byte": bits / size}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
