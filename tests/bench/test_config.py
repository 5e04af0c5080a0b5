"""The command line: what is accepted, and the sentence for what is not."""

from pathlib import Path

import pytest

from minillm.bench.config import parse
from minillm.bench.runner import choose, make_op
from minillm.errors import UserError


def test_lists_and_scalars_become_types() -> None:
    config = parse(
        ["op=rms_norm", "impl=eager,triton", "width=512,768", "rows=8", "residual=true", "pass=forward", "out=x"]
    )
    assert (config.impl, config.width, config.rows) == (("eager", "triton"), (512, 768), 8)
    assert config.residual
    assert config.passes == ("forward",)
    assert config.out == Path("x")


def test_hydra_run_dir_names_the_folder_too() -> None:
    assert parse(["op=rms_norm", "hydra.run.dir=there"]).out == Path("there")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "op= is missing: type op=rms_norm"),
        ("op=rms_norm widht=3", "widht= is no option: choose among op, impl, width"),
        ("op=rms_norm width=12a", "width=12a: input should be a valid integer"),
        ("op=rms_norm width=0", "width=0: input should be greater than or equal to 1"),
        ("op=rms_norm width=300000", "width=300000: input should be less than or equal to 262144"),
        ("op=rms_norm dtype=int8", "dtype=int8: input should be 'bf16', 'fp16' or 'fp32'"),
        ("op=rms_norm pass=up", "pass=up: input should be 'forward', 'backward' or 'both'"),
        ("op=rms_norm residual=maybe", "residual=maybe: input should be a valid boolean"),
        ("op=rms_norm check", "check is no key=value"),
        ("op=rms_norm out=", "out= is no key=value"),
        ("op=rms_norm width=3 width=4", "width= is given twice"),
        ("op=rms_norm block=1024", "add impl=triton_simple"),
        ("op=rms_norm width=3 sizes=real", "give one or the other"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(typed: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        parse(typed.split())
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_all_that_is_wrong_is_said_together() -> None:
    with pytest.raises(UserError) as error:
        parse(["op=rms_norm", "dtype=int8", "width=x", "nonsense"])
    assert len(str(error.value).splitlines()) == 3


def test_an_unknown_operator_or_implementation_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"op=softmax is unknown: choose rms_norm, .* or step"):
        make_op(parse(["op=softmax"]))
    with pytest.raises(UserError, match=r"impl=foo is unknown: choose textbook, .*, quack, or package"):
        choose(make_op(parse(["op=rms_norm"])), ("foo",))


def test_a_sweep_names_each_tile() -> None:
    config = parse(["op=rms_norm", "impl=triton_simple", "block=1024,4096", "num_warps=1,8"])
    names = list(choose(make_op(config), config.impl))
    assert names == [f"triton_simple[block={b},num_warps={w}]" for b in (1024, 4096) for w in (1, 8)]
