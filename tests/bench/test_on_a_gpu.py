"""What only a device can show: host time is told from device time, memory is counted, a run gives a verdict."""

import json
from pathlib import Path

import pytest
import torch

from minillm.bench.cli import main
from minillm.bench.roofs import extra_bytes
from minillm.bench.timing import DeviceClock

pytestmark = pytest.mark.gpu


def test_a_call_that_is_queued_while_the_device_waits_is_free_of_host_time() -> None:
    x = torch.ones(2**20, device="cuda")
    assert DeviceClock(x.device).measure(lambda: None, lambda _: x.sin())[1]


def test_a_call_that_makes_the_host_wait_is_seen() -> None:
    x = torch.ones(2**20, device="cuda")
    assert not DeviceClock(x.device).measure(lambda: None, lambda _: x.sum().item())[1]


def test_extra_memory_is_what_is_neither_input_nor_result() -> None:
    mebibyte = torch.ones(2**18, device="cuda")
    kept: list[torch.Tensor] = []

    def call(x: torch.Tensor) -> tuple[torch.Tensor]:
        kept.append(x + 1)  # 1 MiB stays
        return ((x + 2).mul_(x + 3),)  # 1 MiB on the way, 1 MiB is the result

    assert extra_bytes(call, mebibyte, []) == (2 * 2**20, 2**20)


@pytest.mark.parametrize("residual", ["false", "true"])
def test_a_run_times_both_passes_and_gives_a_verdict(tmp_path: Path, residual: str) -> None:
    arguments = ["op=rms_norm", "impl=eager,torch,triton", "width=1024", "rows=4096", f"residual={residual}"]
    assert main([*arguments, f"out={tmp_path}"]) == 0
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["status"] for row in content["rows"]] == ["ok"] * 3
    assert all(row["passes"].keys() == {"forward", "backward"} for row in content["rows"])
    assert len(content["verdicts"]) == 2
    names = {"eager", "torch", "triton"}
    assert {way: times.keys() for way, times in content["host_us"].items()} == {"eager": names, "torch.compile": names}
    assert content["roof"]["gb_per_second"] > 0


def test_a_norm_class_of_somebody_else_passes_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op=rms_norm", "impl=tests.compare.planted:Plain", "check=true"]) == 0, capsys.readouterr().out
