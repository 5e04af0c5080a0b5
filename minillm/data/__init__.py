"""Text to batches: sources -> documents -> tokenizer -> a flat stream of tokens -> blocks -> optimizer steps."""

from minillm.data.corpus import Corpus, prepare_corpus
from minillm.data.datamodule import BlocksDataModule
from minillm.data.packing import Batch, Blocks
from minillm.data.tokenizer import END_TOKEN

__all__ = ["END_TOKEN", "Batch", "Blocks", "BlocksDataModule", "Corpus", "prepare_corpus"]
