"""Generation: what the cache holds is what the whole sequence would give, and tokens are drawn as asked."""

from collections.abc import Mapping

import pytest
import torch

from minillm.data.tokenizer import train_tokenizer
from minillm.generate import decoded, draw, generate
from minillm.kv_cache import KVCache
from minillm.model import Llama
from tests.model.test_model import CHOICES, make

PROMPT = torch.tensor([5, 17, 100, 3, 42])


def model_of(layers: Mapping[str, str] | None = None) -> Llama:
    return make(layers, init_std=0.2).model


@pytest.mark.parametrize("layers", CHOICES, ids=lambda layers: " ".join(map("=".join, layers.items())) or "eager")
def test_cached_and_uncached_logits_agree(layers: dict[str, str]) -> None:
    model, tokens = model_of(layers), torch.randint(101, (2, 12))
    with torch.no_grad():
        whole = model.logits(model(tokens))
        caches = [KVCache(12) for _ in model.blocks]
        parts = [model.logits(model(part, caches)) for part in (tokens[:, :5], *tokens[:, 5:].split(1, dim=1))]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)


def test_a_cache_takes_no_more_than_it_has_room_for_and_one_token_at_a_time() -> None:
    cache, one = KVCache(3), torch.zeros(1, 2, 1, 4)
    cache.append(one, one)
    with pytest.raises(ValueError, match="give one"):
        cache.append(one.expand(-1, -1, 2, -1), one.expand(-1, -1, 2, -1))
    cache.append(one, one)
    cache.append(one, one)
    with pytest.raises(ValueError, match="in a cache of 3"):
        cache.append(one, one)


def test_caches_that_do_not_fit_the_model_or_the_tokens_are_refused() -> None:
    model, tokens = model_of(), torch.randint(101, (1, 5))
    for number in (len(model.blocks) - 1, len(model.blocks) + 1):
        with pytest.raises(ValueError, match=f"{number} caches for {len(model.blocks)} blocks"):
            model(tokens, [KVCache(8) for _ in range(number)])
    caches = [KVCache(5) for _ in model.blocks]
    with torch.no_grad():
        model(tokens, caches)
    with pytest.raises(ValueError, match="1 positions after 5 in caches of 5"):
        model(tokens[:, :1], caches)


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, None), (1.0, None), (1.5, 7)])
def test_the_cache_changes_no_token(temperature: float, top_k: int | None) -> None:
    model = model_of()
    cached, uncached = (
        list(generate(model, PROMPT, 20, temperature=temperature, top_k=top_k, seed=1, cached=cached))
        for cached in (True, False)
    )
    assert cached == uncached
    assert len(cached) == 20


def test_the_seed_decides() -> None:
    model = model_of()
    first, again, other = (list(generate(model, PROMPT, 20, temperature=1.0, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_it_stops_at_the_end_token_which_is_not_given() -> None:
    model = model_of()
    tokens = list(generate(model, PROMPT, 30, temperature=1.0, seed=0))
    end = tokens[8]
    assert list(generate(model, PROMPT, 30, temperature=1.0, seed=0, end=end)) == tokens[: tokens.index(end)]


def test_no_token_beyond_the_tokenizers_is_drawn() -> None:
    assert max(generate(model_of(), PROMPT, 50, temperature=5.0, seed=0, vocabulary=10)) < 10


def test_temperature_and_top_k_shape_the_draw() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0])
    generator = torch.Generator().manual_seed(0)

    def shares(temperature: float, top_k: int | None) -> list[float]:
        drawn = torch.cat([draw(logits, temperature, top_k, generator) for _ in range(4000)])
        return (drawn.bincount(minlength=4) / 4000).tolist()

    assert shares(0.0, None) == [0, 1, 0, 0]
    assert shares(2.0, None) == pytest.approx(torch.softmax(logits / 2, 0).tolist(), abs=0.03)
    assert shares(1.0, 2) == pytest.approx([0, *torch.softmax(logits[1:3], 0).tolist(), 0], abs=0.03)


@pytest.mark.parametrize("text", ["plain words here", "东西 é\n\t and \U0001f600 end", "é"])
def test_a_character_of_several_tokens_is_streamed_whole(text: str) -> None:
    tokenizer = train_tokenizer([["plain words"]], 260)
    ids = tokenizer.encode(text).ids
    prompt = tokenizer.encode("before it ").ids
    pieces = list(decoded(tokenizer, prompt, ids))
    assert "".join(pieces) == text
    assert len(pieces) == len(ids) + 1
    assert all("\ufffd" not in piece for piece in pieces)


def test_bytes_that_are_left_over_are_shown_at_the_end() -> None:
    tokenizer = train_tokenizer([["plain words"]], 260)
    half = tokenizer.encode("东").ids[:-1]
    assert "".join(decoded(tokenizer, [], half)) == tokenizer.decode(half)
