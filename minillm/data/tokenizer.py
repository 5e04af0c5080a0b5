"""Byte-level BPE: trained on the corpus or loaded, and documents turned into one run of tokens."""

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from minillm.config import END_TOKEN
from minillm.data.packing import Tokens
from minillm.errors import UserError

DECODED_AT_ONCE = 2**20  # tokens


def train_tokenizer(texts: Iterable[Sequence[str]], vocab_size: int, end_token: str = END_TOKEN) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens (fewer when the text has no more pairs to merge).

    All 256 bytes and the end token are in the vocabulary, so that decoding gives back any text exactly.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[end_token],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(path: Path, end_token: str = END_TOKEN) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, set to take text as it is.

    Raises:
        UserError: no such file, another format, or an end token that is missing or that text could forge.
    """
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"tokenizer.path={path} cannot be read ({error.strerror}); give the path of a tokenizer.json, "
            "or tokenizer.path=null to train one"
        ) from error
    except Exception as error:  # tokenizers raises nothing narrower for a file of another format
        raise UserError(
            f"tokenizer.path={path} is not a tokenizer.json of the tokenizers library ({error}); "
            "give one, or tokenizer.path=null to train one"
        ) from error
    tokenizer.no_truncation()  # published files carry the length of their model's context
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # not stored in the file
    end = tokenizer.token_to_id(end_token)
    if end is None or end in tokenizer.encode(end_token, add_special_tokens=False).ids:
        raise UserError(
            f"tokenizer.path={path} has no special token {end_token!r}, which separates documents; name the one that "
            "does in tokenizer.end_token=, or use tokenizer.path=null to train a tokenizer"
        )
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest token id (a published vocabulary may have gaps)."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds every token id: uint16 or uint32."""
    return np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)


def encode(tokenizer: Tokenizer, texts: list[str], end_token: str = END_TOKEN) -> Tokens:
    """The tokens of all texts in a row, the end token after each. A text that spells the end token stays text."""
    # Stated, so that tokenizers does not warn when the data loader's workers fork: they never encode.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    tokenizer.encode_special_tokens = True
    end, dtype = tokenizer.token_to_id(end_token), token_dtype(vocabulary_size(tokenizer))
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return np.concatenate([np.array([*encoding.ids, end], dtype=dtype) for encoding in encodings])


def text_bytes(tokenizer: Tokenizer, tokens: npt.NDArray[np.int64]) -> int:
    """Bytes (of UTF-8) of the text of consecutive tokens (n,), special tokens left out. A character that begins or ends
    outside counts as three."""
    pieces = (tokens[start : start + DECODED_AT_ONCE] for start in range(0, len(tokens), DECODED_AT_ONCE))
    return sum(len(tokenizer.decode(piece.tolist()).encode()) for piece in pieces)
