"""Text to batches: sources -> documents -> tokenizer -> a flat stream of tokens -> blocks -> optimizer steps."""

from minillm.config import END_TOKEN
from minillm.data.corpus import Corpus, prepare_corpus
from minillm.data.datamodule import BlocksDataModule
from minillm.data.packing import Batch, Blocks

__all__ = ["END_TOKEN", "Batch", "Blocks", "BlocksDataModule", "Corpus", "prepare_corpus"]
