"""A process gets a folder of its own, and is alone where it trains."""

import errno
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from minillm import folders
from minillm.compose import CONFIGS, ROOT
from minillm.errors import UserError
from minillm.folders import alone_in, own_folder, results_folder

NOW = datetime(2026, 1, 31, 12)


def test_each_of_many_that_want_one_name_gets_a_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(own_folder, [tmp_path / "runs" / "12-00-00_tiny"] * 8))
    assert {folder.name for folder in made} == {"12-00-00_tiny", *(f"12-00-00_tiny_{n}" for n in range(2, 9))}
    assert {*made} == {*(tmp_path / "runs").iterdir()}


@pytest.fixture
def one_second(tmp_path: Path) -> Iterator[None]:
    """The time stands still, and the repository is elsewhere."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        HydraConfig.instance().set_config(compose("train", return_hydra_config=True))
    OmegaConf.register_new_resolver("now", NOW.strftime, replace=True)  # Hydra puts its own back when it starts
    OmegaConf.register_new_resolver("repository", lambda: str(tmp_path), replace=True)
    yield
    OmegaConf.register_new_resolver("repository", lambda: str(ROOT), replace=True)
    HydraConfig.instance().cfg = None


def resolved(key: str, answers: Any) -> None:
    answers.put([OmegaConf.select(HydraConfig.instance().cfg, key) for _ in range(2)])


@pytest.mark.parametrize(("key", "name"), [("run", "12-00-00_tiny_eager"), ("sweep", "12-00-00_sweep")])
def test_commands_that_begin_in_one_second_have_default_folders_of_their_own(
    one_second: None, tmp_path: Path, key: str, name: str
) -> None:
    context = get_context("fork")
    answers = context.SimpleQueue()
    commands = [context.Process(target=resolved, args=(f"hydra.{key}.dir", answers)) for _ in range(2)]
    for command in commands:
        command.start()
    for command in commands:
        command.join(60)
    runs = tmp_path / "runs" / "2026-01-31"
    assert sorted(answers.get() for _ in commands) == [[f"{runs}/{name}"] * 2, [f"{runs}/{name}_2"] * 2]


def test_a_measurements_folder_is_its_own_and_stays_if_something_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "RUNS", tmp_path)
    with results_folder(None, "bench_x", NOW) as first, results_folder(None, "bench_x", NOW) as second:
        (second / "bench.md").touch()
    assert (first.name, second.name) == ("12-00-00_bench_x", "12-00-00_bench_x_2")
    assert (first.exists(), second.exists()) == (False, True)
    with pytest.raises(UserError, match="names no folder"), results_folder("", "bench_x", NOW):
        pass


def test_a_measurements_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").touch()
    monkeypatch.setattr(folders, "RUNS", tmp_path / "runs")
    with (
        pytest.raises(UserError, match=r"/runs/2026-01-31.* cannot be made \(.*\): type hydra.run.dir=DIR"),
        results_folder(None, "bench_x", NOW),
    ):
        pass
    for typed in (tmp_path / "runs", tmp_path / "runs" / "deeper"):
        with (
            pytest.raises(UserError, match=r"/runs is no folder that you may write to: type hydra\.run\.dir=DIR"),
            results_folder(typed, "bench_x", NOW),
        ):
            pass


def test_where_the_file_system_has_no_locks_a_run_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with alone_in(tmp_path):
        pass
