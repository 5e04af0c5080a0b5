"""A folder of derived files, named by a hash of everything that determines them: it is whole, or it is not there."""

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minillm.errors import UserError
from minillm.failures import FULL

MANIFEST = "manifest.json"
BUILDING = f".building-{socket.gethostname()}-"


def cached(key: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """The folder that `build(folder)` has filled for this `key`, now or earlier.

    `build` works in a temporary folder that is renamed when it is complete: a reader never sees half of it, and of two
    processes that build the same one, both go on with what the first to finish has published. A folder that lost
    a file, or has one of the wrong size, is built again.

    Args:
        key: plain values, hashed as JSON; must name everything that the files depend on.

    Raises UserError where the cache cannot be written, or has no room.
    """
    root = Path(os.environ.get("MINILLM_CACHE") or "~/.cache/minillm").expanduser().absolute()
    folder = root / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    if _is_whole(folder):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_left_over(root)
        workplace = TemporaryDirectory(prefix=f"{BUILDING}{os.getpid()}-", dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write the cache folder {root} ({error.strerror}); "
            "set the environment variable MINILLM_CACHE to a folder that you may write"
        ) from error
    with workplace as name:
        fresh = Path(name) / "fresh"
        try:
            fresh.mkdir()
            build(fresh)
            sizes = {path.name: path.stat().st_size for path in fresh.iterdir()}
            (fresh / MANIFEST).write_text(json.dumps({"key": key, "sizes": sizes}, indent=2))
            _publish(fresh, folder, aside=Path(name) / "damaged")
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise UserError(
                f"the cache folder {root} has no room for the corpus ({os.strerror(error.errno)}): make room, or set "
                "the environment variable MINILLM_CACHE to a folder on another disk"
            ) from error
    return folder


def remove_left_over(root: Path) -> None:
    """What a process of this machine was building when it was killed."""
    if os.name == "nt":  # signal 0 is Ctrl-C there, and no question
        return
    for place in root.glob(f"{BUILDING}*"):
        try:
            os.kill(int(place.name.removeprefix(BUILDING).partition("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(place, ignore_errors=True)
        except (OSError, ValueError):  # somebody else's process, or not a name of ours
            continue


def _is_whole(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / MANIFEST).read_text())["sizes"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError):
        return False


def _publish(fresh: Path, folder: Path, aside: Path) -> None:
    if not _is_whole(folder):
        with suppress(FileNotFoundError):
            folder.rename(aside)
    try:
        fresh.rename(folder)
    except OSError:  # the folder is there: another process was faster
        if not _is_whole(folder):
            raise
