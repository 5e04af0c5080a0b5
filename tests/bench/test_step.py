"""The step's benchmark: the baseline is the same model, a failure stays alone, all of it runs without a GPU."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minillm.bench.cli import main
from minillm.bench.config import read
from minillm.bench.step import runner
from minillm.bench.step.config import StepConfig
from minillm.bench.step.report import markdown, to_json
from minillm.bench.step.results import Results, Variant
from minillm.bench.step.variants import build, compose_config, plain_model
from minillm.build import build_model
from minillm.errors import UserError

on_a_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is asked for more than a test's time")


def test_the_baseline_is_the_same_function_as_our_model() -> None:
    config = compose_config("tiny", "eager", "auto")
    model, loss = build_model(config)
    plain = plain_model(config)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(4)  # so that attention is far from uniform, and positions count
        for theirs, block in zip(plain.blocks, model.blocks, strict=True):
            packed = [linear.weight for linear in (theirs.attention.q, theirs.attention.k, theirs.attention.v)]
            block.attention.qkv.weight.copy_(torch.cat(packed))
            block.attention.out.weight.copy_(theirs.attention.o.weight)
            block.mlp.gate_up.weight.copy_(torch.cat([theirs.mlp.gate.weight, theirs.mlp.up.weight]))
            block.mlp.down.weight.copy_(theirs.mlp.down.weight)
            block.attention_norm.weight.copy_(theirs.attention_norm.weight)
            block.mlp_norm.weight.copy_(theirs.mlp_norm.weight)
        model.final_norm.weight.copy_(plain.norm.weight)
        model.embedding.weight.copy_(plain.embedding.weight)
        model.lm_head.weight.copy_(plain.head.weight)
    tokens = torch.randint(512, (2, 65))
    ours = loss(model(tokens[:, :-1]), model.lm_head.weight, tokens[:, 1:]) / 128
    theirs = plain(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(theirs, ours)
    gradients = [torch.autograd.grad(value, m.embedding.weight)[0] for value, m in ((theirs, plain), (ours, model))]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    ("name", "layers"), [("fused", {"triton"}), ("eager", {"eager"}), ("mlp", {"eager", "triton"})]
)
def test_a_name_is_a_configuration_of_train(name: str, layers: set[str]) -> None:
    config = compose_config("110m", f"{name}+compile", "flash")
    assert {getattr(config, layer).name for layer in ("norm", "rope", "mlp", "loss")} == layers
    assert (config.trainer.precision, config.optim.clip_norm, config.optim.beta2) == ("bf16-true", None, 0.95)
    assert (config.batch.micro, config.data.sequence_length, config.model.tie_embeddings) == (32, 1024, False)
    assert config.compile
    assert config.trainer.attention == "flash"


@pytest.mark.parametrize("name", ["fast", "fused+", "fused+compile+compile", "fused+quick"])
def test_an_unknown_name_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(UserError, match=r"is unknown: choose fused, eager, plain, norm, .* with \+compile and \+graph"):
        compose_config("tiny", name, "auto")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("op=step", "model= is missing: type model=110m"),
        ("op=step model=7b", "model=7b: input should be '110m', '1b' or 'tiny'"),
        ("op=step model=tiny width=3", "width= is no option: choose among op, model, impl"),
        ("op=step model=tiny rounds=1", "rounds=1: input should be greater than or equal to 2"),
        pytest.param("op=step model=tiny impl=fused+graph", "needs a GPU", marks=on_a_cpu),
    ],
)
def test_what_is_wrong_is_said_before_any_work(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(typed.split())
    assert said in capsys.readouterr().err


def test_a_step_learns_and_forgets_its_gradients() -> None:
    step = build("plain", compose_config("tiny", "plain", "auto"), torch.device("cpu"))
    before = [p.detach().clone() for group in step.optimizer.param_groups for p in group["params"]]
    step()
    after = [p for group in step.optimizer.param_groups for p in group["params"]]
    assert all(p.grad is None for p in after)
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.fixture
def results() -> Results:
    """Two timed variants and one that failed."""
    options = read(["op=step", "model=tiny", "impl=fused,plain+compile,eager"], StepConfig)
    config = compose_config("tiny", "eager", "auto")
    fused = Variant("fused", config, ms=[10.0, 8.0], parts={"norm": 2.0, "matmul: mlp": 6.0})
    plain = Variant("plain+compile", config, ms=[20.0, 20.0])
    return Results(options, [fused, plain, Variant("eager", config, trouble="OutOfMemoryError: 3 GiB")], {}, 1e12)


def test_the_ratio_is_the_rounds_mean_with_their_spread(results: Results) -> None:
    assert results.ratio(results.variants[0]) == pytest.approx((5**0.5, 2.0, 2.5))
    assert results.tokens_per_second(results.variants[0]) == pytest.approx(1000 * 4 * 64 / 9)
    assert results.ratio(results.variants[2]) is None


class Products(TorchDispatchMode):
    """The dtypes of all matrix products inside."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.dtypes.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


def test_ours_has_the_precision_of_training() -> None:
    config = compose_config("tiny", "eager", "auto")
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"precision": "bf16-mixed"})})
    step = build("eager", config, torch.device("cpu"))
    with Products() as products:
        step()
    assert products.dtypes == {torch.bfloat16}


def test_the_report_has_the_failed_and_the_waterfall(results: Results) -> None:
    text = markdown(results, "command")
    assert "- eager failed: OutOfMemoryError: 3 GiB" in text
    assert "2.236 (2.000 to 2.500)" in text
    assert "| floor: matmul, attention, optimizer | 6.00 " in text
    assert json.loads(to_json(results, "command"))["variants"][0]["account"]["other"] == 2.0


def test_rounds_take_turns_and_leave_out_the_failed(results: Results) -> None:
    order = [[variant.name for variant in runner.turns(results.variants, number)] for number in range(3)]
    assert order == [["fused", "plain+compile"], ["plain+compile", "fused"], ["fused", "plain+compile"]]


def test_every_variant_is_compiled_though_all_share_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile leaves a function eager that it has compiled `recompile_limit` times, and says so in a warning."""
    forms: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        forms.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    options = read(["op=step", "model=tiny", "impl=eager+compile,loss+compile", "rounds=2"], StepConfig)
    results = runner.plan(options)
    with torch._dynamo.config.patch(recompile_limit=1):
        runner.run(results, lambda: None, lambda line: None)
    assert [variant.trouble for variant in results.variants] == ["", ""]
    assert len(forms) == 3  # a block with a stream and one without, and the final norm


@on_a_cpu
def test_a_run_goes_on_past_a_variant_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_or_fail(name, config, device):  # type: ignore[no-untyped-def]
        if name == "eager":
            raise MemoryError("no room")
        return build(name, config, device)

    monkeypatch.setattr(runner, "build", build_or_fail)
    assert main(["op=step", "model=tiny", "impl=eager,plain,loss", "rounds=2", f"out={tmp_path}"]) == 0
    variants = {v["name"]: v for v in json.loads((tmp_path / "bench.json").read_text())["variants"]}
    assert variants["eager"]["trouble"] == "MemoryError: no room"
    assert [len(variants[name]["ms"]) for name in ("eager", "plain", "loss")] == [0, 2, 2]
    assert variants["loss"]["parts"]["head and loss"] > 0
    printed = capsys.readouterr().out
    assert (tmp_path / "bench.md").read_text() in printed
    assert "they say nothing" in printed


@pytest.mark.gpu
def test_on_a_gpu_every_variant_is_timed_and_explained(tmp_path: Path) -> None:
    names = ["fused", "fused+compile", "fused+graph", "plain+compile"]
    assert main(["op=step", "model=tiny", f"impl={','.join(names)}", "rounds=2", f"out={tmp_path}"]) == 0
    for variant in json.loads((tmp_path / "bench.json").read_text())["variants"]:
        assert variant["trouble"] == ""
        assert variant["peak_gib"] > 0
        assert 0 <= variant["idle_share"] < 1
        assert variant["account"]["unattributed"] < 0.03
