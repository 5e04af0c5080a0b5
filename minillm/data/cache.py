"""A folder of derived files, named by a hash of everything that determines them: it is whole, or it is not there."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from minillm.errors import UserError

MANIFEST = "manifest.json"


def cached(key: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """The folder that `build(folder)` has filled for this `key`, now or earlier.

    `build` works in a temporary folder that is renamed when it is complete: a reader never sees half of it, and of two
    processes that build the same one, both go on with what the first to finish has published. A folder that lost
    a file, or has one of the wrong size, is built again.

    Args:
        key: plain values, hashed as JSON; must name everything that the files depend on.
    """
    root = Path(os.environ.get("MINILLM_CACHE") or "~/.cache/minillm").expanduser().absolute()
    folder = root / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    if _is_whole(folder):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        workplace = TemporaryDirectory(prefix=".building-", dir=root, ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write the cache folder {root} ({error.strerror}); "
            "set the environment variable MINILLM_CACHE to a folder that you may write"
        ) from error
    with workplace as name:
        fresh = Path(name) / "fresh"
        fresh.mkdir()
        build(fresh)
        sizes = {path.name: path.stat().st_size for path in fresh.iterdir()}
        (fresh / MANIFEST).write_text(json.dumps({"key": key, "sizes": sizes}, indent=2))
        _publish(fresh, folder, aside=Path(name) / "damaged")
    return folder


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
