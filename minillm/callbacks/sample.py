"""A line of text from the model after each validation: what the numbers sound like."""

from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from minillm import distributed
from minillm.data import Corpus
from minillm.generate import generate
from minillm.module import LlamaModule
from minillm.wandb_log import WandbLog
from minillm.whole import whole_file

PROMPT_TOKENS, NEW_TOKENS = 12, 28


class Sample(Callback):
    """The validation text's beginning, continued: to `samples.txt` (a line a validation, step and text) and to W&B.

    `text` is the newest; it stays None for synthetic tokens.
    """

    def __init__(self, corpus: Corpus, seed: int, file: Path) -> None:
        self.corpus, self.seed, self.file = corpus, seed, file
        self.text: str | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.corpus.tokenizer is None:
            return
        assert isinstance(pl_module, LlamaModule)
        prompt = torch.as_tensor(self.corpus.val[[0]]["tokens"][0, :PROMPT_TOKENS], device=pl_module.device)
        vocabulary = self.corpus.vocab_size
        with trainer.precision_plugin.forward_context():
            drawn = generate(
                pl_module.model, prompt, NEW_TOKENS, temperature=0.8, seed=self.seed, vocabulary=vocabulary
            )
            new = list(drawn)
        before, after = (self.corpus.tokenizer.decode(part) for part in (prompt.tolist(), new))
        self.text = " ".join(f"{before} [...] {after}".split())
        if distributed.rank() == 0:
            self.write(trainer.global_step, self.text)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLog):
                logger.log_metrics({"sample": self.text}, trainer.global_step)

    def write(self, step: int, text: str) -> None:
        """Add a line; those of steps that a resumed run takes again are written over. What else stands there stays."""
        text_so_far = self.file.read_text(encoding="utf-8", errors="replace") if self.file.exists() else ""
        numbered = [(line.partition("\t")[0], line) for line in text_so_far.splitlines()]
        kept = [line for number, line in numbered if not number.isdecimal() or int(number) < step]
        with whole_file(self.file) as file:
            file.writelines(f"{line}\n" for line in (*kept, f"{step}\t{text}"))
