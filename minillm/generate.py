"""Text from a model, one token at a time."""

from collections.abc import Iterable, Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.attention import sdpa_kernel

from minillm.attention import ANY_LENGTH
from minillm.kv_cache import KVCache
from minillm.model import Llama


def generate(
    model: Llama,
    prompt: Tensor,
    new_tokens: int,
    *,
    temperature: float,
    seed: int,
    top_k: int | None = None,
    vocabulary: int | None = None,
    end: int | None = None,
    cached: bool = True,
) -> Iterator[int]:
    """Continue `prompt` (T,) int64, T >= 1: at most `new_tokens` token ids, up to an `end`, which is left out.

    Args:
        temperature: tokens are drawn from softmax(logits / temperature); 0 takes the likeliest.
        top_k: draw among the so many likeliest (Fan et al. 2018); None: among all.
        vocabulary: ids that may be drawn, from 0; None: all the model's, which may be more than its tokenizer's.
        cached: keep keys and values; otherwise every token runs the whole sequence again.
    """
    generator = torch.Generator(prompt.device).manual_seed(seed)
    caches = [KVCache(len(prompt) + new_tokens) for _ in model.blocks] if cached else []
    unread = prompt
    for _ in range(new_tokens):
        logits = next_logits(model, unread, caches)[:vocabulary]
        token = draw(logits, temperature, top_k, generator)
        if token.item() == end:
            return
        yield int(token.item())
        unread = token if cached else torch.cat((unread, token))


@torch.no_grad()
def next_logits(model: Llama, tokens: Tensor, caches: list[KVCache]) -> Tensor:
    """What the model says after `tokens` (T,), which follow those in the caches. (V,) fp32.

    Compiled blocks run eagerly here, because each length would be compiled anew.
    """
    with torch.compiler.set_stance("force_eager"), sdpa_kernel(ANY_LENGTH, set_priority=True):
        return model.logits(model(tokens[None], caches)[0, -1]).float()


def draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    """A token id (1,) from logits (V,)."""
    likeliest, ids = logits.topk(1 if temperature == 0 else top_k or len(logits))
    if temperature == 0:
        return ids
    below = likeliest - likeliest[0]  # 0 stays 0, where logits / a small temperature would overflow
    probabilities = torch.softmax(below / temperature, dim=-1)
    return ids[torch.multinomial(probabilities, 1, generator=generator)]


def decoded(tokenizer: Tokenizer, prompt: list[int], new: Iterable[int]) -> Iterator[str]:
    """The text that each new token completes, then what is left: a character may be made of several tokens.

    A token is decoded behind the ones before it, because its text may depend on them (a space that opens a word).
    """
    before, pending = prompt[-4:], list[int]()
    for token in new:
        pending.append(token)
        text = tokenizer.decode(before + pending)[len(tokenizer.decode(before)) :]
        if text.endswith("\ufffd"):  # the bytes so far are not UTF-8
            yield ""
        else:
            yield text
            before, pending = pending, []
    yield tokenizer.decode(before + pending)[len(tokenizer.decode(before)) :]
