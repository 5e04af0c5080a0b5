"""What may be typed, and what is answered to the rest."""

import pytest

from minillm.errors import UserError
from minillm.explain.cli import main
from minillm.explain.plan import make_plan, read_shape
from minillm.explain.subjects import subjects


def test_one_layer_has_a_list_the_rest_is_a_run_of_train() -> None:
    plan = make_plan(["experiment=norm_110m", "norm=eager,triton", "rope=triton", "shape=2x3x512"])
    assert (plan.layer, plan.names, plan.shape) == ("norm", ["eager", "triton"], (2, 3, 512))
    assert [config.norm.name for config in plan.configs.values()] == ["eager", "triton"]
    assert {(config.rope.name, config.model.name) for config in plan.configs.values()} == {("triton", "110m")}


def test_an_implementation_is_what_it_is_called() -> None:
    with pytest.raises(UserError, match="norm=triton would run torch"):
        make_plan(["norm=torch,triton", "norm.name=torch"])


def test_your_own_norm_stands_among_the_others() -> None:
    plan = make_plan(["norm=eager,my_module:MyNorm"])
    assert plan.configs["my_module:MyNorm"].norm.name == "my_module:MyNorm"


def test_a_model_runs_its_norm_alone_once_and_with_the_addition_elsewhere() -> None:
    plan = make_plan(["experiment=norm_110m", "norm=eager"])
    found = subjects(plan.config, "norm", None, plan.dtype)
    assert [(s.shape, s.calls, s.adds) for s in found] == [((32, 1024, 768), 1, False), ((32, 1024, 768), 24, True)]
    assert [s.floor["forward"] // (32 * 1024 * 768) for s in found] == [4, 8]


@pytest.mark.parametrize("text", ["", "6", "2x", "x512", "2x0x512", "2*3", "2x3x512x", "-2x3", "1.5x2"])
def test_no_shape_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="for example shape=2x3x512"):
        read_shape(text)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("model=tiny", "nothing to explain: type one of norm, rope, mlp, loss"),
        ("norm=eager,triton mlp=eager,triton", "one layer is explained at a time"),
        ("norm=eager,fast", "norm=fast is unknown: choose"),
        ("norm=eager,triton model=tiny,110m", "model=tiny,110m has several values: choose one; only norm="),
        ("norm=eager shape=6", "shape=6 is no shape"),
        ("norm=eager lr=3", "lr is unknown"),
        ("rope=eager shape=2x3x100", "is no qkv of rope"),
        ("mlp=eager shape=2x3x101", "must be even"),
        ("loss=eager shape=6x128", "is no hidden state of loss"),
        ("-m norm=eager,triton", "the list needs no -m"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
