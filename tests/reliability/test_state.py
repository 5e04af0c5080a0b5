"""State that has gone wrong is not saved, not gone on with, and not written over."""

import json
import math
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm import requirements
from minillm.config import Config
from minillm.errors import UserError
from minillm.folders import LOCK, alone_in
from minillm.module import LlamaModule
from tests.reliability.conftest import Run, rows, state


def test_weights_that_are_no_longer_finite_are_not_saved_and_nothing_older_is_dropped(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run({"trainer.max_steps": 2, "checkpoint.every_steps": 1, "checkpoint.keep": 1})
    update = LlamaModule.update

    def overflows(self: LlamaModule, optimizer: Any) -> torch.Tensor:
        norm = update(self, optimizer)
        with torch.no_grad():
            self.model.embedding.weight[3, 5] = math.inf
        return norm

    monkeypatch.setattr(LlamaModule, "update", overflows)
    again = {"resume": "last", "trainer.max_steps": 4, "checkpoint.every_steps": 1, "checkpoint.keep": 1}
    with pytest.raises(UserError, match=r"finite after step 3, and were not saved; the last good .*last.ckpt"):
        run(again)
    assert state(tmp_path / "run")["global_step"] == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_validation_loss_that_is_no_number_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = LlamaModule.validation_row
    monkeypatch.setattr(LlamaModule, "validation_row", lambda self: row(self) | {"val/loss": math.nan})
    with pytest.raises(UserError, match=r"loss after step 4 is nan; the last good checkpoint is .*last.ckpt"):
        run()
    assert state(tmp_path / "run")["global_step"] == 3
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("field", "value"), [("weight_decay", 5.0), ("beta1", 0.5), ("beta2", 0.5), ("eps", 1.0), ("lr", 1.0)]
)
def test_what_is_typed_of_the_optimizer_at_a_resume_holds_and_is_said(
    run: Run, capsys: pytest.CaptureFixture[str], field: str, value: float
) -> None:
    weights = []
    for name, typed in (("as it was", {}), ("typed", {f"optim.{field}": value})):
        run({"trainer.max_steps": 2}, name)
        capsys.readouterr()
        _, folder = run({"trainer.max_steps": 4, "resume": "last"} | typed, name)
        assert (f"optim.{field}={value} from here on" in capsys.readouterr().out) == bool(typed)
        weights.append(state(folder)["state_dict"]["model.blocks.0.mlp.down.weight"])
    assert not torch.equal(*weights)


@pytest.mark.parametrize("before", ["32-true", "bf16-true"])
def test_weights_of_another_dtype_are_refused_by_name(run: Run, before: str) -> None:
    run({"trainer.max_steps": 2, "trainer.precision": before})
    now = "bf16-mixed" if before == "bf16-true" else "bf16-true"
    with pytest.raises(UserError, match=f"trainer.precision={now}, but the run to resume has {before}"):
        run({"trainer.max_steps": 4, "resume": "last", "trainer.precision": now})


def contents(folder: Path) -> dict[Path, bytes]:
    """Of a run's folder, but for the lock's."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


REFUSED = {
    "other data": {"data.synthetic_tokens": 4001},
    "another seed": {"seed": 1},
    "no steps left": {"trainer.max_steps": 1},
}


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
def test_a_resume_that_is_refused_writes_nothing(run: Run, tmp_path: Path, change: dict[str, Any]) -> None:
    run({"trainer.max_steps": 2})
    before = contents(tmp_path / "run")
    with pytest.raises(UserError):
        run({"trainer.max_steps": 4, "resume": "last"} | change)
    assert contents(tmp_path / "run") == before


def hold(folder: Path, held: Any, release: Any) -> None:
    with alone_in(folder):
        held.set()
        release.wait(60)


def test_two_processes_do_not_train_in_one_folder(run: Run, tmp_path: Path) -> None:
    run({"trainer.max_steps": 2})
    before = (tmp_path / "run" / "summary.json").read_bytes()
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "run", held, release))
    other.start()
    assert held.wait(60)
    with pytest.raises(UserError, match=f"process {other.pid} on .* is training in .*run: wait for its end, or choose"):
        run({"trainer.max_steps": 4, "resume": "last"})
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
    os.kill(other.pid or 0, 9)
    other.join()
    assert run({"trainer.max_steps": 4, "resume": "last"})[0]["status"] == "finished"  # the lock died with it


def test_a_checkpoint_that_another_process_wrote_before_the_folder_was_ours_is_noticed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its weights would go on with the data of the checkpoint before."""
    run({"trainer.max_steps": 4, "checkpoint.every_steps": 2, "checkpoint.keep": 2})
    check = requirements.check

    def meanwhile(*configs: Config) -> None:
        os.utime(tmp_path / "run" / "checkpoints" / "last.ckpt", (2e9, 2e9))
        check(*configs)

    monkeypatch.setattr(requirements, "check", meanwhile)
    before = contents(tmp_path / "run")
    with pytest.raises(UserError, match=r"another process has just gone on with .*run: type the command again"):
        run({"trainer.max_steps": 6, "resume": "last"})
    assert contents(tmp_path / "run") == before


def test_a_log_that_is_gone_is_missed(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run({"trainer.max_steps": 2})
    (tmp_path / "run" / "metrics.csv").unlink()
    run({"trainer.max_steps": 4, "resume": "last"})
    assert "metrics.csv is gone: only the rows after step 2 will be there" in capsys.readouterr().err
    assert [row["step"] for row in rows(tmp_path / "run")] == ["3", "4"]


GARBLED = {
    "no UTF-8": (lambda lines: [lines[0], b"\xff\xfe\r\n", *lines[2:]], 2),
    "another header": (lambda lines: [b"step,loss\r\n", *lines[1:]], 1),
    "no header": (lambda lines: lines[1:], 1),
    "nothing": (lambda lines: [], 1),
    "a cell too few": (lambda lines: [*lines[:2], b"2,1.0\r\n"], 3),
    "a step that is no number": (lambda lines: [*lines[:2], b"x" + lines[2]], 3),
    "a value that is no number": (lambda lines: [lines[0], lines[1].replace(b".", b"\xff", 1), lines[2]], 2),
    "no end of a line": (lambda lines: [lines[0], lines[1].replace(b".", b"\r", 1), lines[2]], 2),
}


@pytest.mark.parametrize(("garble", "line"), GARBLED.values(), ids=GARBLED)
def test_a_garbled_log_is_named_and_left_as_it_is(run: Run, tmp_path: Path, garble: Any, line: int) -> None:
    run({"trainer.max_steps": 2})
    log = tmp_path / "run" / "metrics.csv"
    log.write_bytes(b"".join(garble(log.read_bytes().splitlines(keepends=True))))
    before = contents(tmp_path / "run")
    with pytest.raises(UserError, match=f"metrics.csv, line {line}, is no line of a run's log"):
        run({"trainer.max_steps": 4, "resume": "last"})
    assert contents(tmp_path / "run") == before
