"""The loss as the benchmark's operator: its cases, its traffic by hand, and that faults of others are found."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kernels import reference
from minillm.bench import passes
from minillm.bench.cli import main
from minillm.bench.config import parse
from minillm.bench.linear_cross_entropy import LinearCrossEntropy
from minillm.bench.plot import save_plot
from minillm.bench.report import markdown, verdicts
from minillm.bench.roofs import Roof
from minillm.bench.runner import Results, check_case, choose, line, time_case
from minillm.bench.timing import Summary
from minillm.errors import UserError
from tests.bench.broken import Scaled
from tests.bench.test_report import MadeUpClock


def op(*arguments: str) -> LinearCrossEntropy:
    return LinearCrossEntropy(parse(["op=linear_cross_entropy", *arguments]))


def weight_gradient_1_percent_off(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return reference.linear_cross_entropy(hidden, Scaled.apply(weight, 1.01), targets, reduction="sum")


def test_the_real_sizes_are_those_of_the_models() -> None:
    labels = [case.label for case in op("sizes=real").cases()]
    assert labels == ["16384 x 384 x 4096", "32768 x 768 x 32000", "16384 x 2048 x 128256"]
    assert [case.label for case in op("width=128256", "rows=64").cases()] == ["64 x 2048 x 128256"]
    assert op().cases()[-3:] == op("sizes=real").cases()


def test_traffic_is_both_inputs_and_both_gradients_once() -> None:
    (case,) = op("width=4096", "rows=10").cases()
    assert op().traffic(case) == {"forward+backward": 2 * (10 + 4096) * 384 * 2 + 2 * 10 * 4}


def test_both_passes_are_one_call_without_preparation() -> None:
    operator = op("width=50", "rows=10", "dtype=fp32")
    (case,) = operator.cases()
    inputs = operator.draw(case, torch.device("cpu"))
    prepare, call = passes.calls(operator.reference, inputs)["forward+backward"]
    assert [gradient.shape for gradient in call(prepare())] == [(10, 768), (50, 768)]


@pytest.mark.parametrize("typed", ["out_dtype=bf16", "residual=true", "pass=forward", "check=true"])
def test_an_option_that_means_nothing_here_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="op=linear_cross_entropy takes no " + typed.partition("=")[0]):
        op(typed)


def test_a_run_checks_every_implementation_and_finds_a_fault(tmp_path: Path) -> None:
    broken = "tests.bench.test_linear_cross_entropy:weight_gradient_1_percent_off"
    implementations = f"impl=eager,torch,triton,{broken}"
    assert (
        main(["op=linear_cross_entropy", implementations, "width=300", "rows=64", "dtype=fp32", f"out={tmp_path}"]) == 0
    )
    rows = {row["name"]: row for row in json.loads((tmp_path / "bench.json").read_text())["rows"]}
    assert rows["eager"]["status"] == rows["triton"]["status"] == "ok"
    assert rows["torch"]["status"] in ("ok", "missing")
    assert rows[broken]["status"] == "wrong"
    assert rows[broken]["note"].startswith("dW: relative error 0.01")


def test_both_passes_together_get_one_table_one_verdict_and_one_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "extra_bytes", lambda call, state, inputs: (2**20, 0))
    operator = op("width=50", "rows=10", "dtype=fp32")
    (case,) = operator.cases()
    chosen = choose(operator, ("eager", "triton"))
    results = Results(operator, chosen, roof=Roof(8.0, Summary(1.0, 1.0, 1.0, 3)))
    results.rows, functions = check_case(results, case, torch.device("cpu"))
    rows = {row.name: row for row in results.rows}
    time_case(operator, case, rows, functions, operator.config.passes, MadeUpClock(), results.roof)  # type: ignore[arg-type]
    assert results.passes == ["forward+backward"]
    assert markdown(results, "command", {}).count("## Forward+backward, ms") == 1
    assert verdicts(results) == [
        "10 x 768 x 50 forward+backward: triton 0.50 ms, best peer eager 0.50 ms: 1.000x"  # no part of a roof: a matmul
    ]
    assert line(case, results.rows) == "10 x 768 x 50: eager 0.50 ms, triton 0.50 ms"
    pytest.importorskip("matplotlib")
    assert save_plot(tmp_path / "bench.png", results) == ""


@pytest.mark.gpu
def test_a_run_times_both_passes_together(tmp_path: Path) -> None:
    arguments = ["op=linear_cross_entropy", "impl=eager,eager_narrow,triton", "width=32000", "rows=4096"]
    assert main([*arguments, f"out={tmp_path}"]) == 0
    content = json.loads((tmp_path / "bench.json").read_text())
    assert all(row["passes"].keys() == {"forward+backward"} for row in content["rows"])
    extra = {row["name"]: row["passes"]["forward+backward"]["extra"] for row in content["rows"]}
    assert extra["triton"] < extra["eager"] / 2
    assert len(content["verdicts"]) == 1
