"""A checkpoint is whole or not there, and one that was damaged afterwards is passed over, by name."""

import os
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from minillm import checkpoint, resume
from minillm.errors import UserError
from minillm.module import LlamaModule
from minillm.train import train
from minillm.whole import ASIDE
from tests.reliability.conftest import Run, assert_same
from tests.training.conftest import make_config

SAVED = {"checkpoint.every_steps": 2, "checkpoint.keep": 9, "trainer.max_steps": 6}


class Code:
    """An object whose loading would call a function."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("ran",)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def deflate(path: Path) -> None:
    with zipfile.ZipFile(path) as parts:
        content = {name: parts.read(name) for name in parts.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        for name, part in content.items():
            parts.writestr(name, part)


def link_to_nowhere(path: Path) -> None:
    path.with_name("step_00000006.ckpt").unlink()
    path.unlink()
    path.symlink_to("gone.ckpt")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1000),
    "a bit flipped": flip,
    "deflated": deflate,
    "a link to nowhere": link_to_nowhere,
    "empty": lambda path: os.truncate(path, 0),
    "no checkpoint": lambda path: path.write_text("text"),
    "another file of torch's": lambda path: torch.save({"state_dict": {}}, path),
    "a list": lambda path: torch.save([1, 2], path),
    "a tensor": lambda path: torch.save(torch.ones(3), path),
    "nothing": lambda path: torch.save(None, path),
    "code": lambda path: torch.save({"global_step": 6, "config": {}, "corpus": "", "starts": [], "x": Code()}, path),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(make_config(SAVED), folder)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """The run's folder, last.ckpt and the newest being one file, as they were."""
    copy = shutil.copytree(trained, tmp_path / "run")
    for name in ("last.ckpt", "best.ckpt"):
        (copy / "checkpoints" / name).unlink()
    os.link(copy / "checkpoints" / "step_00000006.ckpt", copy / "checkpoints" / "last.ckpt")
    return copy


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_newest_is_passed_over_for_the_one_before_with_a_warning_that_names_it(
    run: Run,
    trained: Path,
    folder: Path,
    damage: Callable[[Path], object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    damage(folder / "checkpoints" / "last.ckpt")
    run(SAVED | {"resume": "last"})
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: {folder}/checkpoints/last.ckpt is damaged (")
    assert_same(trained, folder)
    assert resume.read(folder / "checkpoints" / "step_00000006.ckpt").step == 6
    assert not Path("ran").exists()


def test_a_run_without_a_whole_checkpoint_is_refused(run: Run, folder: Path) -> None:
    for path in (folder / "checkpoints").iterdir():
        os.truncate(path, 100)
    with pytest.raises(UserError, match=f"{folder} cannot be resumed: none of its checkpoints is whole"):
        run(SAVED | {"resume": "last"})


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """No file of this process can grow past `size` bytes: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_so(run: Run, trained: Path, tmp_path: Path) -> None:
    run(SAVED | {"trainer.max_steps": 2, "optim.schedule": "constant"})
    checkpoints = tmp_path / "run" / "checkpoints"
    same = SAVED | {"optim.schedule": "constant", "resume": "last"}
    with (
        files_at_most(100_000),
        pytest.raises(
            UserError,
            match=rf"step_00000004.ckpt cannot be written \(File too large\).* good .* {checkpoints}/last.ckpt",
        ),
    ):
        run(same)
    assert resume.newest(tmp_path / "run").step == 2
    assert not (checkpoints / ASIDE).exists()
    assert run(same)[0]["steps"] == 6


def test_a_folder_that_cannot_be_made_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/run/checkpoints cannot be read or written \(Not a directory\)"):
        run(name="file/run")


def test_the_one_just_written_is_kept_though_the_clock_has_gone_back(run: Run, folder: Path) -> None:
    for path in (folder / "checkpoints").iterdir():
        os.utime(path, (2**32, 2**32))
    run(SAVED | {"resume": "last", "trainer.max_steps": 8, "checkpoint.keep": 1})
    assert [path.name for path in (folder / "checkpoints").glob("step_*")] == ["step_00000008.ckpt"]


def test_every_minutes_saves_between(run: Run, tmp_path: Path) -> None:
    run(SAVED | {"checkpoint.every_steps": 100, "checkpoint.every_minutes": 1e-9})
    assert len(list((tmp_path / "run" / "checkpoints").glob("step_*"))) == 6


def test_a_checkpoint_holds_the_resolved_configuration(folder: Path) -> None:
    assert resume.newest(folder).config == make_config(SAVED).model_dump(mode="json")


@pytest.fixture
def fourth_is_best(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A run that validates every second step, the fourth being the best."""
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.0}
    monkeypatch.setattr(
        LlamaModule, "validation_row", lambda self: {"val/loss": losses[self.global_step], "val/bits_per_byte": None}
    )
    return SAVED | {"trainer.max_steps": 8, "trainer.val_every_steps": 2, "optim.schedule": "constant"}


def named_steps(folder: Path) -> dict[str, int]:
    return {name: resume.read(folder / "checkpoints" / f"{name}.ckpt").step for name in ("best", "last")}


def test_a_run_that_goes_on_knows_the_best_of_before(run: Run, fourth_is_best: dict[str, object]) -> None:
    run(fourth_is_best | {"trainer.max_steps": 4})
    _, folder = run(fourth_is_best | {"resume": "last"})
    assert named_steps(folder) == {"best": 4, "last": 8}


@pytest.mark.parametrize("name", ["best.ckpt", "last.ckpt"])
def test_killed_before_a_checkpoint_has_this_name_a_run_gives_it_anew(
    run: Run, fourth_is_best: dict[str, object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = checkpoint.link

    def killed(path: Path, other: Path) -> None:
        if (path.name, other.name) == ("step_00000004.ckpt", name):
            raise RuntimeError("killed")
        give(path, other)

    monkeypatch.setattr(checkpoint, "link", killed)
    with pytest.raises(RuntimeError, match="killed"):
        run(fourth_is_best)
    monkeypatch.setattr(checkpoint, "link", give)
    _, folder = run(fourth_is_best | {"resume": "last"})
    assert named_steps(folder) == {"best": 4, "last": 8}
