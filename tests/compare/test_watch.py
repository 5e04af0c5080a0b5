"""What others do on the machine is seen, and what cannot be seen is not guessed."""

import os
import time

import pytest

from minillm.compare import watch


def test_our_own_work_is_not_that_of_others() -> None:
    before = watch.cpu_seconds([])
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = watch.cpu_seconds([])
    if before is None or after is None:
        pytest.skip("/proc does not tell")
    elapsed, busy, ours = (new - old for new, old in zip(after, before, strict=True))
    assert ours >= 0.25 and busy >= 0.25 and elapsed >= 0.25


@pytest.mark.parametrize(("listed", "others"), [(["10", "11"], 0), (["10", "11", "99"], 1), ([], None), (None, None)])
def test_processes_on_the_gpu_are_counted(
    monkeypatch: pytest.MonkeyPatch, listed: list[str] | None, others: int | None
) -> None:
    monkeypatch.setattr(watch, "nvidia_smi", lambda gpu, query: listed)
    assert watch.other_processes("GPU-1", ours=2) == others


@pytest.mark.parametrize(
    ("answer", "state"),
    [(["1980, 650.25, 61"], (1980.0, 650.25, 61.0)), (["1980, [N/A], 61"], (1980.0, None, 61.0)), (None, (None,) * 3)],
)
def test_the_driver_may_leave_things_out(
    monkeypatch: pytest.MonkeyPatch, answer: list[str] | None, state: tuple
) -> None:
    monkeypatch.setattr(watch, "nvidia_smi", lambda gpu, query: answer)
    assert watch.gpu_state("GPU-1") == state


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PATH", "")
    assert watch.nvidia_smi("GPU-1", "--query-gpu=power.draw") is None
