"""Files that are whole: written aside, synced, then renamed. At any moment there is the old one or the new one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

ASIDE = ".writing"  # one name for all files of a folder: what a killed process left is used again, not left for ever


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
