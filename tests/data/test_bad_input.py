"""Each mistake gives one sentence that names the thing at fault, and nothing is left in the cache."""

import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.parquet
import pytest
from pydantic import ValidationError

from minillm.config import Config
from minillm.data import prepare_corpus
from minillm.errors import UserError
from tests.data.conftest import story

MakeConfig = Callable[..., Config]
GOOD = '{"text": "fine"}\n'

FILES = {
    "empty": ("a.txt", b"", r"a.txt is empty"),
    "binary": ("a.txt", b"abc\0def", r"a.txt is binary \(a zero byte at byte 3\)"),
    "another kind": (
        "a.pdf",
        b"%PDF",
        r"a.pdf is of a kind that cannot be read; data.files takes .txt, .jsonl, .parquet",
    ),
    "one document": ("a.txt", b"just one", r"1 documents, 1 of them different.*at least one each"),
    "too few tokens": (
        "a.jsonl",
        (GOOD + '{"text": "b"}').encode(),
        r"too small: \d+ tokens of 1 documents.*length=16",
    ),
    "no JSON": ("a.jsonl", (GOOD + "{text: 1}\n").encode(), r"a.jsonl line 2 is not JSON"),
    "deep JSON": ("a.jsonl", b"[" * 100_000, r"a.jsonl line 1 is not JSON"),
    "no object": ("a.jsonl", b'["text"]\n', r"a.jsonl line 1 is not a JSON object"),
    "no column": ("a.jsonl", b'{"body": "x", "id": 1}\n', r"a.jsonl line 1 has no column 'text' but \['body', 'id'\]"),
    "no text": ("a.jsonl", b'{"text": 3}\n', r"a.jsonl line 1: 'text' is not text"),
    "one huge line": ("a.txt", b"a line " * 300_000, r"1 documents, 1 of them different.*give more files"),
    "no parquet": ("a.parquet", b"PAR?", r"a.parquet cannot be read \(Parquet file size is 4"),
}


@pytest.mark.parametrize(("name", "content", "message"), FILES.values(), ids=FILES.keys())
def test_a_bad_file_is_named(
    make_config: MakeConfig, tmp_path: Path, cache: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        prepare_corpus(make_config([str(tmp_path / name)]))
    assert "\n" not in str(caught.value)
    assert not list(cache.glob(".*"))


@pytest.mark.parametrize(
    ("owner", "function", "given"),
    [
        (Path, "open", "folder/a.txt"),
        (Path, "read_bytes", "folder/a.txt"),  # was readable when it was hashed
        (os, "scandir", "folder"),
        (Path, "is_dir", "locked/a.txt"),
    ],
)
def test_what_may_not_be_read_is_named(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, given: str
) -> None:
    def forbidden(path: Any, *how: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("text")
    monkeypatch.setattr(owner, function, forbidden)  # whoever runs this as root may read everything
    with pytest.raises(UserError, match=rf"{given} cannot be read \(Permission denied\)"):
        prepare_corpus(make_config([str(tmp_path / given)]))


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_lines_is_named(make_config: MakeConfig, tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UserError, match=r"is empty|has no documents"):
        prepare_corpus(make_config([str(tmp_path / "a.jsonl")]))


def test_a_link_is_of_the_kind_that_its_own_name_says(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("".join(json.dumps({"text": story(i)}) + "\n" for i in range(9)))
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "blob")
    assert prepare_corpus(make_config([str(tmp_path / "a.jsonl")])).info["train_documents"] > 0


@pytest.mark.parametrize("pattern", ["missing.txt", "no*.txt", "nowhere/"])
def test_a_path_that_matches_nothing_is_named(make_config: MakeConfig, pattern: str) -> None:
    with pytest.raises(UserError, match=r"data.files=.* matches nothing in /"):
        prepare_corpus(make_config([pattern]))


def test_a_parquet_file_without_the_column_lists_its_columns(make_config: MakeConfig, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"body": ["x"], "id": [1]}), tmp_path / "a.parquet")
    for column, message in {
        "text": r"has no column 'text' but \['body', 'id'\]",
        "id": "'id' is int64, not text",
    }.items():
        with pytest.raises(UserError, match=message):
            prepare_corpus(make_config([str(tmp_path / "a.parquet")], text_column=column))


def damaged_parquet(file: Path, **form: Any) -> None:
    """A file whose end, which is read first, is whole."""
    pa.parquet.write_table(pa.table({"text": [story(i) for i in range(2000)]}), file, **form)
    content = bytearray(file.read_bytes())
    content[2000:2400] = bytes(400)
    file.write_bytes(content)


@pytest.mark.parametrize("form", [{"compression": "zstd"}, {"compression": "none", "write_page_checksum": True}])
def test_a_parquet_file_that_is_damaged_inside_is_named(
    make_config: MakeConfig, tmp_path: Path, cache: Path, form: dict[str, Any]
) -> None:
    damaged_parquet(tmp_path / "a.parquet", **form)
    with pytest.raises(UserError, match=r"a.parquet cannot be read \(.*(corruption|checksum).*\): mend that"):
        prepare_corpus(make_config([str(tmp_path / "a.parquet")]))
    assert not list(cache.glob(".*"))


def test_a_full_disk_is_told_and_nothing_is_left(make_config: MakeConfig, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": story(i)}) + "\n" for i in range(200)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # of each file: as good as a disk that is full
    try:
        with pytest.raises(UserError, match=r"has no room for the corpus \(File too large\): make room, or set"):
            prepare_corpus(make_config([str(tmp_path / "a.jsonl")]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(cache.glob(".*"))


@pytest.mark.parametrize("content", [None, b"{}", b"\xff\xfe"])
def test_a_tokenizer_that_cannot_be_loaded_is_named(
    make_config: MakeConfig, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer.path=.*tokenizer.json"):
        prepare_corpus(make_config(["unused.txt"], tokenizer_path=str(path)))


def test_a_source_without_its_setting_is_refused_by_the_config(make_config: MakeConfig) -> None:
    for name, setting in (("text", "data.files="), ("hub", "data.dataset=")):
        with pytest.raises(ValidationError, match=setting):
            make_config(name=name)
    assert make_config("a.txt").data.files == ["a.txt"]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers at the hub's address; what going offline changes is put back afterwards."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    for module in (huggingface_hub.constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)


@pytest.mark.usefixtures("no_network")
def test_a_hub_name_without_network_fails_at_once(make_config: MakeConfig) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=r"data.dataset=some/set .* hub is out of reach"):
        prepare_corpus(make_config(name="hub", dataset="some/set"))
    assert time.monotonic() - started < 10  # the hub's own client retries for 23 s


@pytest.mark.usefixtures("no_network")
def test_a_data_set_in_a_folder_needs_no_network_and_its_columns_are_checked(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    (tmp_path / "set").mkdir()
    rows = {"text": [*(story(i) for i in range(8)), None], "id": list(range(9))}
    pa.parquet.write_table(pa.table(rows), tmp_path / "set" / "train.parquet")
    hub = {"name": "hub", "dataset": str(tmp_path / "set")}
    info = prepare_corpus(make_config(**hub)).info
    assert info["train_documents"] + info["val_documents"] == 8
    for change, message in (
        ({"text_column": "body"}, r"has no column 'body' but \['text', 'id'\]"),
        ({"text_column": "id"}, "column 'id' is .*not text"),
        ({"split": "nope"}, r"data.split=nope cannot be loaded: Unknown split"),
    ):
        with pytest.raises(UserError, match=message):
            prepare_corpus(make_config(**hub, **change))
    damaged_parquet(tmp_path / "set" / "train.parquet", compression="zstd")
    with pytest.raises(UserError, match=r"data.dataset=.*/set .*cannot be loaded: .*corruption"):
        prepare_corpus(make_config(**hub))
