"""What is typed becomes variants, or sentences."""

from pathlib import Path

import pytest

from minillm.compare.plan import make_plan
from minillm.errors import UserError


def test_lists_make_a_grid_in_typed_order_named_by_what_differs() -> None:
    plan = make_plan(["model=tiny", "norm=eager,torch", "optim.lr=0.1,0.2", "seed=3"])
    assert plan.names == [
        "norm=eager optim.lr=0.1",
        "norm=eager optim.lr=0.2",
        "norm=torch optim.lr=0.1",
        "norm=torch optim.lr=0.2",
    ]
    assert plan.varied == ["norm", "optim.lr"]
    assert [(v.config.norm.name, v.config.optim.lr, v.config.seed) for v in plan.variants][2] == ("torch", 0.1, 3)


def test_a_norm_of_your_own_stands_in_the_list() -> None:
    plan = make_plan(["norm=eager,tests.compare.planted:Plain"])
    assert plan.names == ["norm=eager", "norm=tests.compare.planted:Plain"]
    assert plan.variants[1].config.norm.name == "tests.compare.planted:Plain"


def test_each_layer_is_fused_alone_and_left_out_alone() -> None:
    plan = make_plan(["layers=each"])
    fused = [
        [layer for layer in ("norm", "rope", "mlp", "loss") if getattr(variant.config, layer).name == "triton"]
        for variant in plan.variants
    ]
    assert [len(layers) for layers in fused] == [0, 1, 1, 1, 1, 3, 3, 3, 3, 4]
    assert len({tuple(layers) for layers in fused}) == 10


def test_a_value_typed_twice_is_compared_with_itself() -> None:
    assert make_plan(["norm=eager,eager"]).names == ["norm=eager", "norm=eager #2"]


def test_a_list_in_brackets_is_one_value() -> None:
    plan = make_plan(["data=text", "data.files=[a.txt,b.txt]", "compile=false,true"])
    assert [variant.config.data.files for variant in plan.variants] == [["a.txt", "b.txt"]] * 2


def test_the_seed_stays_where_it_is_compared() -> None:
    assert (make_plan(["norm=eager,torch"]).seeds, make_plan(["seed=1,2"]).seeds) == (3, 1)


@pytest.mark.parametrize(
    ("typed", "sentences"),
    [
        (["norm=eager"], ["nothing to compare: list"]),
        (["norm=eager,foo", "trainer.lrr=1,2"], ["norm=foo is unknown", "trainer.lrr is unknown"]),
        (["norm=eager,torch", "compare.rounds"], ["compare.rounds is not understood: type compare.rounds=VALUE"]),
        (["norm=eager,torch", "compare.rounds=2", "compare.x=1"], ["compare.rounds=2 must be", "compare.x is unknown"]),
        (["norm=eager,torch", "compare.round=9"], ["compare.round is unknown: compare has rounds, minutes, seeds, "]),
        (["norm=eager,torch", "compare.minutes=soon"], ["compare.minutes=soon must be a valid number"]),
        (["norm=eager,torch", "resume=last"], ["resume=last is for train.py"]),
        (["norm=eager,torch", "trainer=ddp"], ["trainer.strategy: a comparison runs"]),
        (["optim.lr=interval(0,1)", "norm=glob(*)"], ["optim.lr=interval(0,1) is no list", "norm=glob(*) is no list"]),
        (["norm=eager,torch", "foo"], ["foo is not understood"]),
    ],
)
def test_all_mistakes_are_said_at_once(typed: list[str], sentences: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        make_plan(typed)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(sentences), lines
    for sentence in sentences:
        assert any(line.startswith(sentence) for line in lines), lines


@pytest.mark.parametrize(
    "typed", ["norm=eager,triton norm=torch", "norm=eager,triton norm.name=torch", "layers=each norm=torch"]
)
def test_a_variant_runs_what_it_is_called(typed: str) -> None:
    with pytest.raises(UserError, match=r"norm=triton would run torch, by what is typed beside it: leave one"):
        make_plan(typed.split())


def test_a_list_is_typed_once() -> None:
    with pytest.raises(UserError, match="seed= is typed more than once"):
        make_plan(["seed=1,2", "seed=3"])


def test_a_prediction_is_read_and_a_file_without_one_is_named(tmp_path: Path) -> None:
    explained = tmp_path / "explain.json"
    explained.write_text('{"predicted": {"layer_ms": {"norm=eager": 27.7, "norm=triton": 2}}}')
    assert make_plan(["norm=eager,triton", f"compare.predicted={explained}"]).layer_ms["norm=triton"] == 2.0
    for damaged in ('{"predicted": null}', '{"predicted": {"layer_ms": []}}', "[]", "{", "\udcff"):
        explained.write_text(damaged, errors="surrogateescape")
        with pytest.raises(UserError, match=r"explain\.json holds no prediction"):
            make_plan(["norm=eager,triton", f"compare.predicted={explained}"])
