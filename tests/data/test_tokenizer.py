from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from minillm.data.tokenizer import END_TOKEN, encode, load_tokenizer, token_dtype, train_tokenizer, vocabulary_size
from minillm.errors import UserError
from tests.data.conftest import story

TOKENIZER = train_tokenizer([[story(i) for i in range(20)]], vocab_size=300)
END = TOKENIZER.token_to_id(END_TOKEN)


@settings(max_examples=60, deadline=None)
@given(st.text() | st.text(alphabet="a \r\n\t\0é中\U0001f600\ufffd"))
def test_decoding_gives_back_any_text(text: str) -> None:
    ids = encode(TOKENIZER, [text])
    assert TOKENIZER.decode(ids[:-1].tolist(), skip_special_tokens=False) == text
    assert END not in ids[:-1] and ids[-1] == END


def test_text_that_spells_the_end_token_stays_text() -> None:
    ids = encode(TOKENIZER, [f"a{END_TOKEN}b", "c"])
    assert (ids == END).sum() == 2
    assert TOKENIZER.decode(ids.tolist(), skip_special_tokens=False) == f"a{END_TOKEN}b{END_TOKEN}c{END_TOKEN}"


def test_training_twice_gives_the_same_tokenizer() -> None:
    assert train_tokenizer([[story(i) for i in range(20)]], vocab_size=300).to_str() == TOKENIZER.to_str()


def test_a_loaded_tokenizer_encodes_alike_and_ignores_the_files_truncation(tmp_path: Path) -> None:
    saved = Tokenizer.from_str(TOKENIZER.to_str())
    saved.enable_truncation(3)
    saved.enable_padding(length=500)
    saved.save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    text = story(1) + END_TOKEN
    assert encode(loaded, [text]).tolist() == encode(TOKENIZER, [text]).tolist()


def test_a_tokenizer_without_the_end_token_is_refused_by_name(tmp_path: Path) -> None:
    for tokens in ([], [END_TOKEN]):  # missing; and an ordinary token, which text could forge
        tokenizer = Tokenizer(models.BPE({"a": 0}, []))
        tokenizer.add_tokens(tokens)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(UserError, match=r"no special token '<\|endoftext\|>'"):
            load_tokenizer(tmp_path / "tokenizer.json")


def test_the_vocabulary_reaches_to_the_largest_id_and_picks_the_narrowest_type() -> None:
    assert vocabulary_size(Tokenizer(models.WordLevel({"a": 0, "b": 70_000}, "a"))) == 70_001
    assert (token_dtype(2**16).name, token_dtype(2**16 + 1).name) == ("uint16", "uint32")
