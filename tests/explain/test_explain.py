"""The command: its tables, its files, and what it predicts."""

import json
import re
import subprocess
import sys

import pytest

from minillm.explain import recorded
from tests.explain.conftest import Done, on_a_cpu

pytestmark = pytest.mark.process
FORWARD_KERNELS = {"textbook": 6, "eager": 8, "triton_simple": 1, "triton": 1}


@on_a_cpu
def test_the_simple_kernel_has_a_program_a_row_and_the_fast_one_several_rows_a_program(example: Done) -> None:
    (layer,) = example.json["layers"]
    forward = {name: found["counted"]["forward"] for name, found in layer["implementations"].items()}
    assert {name: len(one["launches"]) for name, one in forward.items()} == FORWARD_KERNELS
    simple, fast = (forward[name]["launches"][0] for name in ("triton_simple", "triton"))
    assert (simple["grid"], simple["in_flight"]) == ([6], 6)
    assert (fast["grid"], fast["constants"]["BLOCK_M"]) == ([2], 4)
    assert simple["registers"] > 0 and simple["stack"] == 0


@on_a_cpu
def test_the_claims_have_their_numbers(example: Done) -> None:
    claims = {claim["claim"]: claim["found"] for claim in example.json["claims"]}
    found = "\n".join(claims.values())
    for number in ("6: pow, mean, add, rsqrt, mul, mul", "7 tensors against 2: 71%", "grid (6,)", "5 boundaries"):
        assert number in found
    assert "at most 6 of 132 SMs" in found
    assert "quack (CuTe) 0.99" in found


@on_a_cpu
def test_every_row_has_its_program(example: Done) -> None:
    assert "* program 4: x[1, 1], bytes 4096 to 5119" in example.printed
    assert "* program 1: rows 4 to 5, 2 masked" in example.printed


@on_a_cpu
def test_the_walk_sets_the_intermediates_of_eager_beside_none_and_the_fast_kernel_beside_the_simple(
    example: Done,
) -> None:
    """Made on the way: each but the last operation's result, fp32 or bf16; of the kernels rstd, for backward."""
    walk = example.printed.partition("## Program by program")[2].partition("\n## ")[0]
    tensor, row = 6 * 512, 6
    textbook, eager = 2 * tensor * 2 + 3 * row * 2, 3 * tensor * 4 + 3 * row * 4 + tensor * 2
    table = [[cell.strip() for cell in line.split("|")[1:5]] for line in walk.splitlines() if line.startswith("| ")]
    assert table[1:] == [
        ["textbook", "6", "5", str(textbook)],
        ["eager", "8", "7", str(eager)],
        ["triton_simple", "1", "1", str(4 * row)],
        ["triton", "1", "1", str(4 * row)],
    ]
    assert "work for 6 of its 132 SMs, `triton` for 2" in walk
    loads = re.search(r"`triton_simple`, which load (\d+) KiB, or \d+ of `triton`, (\d+) KiB\.", walk)
    assert loads and int(loads[1]) < int(loads[2])
    assert "* rms_norm_backward: grid (132,) on 8 warps" in walk
    assert f"132 parts, {132 * 512 * 4} bytes" in walk


@on_a_cpu
def test_without_a_gpu_nothing_is_timed_and_figures_are_said_to_be_recorded(example: Done) -> None:
    found = example.json
    assert not found["measured"] and found["predicted"] is None and found["steps"] == []
    assert all(not one["ms"] for layer in found["layers"] for one in layer["implementations"].values())
    lines = [line for line in example.printed.splitlines() if "copy roof" in line or ": ms" in line]
    assert lines and all("recorded" in line for line in lines)


@on_a_cpu
def test_kernels_that_cannot_be_counted_are_said_to_be(of_model: Done) -> None:
    one = of_model.json["layers"][0]["implementations"]["torch"]
    assert one["counted"] == {} and "on a GPU" in one["note"]


@on_a_cpu
def test_what_a_choice_saves_is_its_times_difference_times_how_often_it_runs(of_model: Done) -> None:
    rows = {r["name"]: r for r in recorded.table()["rows"] if (r["rows"], r["width"]) == (32768, 768)}
    took = {name: rows[name]["forward"][0] + rows[name]["backward"][0] for name in ("eager", "torch", "triton")}
    predicted = of_model.json["predicted"]
    assert predicted["layer_ms"] == {f"norm={name}": pytest.approx(25 * ms) for name, ms in took.items()}
    assert predicted["saved_ms"]["norm=triton"] == pytest.approx(25 * (took["eager"] - took["triton"]))
    assert predicted["source"].startswith("recorded")


def test_the_plot_and_the_tables_are_files_and_a_run_of_wandb(example: Done) -> None:
    assert (example.folder / "explain.png").stat().st_size > 10_000
    assert (example.folder / "explain.md").read_text() in example.printed
    (file,) = example.folder.glob("wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    logged = [record["history"]["item"] for record in map(json.loads, lines) if record["type"] == "history"]
    assert {"explain/table", "explain/plot"} <= {key.split(".")[0] for item in logged for key in item}


@pytest.mark.gpu
def test_on_a_gpu_the_profiler_sees_what_was_counted(example: Done) -> None:
    for name, found in example.json["layers"][0]["implementations"].items():
        assert set(found["ms"]) == {"forward", "backward"}
        for direction, passed in found["counted"].items():
            launches, kernels = passed["launches"], found["kernels"][direction]
            ours = [(one["name"], one["grid"][0]) for one in launches if "grid" in one]
            assert ours == [(k["name"], k["grid"][0]) for k in kernels if k["name"] in dict(ours)]
            if name.startswith("triton") and direction == "forward":
                assert len(kernels) == len(launches) == 1
