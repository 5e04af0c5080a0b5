import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minillm.config import Config
from minillm.data import END_TOKEN, Corpus, prepare_corpus
from minillm.data.packing import Blocks
from minillm.data.sampler import StepSampler
from minillm.data.sources import find_source
from minillm.data.tokenizer import encode, train_tokenizer
from minillm.errors import UserError
from tests.data.conftest import WORDS, story

Files = Callable[..., list[str]]
MakeConfig = Callable[..., Config]


def documents(corpus: Corpus, blocks: Blocks) -> list[str]:
    """The text that an epoch's targets spell, cut at the end tokens, in the corpus' order.

    With blocks of 2 targets the remainder is at most the stream's last token, an end token: no document is cut.
    """
    assert corpus.tokenizer is not None and blocks.sequence_length == 2
    order = [number for step in StepSampler(len(blocks), 1, len(blocks), seed=1) for number in step]
    targets = {number: blocks[[number]]["tokens"][0, 1:].tolist() for number in order}
    assert len(targets) == len(order) == len(blocks)
    stream = [token for number in sorted(targets) for token in targets[number]]
    end = corpus.tokenizer.token_to_id(END_TOKEN)
    found: list[str] = []
    current: list[int] = []
    for token in stream:
        if token == end:
            found.append(corpus.tokenizer.decode(current, skip_special_tokens=False))
            current = []
        else:
            current.append(token)
    return [*found, corpus.tokenizer.decode(current, skip_special_tokens=False)] if current else found


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(min_size=1, max_size=60).filter(lambda raw: b"\0" not in raw), min_size=2, max_size=6))
def test_every_token_of_every_document_is_a_target_once_an_epoch_except_the_counted_remainder(
    write: Files, make_config: MakeConfig, tmp_path: Path, raws: list[bytes]
) -> None:
    shutil.rmtree(tmp_path / "text", ignore_errors=True)
    try:
        corpus = prepare_corpus(make_config(write(raws), sequence_length=2, vocab_size=260))
    except UserError as error:
        if "different" in str(error):  # fewer than two different documents
            return
        raise
    found = documents(corpus, corpus.train) + documents(corpus, corpus.val)
    assert Counter(found) == Counter(raw.decode(errors="replace") for raw in raws)
    for blocks, tokens in ((corpus.train, corpus.info["train_tokens"]), (corpus.val, corpus.info["val_tokens"])):
        assert len(blocks) * 2 + blocks.remainder == tokens


def test_documents_are_split_whole_and_equal_ones_together(write: Files, make_config: MakeConfig) -> None:
    texts = [story(i) for i in range(12)]
    corpus = prepare_corpus(make_config(write(texts * 2), sequence_length=2))
    train, val = documents(corpus, corpus.train), documents(corpus, corpus.val)
    assert train and val and not set(train) & set(val)
    assert corpus.info["train_documents"] + corpus.info["val_documents"] == 24


def test_adding_documents_moves_none_to_the_other_side(write: Files, make_config: MakeConfig) -> None:
    texts = [story(i) for i in range(24)]
    few = prepare_corpus(make_config(write(texts[:12], "few"), sequence_length=2))
    more = prepare_corpus(make_config(write(texts[::-1], "more"), sequence_length=2))
    assert set(documents(few, few.train)) < set(documents(more, more.train))
    assert set(documents(few, few.val)) < set(documents(more, more.val))


def test_two_documents_are_enough_for_both_sides(write: Files, make_config: MakeConfig) -> None:
    for val_fraction in (0.001, 0.999):
        info = prepare_corpus(make_config(write([story(1), story(2)]), val_fraction=val_fraction)).info
        assert (info["train_documents"], info["val_documents"]) == (1, 1)


def test_the_tokenizer_is_trained_on_training_documents_only(write: Files, make_config: MakeConfig) -> None:
    texts = [story(i) for i in range(12)]
    corpus = prepare_corpus(make_config(write(texts), sequence_length=2))
    assert corpus.tokenizer is not None
    assert corpus.tokenizer.to_str() == train_tokenizer([documents(corpus, corpus.train)], 300).to_str()
    assert corpus.tokenizer.to_str() != train_tokenizer([texts], 300).to_str()


def test_the_numbers_are_those_of_the_text(write: Files, make_config: MakeConfig) -> None:
    texts = [story(i) + "é中" for i in range(12)]
    corpus = prepare_corpus(make_config(write(texts), sequence_length=2))
    info, sides = corpus.info, {}
    assert corpus.tokenizer is not None
    for side, blocks in (("train", corpus.train), ("val", corpus.val)):
        text = documents(corpus, blocks)
        sides[side] = encode(corpus.tokenizer, text).tolist()
        assert info[f"{side}_documents"] == len(text)
        assert info[f"{side}_bytes"] == sum(len(document.encode()) for document in text)
        assert info[f"{side}_tokens"] == len(sides[side])
        assert info[f"{side}_blocks"] == len(blocks) == len(sides[side]) // 2
    assert info["train_documents"] + info["val_documents"] == 12
    assert info["validated_blocks"] == len(corpus.val)
    seen = Counter(sides["train"])
    total = len(sides["train"]) + info["vocab_size"]
    targets = sides["val"][: len(corpus.val) * 2]
    bits = -sum(math.log2((seen[token] + 1) / total) for token in targets)
    size = len(corpus.tokenizer.decode(targets).encode())
    assert info["unigram_bits_per_byte"] == pytest.approx(bits / size)
    nats = bits * math.log(2) / len(targets)  # a mean loss as large as the unigram model's
    assert corpus.bits_per_byte(nats) == pytest.approx(info["unigram_bits_per_byte"])
    assert json.loads(json.dumps(info)) == info


def test_bits_per_byte_are_those_of_the_text_that_a_validation_takes(write: Files, make_config: MakeConfig) -> None:
    """Where a validation takes only the first blocks, and their text has other tokens than the rest."""
    texts = [f"{'the same words again ' * 40}{i}" for i in range(30)] + [f"{'всё другое, ' * 40}{i}" for i in range(30)]
    files = write(texts)
    whole, part = (prepare_corpus(make_config(files, val_batches=n)) for n in (10**6, 1))
    assert part.info["validated_blocks"] == 2 < len(part.val)
    assert part.tokenizer is not None
    targets = part.val[[0, 1]]["tokens"][:, 1:].flatten().tolist()
    size = len(part.tokenizer.decode(targets).encode())
    assert part.info["bytes_per_token"] == size / len(targets)
    assert part.bits_per_byte(math.log(2)) == pytest.approx(len(targets) / size)
    assert whole.info["bytes_per_token"] != pytest.approx(part.info["bytes_per_token"], rel=0.1)


def test_invalid_utf8_is_replaced_counted_and_named(
    write: Files, make_config: MakeConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write([story(0), b"ab\xffcd\xfe" + "\ufffd".encode() + story(1).encode()])
    assert prepare_corpus(make_config(files)).info["replaced_utf8"] == 2
    assert f"the first in {files[1]}, byte 2" in capsys.readouterr().out


def test_txt_jsonl_parquet_globs_and_folders_give_the_same_documents(make_config: MakeConfig, tmp_path: Path) -> None:
    texts = [story(i) for i in range(6)]
    (tmp_path / "txt").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "txt" / f"höhe {number} [中].txt").write_text(text, encoding="utf-8")
    rows = [json.dumps({"n": 1, "body": text}) for text in [*texts, "", None]]  # empty ones are left out
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n\n")
    pa.parquet.write_table(pa.table({"body": [*texts, None]}), tmp_path / "rows.parquet")
    named = [str(path) for path in (tmp_path / "txt").iterdir()]
    sources = [named, [str(tmp_path / "txt")], [f"{tmp_path}/t*/*.txt"]]
    sources += [[str(tmp_path / "rows.jsonl")], [str(tmp_path / "rows.parquet")]]
    for files in sources:
        corpus = prepare_corpus(make_config(files, sequence_length=2, text_column="body"))
        assert sorted(documents(corpus, corpus.train) + documents(corpus, corpus.val)) == sorted(texts)


def test_paths_are_relative_to_the_callers_folder(
    write: Files, make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write([story(i) for i in range(6)])
    monkeypatch.chdir(tmp_path)
    assert prepare_corpus(make_config(["text/*.txt"])).info["train_documents"]


def test_half_a_surrogate_pair_in_jsonl_is_replaced(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "\\ud800 {story(i).strip()}"}}\n' for i in range(4)))
    assert prepare_corpus(make_config([str(tmp_path / "a.jsonl")])).info["replaced_utf8"] > 0


def test_the_standard_library_is_found_on_this_machine_without_its_tests(make_config: MakeConfig) -> None:
    source = find_source(make_config(name="stdlib").data)
    files = source.load.args[0]  # type: ignore[attr-defined]
    assert "argparse.py" in {file.name for file in files}
    assert not [file for file in files if file.name.startswith("_sysconfigdata")]  # has this installation's paths
    assert not [file for file in files if {"test", "site-packages"} & set(file.parts[len(files[0].parts) :])]
    assert source.digest == find_source(make_config(name="stdlib").data).digest


def test_synthetic_tokens_are_uniform_repeatable_and_have_no_bits_per_byte(make_config: MakeConfig) -> None:
    config = make_config(name="synthetic", synthetic_tokens=4000, model_vocab_size=50)
    first, second = prepare_corpus(config), prepare_corpus(config)
    tokens = first.train[list(range(len(first.train)))]["tokens"]
    assert tokens.unique().tolist() == list(range(50))
    assert tokens.equal(second.train[list(range(len(second.train)))]["tokens"])
    assert first.tokenizer is None and first.bits_per_byte(1.0) is None
    assert first.info["train_tokens"] + first.info["val_tokens"] == 4000


def test_a_model_with_fewer_token_ids_than_the_tokenizer_is_refused(write: Files, make_config: MakeConfig) -> None:
    with pytest.raises(UserError, match=r"model.vocab_size=100 is smaller than the tokenizer's 300"):
        prepare_corpus(make_config(write([story(i) for i in range(9)]), model_vocab_size=100))


def test_a_book_in_one_file_is_cut_at_line_ends_and_nothing_of_it_is_lost(
    write: Files, make_config: MakeConfig
) -> None:
    lines = [f"{number} {WORDS[number % len(WORDS)]}\n" for number in range(400)]
    corpus = prepare_corpus(make_config(write(["".join(lines)]), sequence_length=2))
    found = documents(corpus, corpus.train) + documents(corpus, corpus.val)
    assert len(found) > 50
    assert Counter("".join(found).splitlines(keepends=True)) == Counter(lines)
