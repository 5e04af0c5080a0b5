"""A text as it is, all of it, for evaluating: tokenized when asked for, neither split nor cached."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tokenizers import Tokenizer

from minillm.config import Config
from minillm.data.build import DOCUMENTS_AT_ONCE
from minillm.data.files import Repairs
from minillm.data.packing import Blocks
from minillm.data.sources import find_source
from minillm.data.tokenizer import encode, token_dtype, vocabulary_size
from minillm.errors import UserError


def whole_text(config: Config, tokenizer: Tokenizer) -> Blocks:
    """Blocks of all documents that `config.data` names. A text shorter than a block is one. Prints what was no UTF-8.

    Raises UserError for input that cannot be used, or without text.
    """
    import datasets  # half a second

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    end_token, repairs = config.tokenizer.end_token, Repairs()
    # As in training, the end token stands before the first document, too
    chunks = [np.array([tokenizer.token_to_id(end_token)], dtype=token_dtype(vocabulary_size(tokenizer)))]
    source = find_source(config.data)
    with TemporaryDirectory() as scratch:
        for batch in source.load(Path(scratch), repairs).iter(DOCUMENTS_AT_ONCE):
            if texts := [text for text in batch["text"] if text]:
                chunks.append(encode(tokenizer, texts, end_token))
    targets = sum(len(chunk) for chunk in chunks[1:])
    if not targets:
        raise UserError(f"data={config.data.name} has no text: there is nothing to evaluate")
    repairs.report()
    return Blocks(chunks, min(config.data.sequence_length, targets))
