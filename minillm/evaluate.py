"""How well a model predicts a text: loss, perplexity, bits per byte, each with a standard error.

The text is cut into blocks as in training, and the error is that of the mean over blocks. Blocks and not documents,
because all blocks have as many targets, so that the mean over them is the mean over tokens, and because a single long
document has an error, too. Blocks of one document are alike, so among few documents the true error is larger.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from minillm.attention import attention_kernels
from minillm.data.packing import Blocks
from minillm.data.tokenizer import text_bytes
from minillm.loaded import LoadedRun, autocast


@dataclass(frozen=True)
class Evaluation:
    """`loss` is in nats a token; what is None is not known: of one block the error, of synthetic tokens the bytes."""

    loss: float
    error: float | None
    blocks: int
    tokens: int
    bytes_per_token: float | None

    def rows(self) -> list[tuple[str, float, float | None]]:
        """(name, value, standard error): to first order, the error goes through exp, and through a factor as it is."""
        rows = [("loss", 1.0, self.loss), ("perplexity", math.exp(self.loss), math.exp(self.loss))]
        if self.bytes_per_token is not None:
            factor = 1 / math.log(2) / self.bytes_per_token
            rows.append(("bits per byte", factor, factor * self.loss))
        return [(name, value, None if self.error is None else slope * self.error) for name, slope, value in rows]


@torch.no_grad()
def evaluate(run: LoadedRun, blocks: Blocks) -> Evaluation:
    """The run's loss over all of `blocks`, as many at once as in training.

    On a terminal a bar shows how far it is.
    """
    losses: list[Tensor] = []  # of each block, nats a token
    micro, length = run.config.batch.micro, blocks.sequence_length
    with autocast(run.config), attention_kernels(run.config.trainer.attention, length, run.device):
        for start in tqdm(range(0, len(blocks), micro), unit="batch", disable=None, leave=False):
            tokens = blocks[range(start, min(start + micro, len(blocks)))]["tokens"].to(run.device)
            hidden = run.model(tokens[:, :-1])
            losses += [
                run.loss(h[None], run.model.lm_head.weight, t[None]) for h, t in zip(hidden, tokens[:, 1:], strict=True)
            ]
    per_token = torch.stack(losses).double() / length
    error = per_token.std().item() / math.sqrt(len(losses)) if len(losses) > 1 else None
    bytes_per_token = None
    if run.tokenizer is not None:
        bytes_per_token = text_bytes(run.tokenizer, blocks.targets(len(blocks))) / (len(blocks) * length)
    return Evaluation(per_token.mean().item(), error, len(losses), len(losses) * length, bytes_per_token)
