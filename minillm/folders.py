"""Folders of runs: the one that was meant, a new one for a process alone, and one process at a time in each."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from minillm.errors import UserError, reading

RUNS = Path(__file__).resolve().parents[1] / "runs"
CHECKPOINT = "checkpoints/*.ckpt"  # in a run's folder
LOCK = ".training"  # names the process that trains in the folder


def run_folder(word: str, which: str) -> Path:
    """The folder that `resume=` or `run=` (the word) means by `last` or a path. Raises UserError if it holds no run."""
    folder = newest_run(word) if which == "last" else Path(which).expanduser().resolve()
    with reading(folder, instead="get the permission, or copy it"):
        whole = (folder / "config.yaml").is_file() and list(folder.glob(CHECKPOINT))
    if not whole:
        raise UserError(f"{word}={which}: {folder} is no run's folder with config.yaml and {CHECKPOINT}")
    return folder


def newest_run(word: str) -> Path:
    """The folder of the run that wrote the newest checkpoint under runs/."""
    checkpoints = [path for path in RUNS.glob(f"**/{CHECKPOINT}") if path.exists()]  # no links to nowhere
    if not checkpoints:
        raise UserError(f"{word}=last: no run under {RUNS} has a checkpoint; type {word}=DIR for a run elsewhere")
    return max(checkpoints, key=lambda path: path.stat().st_mtime).parents[1]


def own_folder(wanted: str | Path) -> Path:
    """Make `wanted`; if it is there already, the first of `wanted`_2, `wanted`_3, ... that is not.

    Of two processes that want one name in the same moment each gets a folder of its own. Raises OSError where none can
    be made.
    """
    folder, number = Path(wanted), 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{Path(wanted).name}_{number}")


def check_writable(folder: Path, instead: str) -> None:
    """Raise UserError, with what to do instead, for a folder that cannot be written to, or made."""
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # no error in a locked one
    if not there.is_dir() or not os.access(there, os.W_OK):
        begin = "" if there == folder else f"{folder} cannot be made, "
        raise UserError(f"{begin}{there} is no folder that you may write to: {instead}")


@contextmanager
def results_folder(typed: str | Path | None, label: str, now: datetime) -> Iterator[Path]:
    """Where a measurement's results go: the folder that was typed, else `runs/<date>/<time>_<label>` or one beside it
    of its own, which is left behind if something was written. Raises UserError where there can be none."""
    if typed == "":
        raise UserError("hydra.run.dir= names no folder: type hydra.run.dir=DIR, or leave it out")
    if typed is not None:
        folder = Path(typed).expanduser().resolve()
        check_writable(folder, "type hydra.run.dir=DIR, or leave it out")
        yield folder
        return
    try:
        folder = own_folder(RUNS / f"{now:%Y-%m-%d}" / f"{now:%H-%M-%S}_{label}")
    except OSError as error:
        raise UserError(f"{error.filename} cannot be made ({error.strerror}): type hydra.run.dir=DIR") from error
    try:
        yield folder
    finally:
        with suppress(OSError):  # not empty
            folder.rmdir()


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """In the block no other process trains in `folder`. Raises UserError, which names it, if one does already.

    A lock of the system's, which ends with the process however it dies, and is not its children's. Where there is none
    (Windows, some network file systems): nothing.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise UserError(
                f"process {file.read().strip()} is training in {folder}: wait for its end, or choose another folder"
            ) from error
        except OSError:  # a file system without locks
            pass
        file.truncate(0)
        file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
