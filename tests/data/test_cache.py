import json
import os
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import minillm.data.corpus
from minillm.config import Config
from minillm.data import Corpus, prepare_corpus
from minillm.data.cache import BUILDING, cached
from minillm.data.tokenizer import train_tokenizer
from minillm.errors import UserError
from tests.data.conftest import story

Files = Callable[..., list[str]]
MakeConfig = Callable[..., Config]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Grows by one whenever a corpus is built."""
    seen: list[Path] = []
    build = minillm.data.corpus.build_corpus

    def counted(folder: Path, *args: object) -> None:
        seen.append(folder)
        build(folder, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(minillm.data.corpus, "build_corpus", counted)
    return seen


def test_an_unchanged_corpus_is_not_built_again(write: Files, make_config: MakeConfig, builds: list[Path]) -> None:
    files = write([story(i) for i in range(10)])
    first = prepare_corpus(make_config(files))
    second = prepare_corpus(make_config(list(reversed(files))))
    assert len(builds) == 1
    assert first.info == second.info
    assert first.train[[0]]["tokens"].equal(second.train[[0]]["tokens"])


def test_equal_content_in_another_place_is_not_built_again(
    write: Files, make_config: MakeConfig, builds: list[Path]
) -> None:
    for folder in ("here", "there"):
        prepare_corpus(make_config(write([story(i) for i in range(10)], folder)))
    assert len(builds) == 1


def test_whatever_determines_the_tokens_builds_again(
    write: Files, make_config: MakeConfig, builds: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [story(i) for i in range(10)]
    files = write(texts)
    train_tokenizer([texts], 280).save(str(tmp_path / "tokenizer.json"))
    given = str(tmp_path / "tokenizer.json")
    hashes = [prepare_corpus(make_config(files)).info["hash"]]
    changes: list[dict[str, Any]] = [{"vocab_size": 290}, {"val_fraction": 0.6}, {"tokenizer_path": given}]
    hashes += [prepare_corpus(make_config(files, **change)).info["hash"] for change in changes]
    train_tokenizer([texts], 270).save(given)
    hashes.append(prepare_corpus(make_config(files, tokenizer_path=given)).info["hash"])
    Path(files[3]).write_text(story(3) + ".")
    hashes.append(prepare_corpus(make_config(files)).info["hash"])
    monkeypatch.setattr(minillm.data.corpus, "version", lambda package: "0")
    hashes.append(prepare_corpus(make_config(files)).info["hash"])
    assert len(set(hashes)) == len(builds) == 7


def test_another_block_length_cuts_the_same_tokens_anew(
    write: Files, make_config: MakeConfig, builds: list[Path]
) -> None:
    files = write([story(i) for i in range(10)])
    long, short = (prepare_corpus(make_config(files, sequence_length=length)) for length in (32, 8))
    assert len(builds) == 1
    assert long.train[[0]]["tokens"].shape == (1, 33)
    assert long.train[[0]]["tokens"][0, :9].equal(short.train[[0]]["tokens"][0])


def test_a_damaged_cache_is_rebuilt(write: Files, make_config: MakeConfig, builds: list[Path], cache: Path) -> None:
    config = make_config(write([story(i) for i in range(10)]))
    folder = cache / prepare_corpus(config).info["hash"]
    for name in [path.name for path in folder.iterdir()]:
        for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])):
            damage(folder / name)
            before = len(builds)
            prepare_corpus(config)
            assert len(builds) == before + 1, f"{name} was damaged"
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_two_that_build_at_once_both_get_the_whole_folder(cache: Path) -> None:
    both_are_building = threading.Barrier(2)

    def build(folder: Path) -> None:
        both_are_building.wait(timeout=30)
        (folder / "file").write_text("content")

    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(cached({"a": 1}, build))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders[0] == folders[1] and (folders[0] / "file").read_text() == "content"
    assert [path.name for path in cache.iterdir()] == [folders[0].name]
    assert json.loads((folders[0] / "manifest.json").read_text())["key"] == {"a": 1}


def build_beside_another(config: Config, both_are_building: Any, told: Any) -> None:
    """Prepare the corpus in this process; building waits until another one builds it, too."""
    build = minillm.data.corpus.build_corpus

    def at_once(*arguments: Any) -> None:
        both_are_building.wait(timeout=60)
        build(*arguments)

    minillm.data.corpus.build_corpus = at_once
    told.put(facts(prepare_corpus(config)))


def facts(corpus: Corpus) -> tuple[dict[str, Any], list[list[int]]]:
    """What is said of the corpus, its hash among it, and every token of it."""
    return corpus.info, [
        block for blocks in (corpus.train, corpus.val) for block in blocks[range(len(blocks))]["tokens"].tolist()
    ]


@pytest.mark.process
def test_two_processes_that_build_one_corpus_at_once_both_get_the_whole_of_it(
    write: Files, make_config: MakeConfig, builds: list[Path], cache: Path
) -> None:
    config, spawn = make_config(write([story(i) for i in range(10)])), get_context("spawn")
    told, both_are_building = spawn.Queue(), spawn.Barrier(2)
    processes = [spawn.Process(target=build_beside_another, args=(config, both_are_building, told)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = told.get(timeout=90), told.get(timeout=90)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert first == second == facts(prepare_corpus(config))
    assert not builds  # what they left is whole
    assert [path.name for path in cache.iterdir()] == [first[0]["hash"]]


def test_what_a_killed_process_was_building_is_removed_by_the_next(cache: Path) -> None:
    cached({"first": 1}, lambda folder: None)  # makes the cache
    ended = get_context("fork").Process(target=int)
    ended.start()
    ended.join()
    left, in_use = cache / f"{BUILDING}{ended.pid}-x", cache / f"{BUILDING}{os.getpid()}-x"
    for place in (left, in_use):
        place.mkdir()
    cached({"second": 2}, lambda folder: None)
    assert not left.exists() and in_use.exists()


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        cached({}, build)
    assert not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UserError, match=r"cannot write the cache folder .*file/cache .*MINILLM_CACHE"):
        cached({}, lambda folder: None)
