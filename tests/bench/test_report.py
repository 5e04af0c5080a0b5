"""What a run writes: on a CPU no times; with a clock (here one that makes them up), tables, verdicts and a plot."""

import json
from pathlib import Path

import pytest
import torch

from minillm.bench import passes, runner
from minillm.bench.cli import main
from minillm.bench.config import parse
from minillm.bench.op import Case, Implementation
from minillm.bench.plot import save_plot
from minillm.bench.report import markdown, save, verdicts
from minillm.bench.roofs import Roof
from minillm.bench.runner import Results, check_case, choose, make_op, time_case
from minillm.bench.timing import Summary


def test_on_a_cpu_it_checks_and_counts_and_gives_no_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is timed")
    assert main(["op=rms_norm", "impl=eager,torch", "width=64", "rows=1024", f"out={tmp_path}"]) == 0
    content, printed = json.loads((tmp_path / "bench.json").read_text()), capsys.readouterr().out
    assert [(row["name"], row["status"], row["passes"]) for row in content["rows"]] == [
        ("eager", "ok", {}),
        ("torch", "ok", {}),
    ]
    assert content["roof"] is None
    assert content["verdicts"] == []
    assert content["env"]["torch"] == torch.__version__
    assert "no times are given" in printed
    assert " ms" not in printed
    assert "GB/s" not in printed
    assert printed.splitlines()[-1] == str(tmp_path)
    assert (tmp_path / "bench.md").read_text() in printed


def test_what_was_found_is_written_after_each_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is timed")
    check = runner.check_case

    def breaks_off(results: Results, case: Case, device: torch.device) -> object:
        if case.width == 48:
            raise KeyboardInterrupt
        return check(results, case, device)

    monkeypatch.setattr(runner, "check_case", breaks_off)
    assert main(["op=rms_norm", "impl=torch", "width=64,32,48", "rows=8", f"out={tmp_path}"]) == 130
    content = json.loads((tmp_path / "bench.json").read_text())
    assert [row["case"]["width"] for row in content["rows"]] == [64, 32]


def test_a_bad_command_is_one_sentence_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["op=rms_norm", "dtype=int8"])
    assert capsys.readouterr().err == "error: dtype=int8: input should be 'bf16', 'fp16' or 'fp32'\n"


def test_a_failed_check_is_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["op=rms_norm", "impl=tests.bench.broken:zero_x_gradient", "check=true"]) == 1
    assert "dX: relative error 1" in capsys.readouterr().out


class MadeUpClock:
    """Makes the call, and says that it took half a millisecond."""

    device = torch.device("cpu")

    def measure(self, prepare, call):  # type: ignore[no-untyped-def]
        call(prepare())
        return 0.5, True


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Results:
    """One case, timed by the made-up clock: a copy roof of 8 GB/s, a missing peer and a wrong one."""
    monkeypatch.setattr(passes, "extra_bytes", lambda call, state, inputs: (2**20, 0))
    monkeypatch.setattr(runner, "ROUNDS", 3)
    names = ("eager", "torch", "tests.bench.broken:zero_x_gradient")
    op = make_op(parse(["op=rms_norm", "width=100", "rows=2500", "dtype=fp32"]))
    chosen = choose(op, names)
    chosen["gone"] = Implementation(lambda case: pytest.fail("built"), missing="gone is not installed")
    chosen["ours"] = Implementation(chosen["torch"].build, role="ours")
    found = Results(op, chosen, roof=Roof(8.0, Summary(1.0, 1.0, 1.0, 3)))
    (case,) = op.cases()
    found.rows, functions = check_case(found, case, torch.device("cpu"))
    by_name = {row.name: row for row in found.rows}
    time_case(op, case, by_name, functions, ("forward", "backward"), MadeUpClock(), found.roof)  # type: ignore[arg-type]
    return found


def test_bandwidth_is_traffic_over_the_median_and_its_share_is_of_the_roof(results: Results) -> None:
    forward = results.rows[0].passes["forward"]
    assert (forward.traffic, forward.gb_per_second, forward.of_roof) == (2_000_000, 4.0, 0.5)
    assert results.rows[0].passes["backward"].of_roof == 0.75


def test_the_verdict_leaves_out_missing_and_wrong_peers(results: Results) -> None:
    slow, fast = Summary(1.0, 1.0, 1.0, 3), Summary(0.25, 0.25, 0.25, 3)
    rows = {row.name: row for row in results.rows}
    for name, ms in (("eager", slow), ("tests.bench.broken:zero_x_gradient", fast)):
        measured = rows[name].passes["forward"]
        rows[name].passes["forward"] = runner.Measurement(ms, measured.traffic, 0.0, 0.0, 0, 0)
    assert rows["tests.bench.broken:zero_x_gradient"].status == "wrong"
    assert verdicts(results)[0] == "2500 x 100 forward: ours 0.50 of the roof, best peer torch 0.50 of the roof: 1.000x"
    del rows["torch"].passes["forward"]
    assert verdicts(results)[0] == "2500 x 100 forward: ours 0.50 of the roof, best peer eager 0.25 of the roof: 2.000x"


def test_ours_gets_no_verdict_when_it_is_wrong(results: Results) -> None:
    ours = next(row for row in results.rows if row.name == "ours")
    ours.status, ours.note = "wrong", "dW: relative error 1"
    assert verdicts(results) == ["2500 x 100: ours is wrong (dW: relative error 1), so there is no verdict"]


def test_the_table_names_the_missing_and_the_wrong(results: Results) -> None:
    text = markdown(results, "command", {"torch": "2"})
    assert "- gone is missing: gone is not installed" in text
    assert "0.50 wrong" in text
    assert "tests.bench.broken:zero_x_gradient is wrong: dX: relative error 1" in text


def test_json_markdown_and_plot_are_written(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save(tmp_path, results, parse(["op=rms_norm"]), "command", {"torch": "2"})
    assert save_plot(tmp_path / "bench.png", results) == ""
    content = json.loads((tmp_path / "bench.json").read_text())
    assert content["rows"][0]["passes"]["forward"]["ms"] == {"median": 0.5, "p10": 0.5, "p90": 0.5, "n": 3}
    assert content["rows"][0]["case"]["dtype"] == "float32"
    assert len(content["verdicts"]) == 2
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_library_that_is_not_installed_is_told_from_one_that_fails() -> None:
    from minillm.bench.peers import importable

    assert importable("no_such_library.part", "no-such-library") == "no-such-library is not installed"
    assert importable("math", "math") == ""
