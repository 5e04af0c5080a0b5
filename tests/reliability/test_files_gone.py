"""A file that a run needs and cannot have is named: it was to be read, or written, and why it could not be."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from minillm.config import Config
from minillm.data import prepare_corpus
from minillm.errors import UserError
from minillm.module import LlamaModule
from tests.data.conftest import cache as cache  # the fixtures
from tests.data.conftest import make_config as make_config
from tests.data.conftest import story
from tests.reliability.conftest import Run


def forbidden(path: Any, *how: Any) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.parametrize("file", ["train.arrow", "info.json"])
def test_a_prepared_corpus_that_cannot_be_read_is_told(
    make_config: Callable[..., Config], tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": story(i)}) + "\n" for i in range(10)))
    config = make_config([str(tmp_path / "a.jsonl")])
    folder = tmp_path / "cache" / prepare_corpus(config).info["hash"]
    (folder / file).write_bytes(bytes((folder / file).stat().st_size))  # as long as it was: not built again
    with pytest.raises(UserError, match=rf"{folder}/{file} cannot be read \(.*\): remove {folder}, it is built again"):
        prepare_corpus(config)
    monkeypatch.setattr(datasets.Dataset, "from_file", forbidden)
    with pytest.raises(UserError, match=r"train.arrow cannot be read \(Permission denied\)"):
        prepare_corpus(config)


def test_a_log_that_cannot_be_read_is_told_and_nothing_is_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = run()
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", forbidden)
        with pytest.raises(UserError, match=r"metrics.csv cannot be read \(Permission denied\)"):
            run({"resume": "last", "trainer.max_steps": 9})
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before


def test_a_folder_that_is_removed_under_a_run_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_of = LlamaModule.training_step

    def removed(self: LlamaModule, batch: dict[str, torch.Tensor], batch_idx: int) -> dict[str, Any]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return step_of(self, batch, batch_idx)

    monkeypatch.setattr(LlamaModule, "training_step", removed)
    with pytest.raises(UserError, match=r"/run/checkpoints/.* cannot be read or written \(No such file or directory\)"):
        run()
