"""A line of text from the trained model."""

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from minillm.data import Corpus
from minillm.generate import generate
from minillm.module import LlamaModule

PROMPT_TOKENS, NEW_TOKENS = 12, 28


class Sample(Callback):
    """At the end of training: the validation text's beginning, continued. `text` stays None for synthetic tokens."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.corpus, self.seed = corpus, seed
        self.text: str | None = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.corpus.tokenizer is None:
            return
        assert isinstance(pl_module, LlamaModule)
        prompt = torch.as_tensor(self.corpus.val[[0]]["tokens"][0, :PROMPT_TOKENS], device=pl_module.device)
        with trainer.precision_plugin.forward_context():
            tokens = generate(pl_module.model, prompt, NEW_TOKENS, temperature=0.8, seed=self.seed)
        before, after = (self.corpus.tokenizer.decode(part.tolist()) for part in (prompt, tokens[len(prompt) :]))
        self.text = " ".join(f"{before} [...] {after}".split())
