"""Text from a model, one token at a time."""

import torch
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from minillm.attention import ANY_LENGTH
from minillm.model import Llama


@torch.no_grad()
def generate(model: Llama, prompt: Tensor, new_tokens: int, temperature: float, seed: int) -> Tensor:
    """Continue `prompt` (T,) int64 by `new_tokens` tokens, sampled from softmax(logits / temperature). Returns all.

    Every token runs the whole sequence again: fine for a line of text. Compiled blocks run eagerly here, because each
    length would be compiled anew.
    """
    generator = torch.Generator(prompt.device).manual_seed(seed)
    tokens = prompt
    with torch.compiler.set_stance("force_eager"), sdpa_kernel(ANY_LENGTH, set_priority=True):
        for _ in range(new_tokens):
            logits = model.logits(model(tokens[None])[0, -1]).float()
            probabilities = torch.softmax(logits / temperature, dim=-1)
            tokens = torch.cat((tokens, torch.multinomial(probabilities, 1, generator=generator)))
    return tokens
