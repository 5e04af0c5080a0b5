"""What needs a GPU, on made-up figures: whose kernel it is, how many programs fit, and that all of it is shown."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.resources import Resources
from minillm import compose
from minillm.bench.timing import Summary
from minillm.explain.as_json import to_json
from minillm.explain.card import H200
from minillm.explain.measure import PASSES, DeviceKernel, by_pass, times
from minillm.explain.plan import make_plan
from minillm.explain.plot import save_plot
from minillm.explain.report import markdown
from minillm.explain.results import Explained, Explanation, Found
from minillm.explain.step import WholeStep, whole_steps
from minillm.explain.subjects import subjects
from minillm.waterfall.account import account


def event(category: str, name: str, start: float, length: float, **args: Any) -> dict[str, Any]:
    return {"cat": category, "name": name, "ts": start, "dur": length, "tid": args.pop("thread", 1), "args": args}


def test_a_kernel_belongs_to_the_pass_that_launched_it() -> None:
    """Backward's comes from another thread, and runs after its mark has closed."""
    events = [
        event("user_annotation", "pass: forward", 0, 10),
        event("user_annotation", "pass: backward", 20, 10),
        event("cuda_runtime", "cudaLaunchKernel", 5, 1, correlation=1),
        event("cuda_driver", "cuLaunchKernelEx", 25, 1, correlation=2, thread=2),
        {"cat": "kernel", "name": "later", "ts": 40, "dur": 3, "args": {"correlation": 2, "grid": [132, 1, 1]}},
        {"cat": "kernel", "name": "first", "ts": 30, "dur": 2, "args": {"correlation": 1, "block": [32, 4, 1]}},
        {"cat": "kernel", "name": "somebody else's", "ts": 31, "dur": 2, "args": {"correlation": 3}},
    ]
    found = by_pass(events)
    assert [(k.name, k.threads) for k in found["forward"]] == [("first", 128)]
    assert [(k.name, k.grid) for k in found["backward"]] == [("later", (132, 1, 1))]


def test_times_that_hold_host_time_are_noted_beside_what_is_noted_already() -> None:
    def measure(prepare: Callable[[], Any], call: Callable[[Any], object]) -> tuple[float, bool]:
        call(prepare())
        return 0.5, False

    plan = make_plan(["norm=eager,torch", "shape=2x3x32"])
    (subject,) = subjects(plan.config, "norm", plan.shape, torch.float32)
    functions = {name: subject.build(config) for name, config in plan.configs.items()}
    found = {"eager": Found("eager"), "torch": Found("torch", "not counted")}
    took = times(functions, subject.draw(torch.device("cpu")), SimpleNamespace(measure=measure), found)
    assert took["backward"]["torch"].median == 0.5
    host = "it makes the host wait for the device, so its times hold host time too"
    assert [one.note for one in found.values()] == [host, f"not counted; {host}"]


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs"),
    [
        (32, 0, 4, 16),  # 64 warps are all that an SM holds
        (32, 0, 1, 32),  # and 32 programs
        (64, 0, 8, 4),  # 64 x 32 x 8 registers a program: a quarter of 65536
        (255, 0, 8, 1),
        (32, 100 * 1024, 4, 2),  # of 228 KiB
    ],
)
def test_an_sm_holds_what_the_occupancy_calculator_says(registers: int, shared: int, warps: int, programs: int) -> None:
    taken = Resources(registers, 0, shared)
    assert H200.programs_per_sm(taken, warps) == programs
    assert H200.in_flight(10, taken, warps) == 10
    assert H200.in_flight(10**6, taken, warps) == 132 * programs


@pytest.fixture
def measured() -> Explanation:
    """eager and triton at a model's shape: a layer alone 3 and 1 ms each way, then with the addition 4 and 2."""
    plan = make_plan(["experiment=norm_110m", "norm=eager,triton"])
    explanation = Explanation(plan, "command", {"torch": "2"}, H200, measured=True, roof=4000.0)
    kernels = {d: [DeviceKernel("vectorized_elementwise_kernel", 3.0, (6, 1, 1), 128, 40)] for d in PASSES}
    for number, subject in enumerate(subjects(plan.config, "norm", None, torch.bfloat16)):
        times = {"eager": 3.0 + number, "triton": 1.0 + number}
        found = [
            Found(name, ms=dict.fromkeys(PASSES, Summary(ms, ms, ms, 9)), kernels=kernels) for name, ms in times.items()
        ]
        explanation.layers.append(Explained(subject, found))
    parts = {"matmul: mlp": 10.0, "norm": 5.0}
    explanation.steps = [WholeStep("norm=eager", 16.0, parts, account(parts, 8 * 10**9, 4000.0, 1.0))]
    return explanation


def test_the_prediction_is_from_the_measured_times(measured: Explanation) -> None:
    prediction = measured.prediction()
    assert prediction is not None and prediction.source == "measured"
    assert prediction.layer_ms == {"norm=eager": 1 * 6 + 24 * 8, "norm=triton": 1 * 2 + 24 * 4}
    assert prediction.saved_ms["norm=triton"] == 100


def test_one_that_failed_is_not_predicted_and_the_others_are(measured: Explanation) -> None:
    measured.layers[1].found[1].ms.clear()
    prediction = measured.prediction()
    assert prediction is not None and list(prediction.layer_ms) == ["norm=eager"]


def test_times_kernels_and_the_waterfall_are_shown(measured: Explanation, tmp_path: Path) -> None:
    text = markdown(measured)
    assert "recorded" not in text.partition("## RMSNorm")[0].replace("L2 not recorded", "")
    assert f"{4 * 32 * 1024 * 768 / 3.0e6 / 4000:.2f}" in text  # of the roof
    assert "`vectorized_elementwise_kernel`" in text
    assert "| the rest: waste                        | 4.00 " in text  # 5 of norm and 1 idle, less 2 of traffic
    assert to_json(measured)["steps"][0]["waste"] == 4.0
    assert save_plot(tmp_path / "plot.png", measured) == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is asked for more than a test's time")
def test_a_whole_step_is_taken_apart_and_one_that_fails_is_left_out() -> None:
    typed = ["layers=eager", "data.sequence_length=32", "batch.micro=2", "trainer.precision=32-true"]
    (config,) = compose.check(compose.read(typed))
    broken = config.model_copy(update={"batch": None})
    told: list[str] = []
    steps = whole_steps("norm", {"eager": config, "broken": broken}, torch.device("cpu"), 100.0, told.append)
    assert [step.name for step in steps] == ["norm=eager"]
    assert steps[0].parts["norm"] > 0
    assert steps[0].account.unattributed < 0.5
    assert any("norm=broken: no whole step" in line for line in told)
