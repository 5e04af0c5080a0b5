"""What another value of a field leads to when a run goes on: of those that decide on the data, none is forgotten."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from minillm.config import BatchConfig, Config, DataConfig, TokenizerConfig
from minillm.data import prepare_corpus
from minillm.errors import UserError
from minillm.resume import Saved, changes, check
from tests.data.conftest import story
from tests.training.conftest import make_config

TEXT = {"data.name": "text", "data.files": ["one.jsonl"], "model.vocab_size": None}
HUB = TEXT | {"data.name": "hub", "data.dataset": "set", "data.subset": "one"}
BY_NAME, BY_HASH, TOLD, FREE = "refused by name", "refused by the data's hash", "goes on, and is told", "goes on"

# Field: the run to resume (what it has besides the defaults), another value, what that leads to.
FIELDS: dict[str, tuple[dict[str, Any], Any, str]] = {
    "data.name": (HUB, "text", BY_HASH),
    "data.sequence_length": ({}, 8, BY_NAME),
    "data.val_fraction": (TEXT, 0.5, BY_HASH),
    "data.num_workers": ({}, 2, FREE),
    "data.files": (TEXT, ["two.jsonl"], BY_HASH),
    "data.dataset": (HUB, "other", BY_HASH),
    "data.subset": (HUB, "two", BY_HASH),
    "data.split": (HUB, "test", BY_HASH),
    "data.text_column": (TEXT, "more", BY_HASH),
    "data.synthetic_tokens": ({}, 4001, BY_HASH),
    "data.train_blocks": ({}, 3, BY_NAME),
    "tokenizer.path": (TEXT, "tokenizer.json", BY_HASH),
    "tokenizer.vocab_size": (TEXT, 290, BY_HASH),
    "tokenizer.end_token": (TEXT, "<end>", BY_HASH),
    "batch.micro": ({}, 2, BY_NAME),
    "batch.accumulate": ({}, 2, BY_NAME),
    "seed": (TEXT, 1, BY_NAME),
    "trainer.val_batches": ({}, 2, TOLD),
}


def test_every_field_of_the_data_is_in_the_table() -> None:
    sections = {"data": DataConfig, "tokenizer": TokenizerConfig, "batch": BatchConfig}
    assert {f"{name}.{field}" for name, section in sections.items() for field in section.model_fields} <= FIELDS.keys()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two texts, as files and as the subsets and splits of two data sets; what is built of them is built once."""
    folder = tmp_path_factory.mktemp("texts")
    splits = [{"split": "train", "path": "one.jsonl"}, {"split": "test", "path": "two.jsonl"}]
    subsets = [{"config_name": "one", "data_files": splits}, {"config_name": "two", "data_files": "two.jsonl"}]
    for place, first in ((folder, 0), (folder / "set", 0), (folder / "other", 100)):
        place.mkdir(exist_ok=True)
        for name, number in (("one", first), ("two", first + 50)):
            rows = [{"text": story(i), "more": story(i + 7)} for i in range(number, number + 20)]
            (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (place / "README.md").write_text(f"---\nconfigs: {json.dumps(subsets)}\n---\n")
    return folder


@pytest.mark.parametrize(("field", "run", "value", "leads_to"), [(name, *row) for name, row in FIELDS.items()])
def test_another_value_of_a_field_leads_to_what_the_table_says(
    texts: Path, monkeypatch: pytest.MonkeyPatch, field: str, run: dict[str, Any], value: Any, leads_to: str
) -> None:
    monkeypatch.chdir(texts)
    monkeypatch.setenv("MINILLM_CACHE", str(texts / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", texts / "hf")
    config = make_config(run)
    corpus = prepare_corpus(config)
    if field == "tokenizer.path":
        shorter = prepare_corpus(make_config(run | {"tokenizer.vocab_size": 290})).tokenizer
        assert shorter is not None
        shorter.save(value)
    stored = config.with_vocabulary(corpus.vocab_size).model_dump(mode="json")
    saved = Saved(Path("a.ckpt"), 2, stored, corpus.info["hash"], [])
    assert outcome(saved, config, field) == FREE
    assert outcome(saved, make_config(run | {field: value}), field) == leads_to


def outcome(saved: Saved, config: Config, field: str) -> str:
    """What going on from `saved` as `config` says leads to; a refusal of another kind as its message."""
    try:
        check(saved, config)
        check(saved, config, prepare_corpus(config).info["hash"])
    except UserError as error:
        told = {f"{field}=": BY_NAME, "trained on other data": BY_HASH}
        return next((kind for words, kind in told.items() if words in str(error)), str(error))
    return TOLD if changes(saved, config) else FREE
