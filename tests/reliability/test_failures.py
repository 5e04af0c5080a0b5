"""What runs out or dies outside of the program is told in a sentence, with what to do about it."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning import Trainer

from minillm import hardware, requirements
from minillm.data.packing import Batch, Blocks
from minillm.errors import UserError
from minillm.model import Llama
from tests.reliability.conftest import Run
from tests.training.conftest import make_config


def test_out_of_gpu_memory_says_what_to_lower_with_the_figures(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Llama, tokens: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")

    monkeypatch.setattr(Llama, "forward", full)
    with pytest.raises(
        UserError, match=r"Tried to allocate 2.00 GiB.\): lower batch.micro=4 .* no checkpoint yet"
    ) as told:
        run()
    assert "\n" not in str(told.value)
    assert "data.sequence_length=16" in str(told.value)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", str(told.value))


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_a_worker_that_dies_is_named_and_nobody_waits_for_it(
    run: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Callable[[Blocks, list[int]], Batch] = Blocks.__getitem__
    main = os.getpid()

    def dies(self: Blocks, numbers: list[int]) -> Batch:
        if os.getpid() != main and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "raised":
            raise OSError(5, "Input/output error", "train.arrow")
        return read(self, numbers)

    monkeypatch.setattr(Blocks, "__getitem__", dies)
    expected = {
        "killed": r"reads the data has died \(DataLoader worker .* data.num_workers=1",
        "raised": "Input/output",
    }
    with pytest.raises((UserError, OSError), match=expected[how]):
        run({"data.num_workers": 1})


def test_a_run_that_takes_no_step_has_failed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "fit", lambda *arguments, **options: None)
    with pytest.raises(UserError, match="no step was taken"):
        run()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_gpu_that_cannot_be_used_is_told_apart_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", too_old)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for there, reason in (
        (None, "has no NVIDIA GPU"),
        ("/usr/bin/nvidia-smi", r"cannot be used \(The NVIDIA driver .*\)"),
    ):
        monkeypatch.setattr(hardware.shutil, "which", lambda name, there=there: there)
        monkeypatch.setattr(hardware.Path, "exists", lambda path: False)
        with pytest.raises(UserError, match=f"trainer.accelerator=gpu, but .*{reason}; without it use trainer=cpu"):
            requirements.check(make_config({"trainer.accelerator": "gpu"}))
