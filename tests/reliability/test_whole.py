"""A file is the old one or the new one at any moment, and the new one is on the disk before it has the name."""

import os
from pathlib import Path

import pytest

from minillm.whole import link, whole_file


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole_file(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(f"half {1 / 0}")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_synced_before_the_name_is_given_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(name: str) -> None:
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *arguments: (done.append(name), call(*arguments))[1])

    noted("fsync")
    noted("replace")
    with whole_file(tmp_path / "file") as file:
        file.write("text")
    assert done == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("hard_links", [True, False])
def test_another_name_takes_the_place_of_an_old_one_and_outlives_the_first(
    tmp_path: Path, hard_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not hard_links:
        monkeypatch.setattr(os, "link", refused)
    path, name = tmp_path / "file", tmp_path / "name"
    path.write_text("new")
    name.write_text("old")
    link(path, name)
    path.unlink()
    assert name.read_text() == "new"
    assert list(tmp_path.iterdir()) == [name]
