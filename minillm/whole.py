"""Files that are whole: written aside, synced, then renamed. At any moment there is the old one or the new one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from minillm.errors import UserError

LOCK = ".training"  # holds the number of the process that trains in the folder
ASIDE = ".writing"  # one name for all files of a folder: what a killed process left is used again, not left for ever


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """In the block no other process trains in `folder`. Raises UserError, with its number, if one does already.

    A lock of the system's, which ends with the process however it dies. Where there is none (Windows): nothing.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise UserError(
                f"process {file.read().strip()} is training in {folder}: wait for its end, or type hydra.run.dir=DIR"
            ) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def whole_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """A new file that takes `path`'s place when the block ends; text is UTF-8, its line ends are as written.

    An error in the block leaves what was there. Raises OSError, `path` its filename, for what cannot be written.
    """
    aside = path.with_name(ASIDE)
    text = {"encoding": "utf-8", "newline": ""} if mode == "w" else {}
    try:
        aside.unlink(missing_ok=True)  # it may be another name of a file that is in use (see link)
        with aside.open(mode, **text) as file:  # type: ignore[call-overload]
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync(path.parent)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise


def link(path: Path, name: Path) -> None:
    """Make `name` another name of the file `path`: a hard link, no bytes of its own, whole after `path` has gone."""
    aside = name.with_name(ASIDE)
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:  # a file system without hard links
        with path.open("rb") as source, whole_file(name, "wb") as copy:
            shutil.copyfileobj(source, copy)
    else:
        os.replace(aside, name)
        sync(name.parent)


def sync(folder: Path) -> None:
    """Make the names in `folder` last, as fsync does the content of a file. Where folders cannot be synced: nothing."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
