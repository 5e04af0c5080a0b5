"""What the driver says is read as it is, and what it does not say is not guessed."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from minillm import nvidia_smi


@pytest.mark.parametrize(("listed", "others"), [(["10", "11"], 0), (["10", "11", "99"], 1), ([], None), (None, None)])
def test_processes_on_the_gpu_are_counted(
    monkeypatch: pytest.MonkeyPatch, listed: list[str] | None, others: int | None
) -> None:
    monkeypatch.setattr(nvidia_smi, "nvidia_smi", lambda gpu, query: listed)
    assert nvidia_smi.other_processes("GPU-1", ours=2) == others


@pytest.mark.parametrize(
    ("answer", "state"),
    [(["1980, 650.25, 61"], (1980.0, 650.25, 61.0)), (["1980, [N/A], 61"], (1980.0, None, 61.0)), (None, (None,) * 3)],
)
def test_the_driver_may_leave_things_out(
    monkeypatch: pytest.MonkeyPatch, answer: list[str] | None, state: tuple
) -> None:
    monkeypatch.setattr(nvidia_smi, "nvidia_smi", lambda gpu, query: answer)
    assert nvidia_smi.gpu_state("GPU-1") == state


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", "")
    assert nvidia_smi.nvidia_smi("GPU-1", "--query-gpu=power.draw") is None


@pytest.mark.parametrize(("listed", "warned"), [(["1"], False), (["1", "2", "3"], True), ([], False), (None, False)])
def test_a_run_beside_others_is_warned_of_them(
    monkeypatch: pytest.MonkeyPatch, listed: list[str] | None, warned: bool
) -> None:
    monkeypatch.setattr(nvidia_smi, "this_gpu", lambda: "GPU-1")
    monkeypatch.setattr(nvidia_smi, "nvidia_smi", lambda gpu, query: listed)
    said = nvidia_smi.disturbance()
    assert (said or "").startswith("2 other process(es) on the GPU") == warned == (said is not None)


@pytest.mark.gpu
def test_a_run_says_so_at_its_end(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvidia_smi, "nvidia_smi", lambda gpu, query: ["1", "2"])
    run({"trainer.accelerator": "gpu"})
    assert "1 other process(es) on the GPU" in capsys.readouterr().out
