"""Somebody's own norm: faults are found and named, and a right one passes everything."""

import pytest
import torch

from minillm.bench.config import parse
from minillm.bench.conformance import Check, conformance
from minillm.bench.runner import choose, make_op

CPU = torch.device("cpu")


def checks(name: str, *arguments: str) -> dict[str, Check]:
    full_name = f"tests.bench.broken:{name}"
    op = make_op(parse(["op=rms_norm", *arguments]))
    implementation = choose(op, (full_name,))[full_name]
    return {check.promise: check for check in conformance(op, full_name, implementation, CPU)}


@pytest.mark.parametrize("arguments", [(), ("residual=true",)])
@pytest.mark.parametrize("name", ["right", "RightClass"])
def test_a_right_function_or_class_passes_every_check(name: str, arguments: tuple[str, ...]) -> None:
    assert [check for check in checks(name, *arguments).values() if not check.ok] == []


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("weight_gradient_1_percent_off", "dW"), ("zero_x_gradient", "dX"), ("result_1_percent_off", "y")],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_fault_is_found_in_every_dtype_and_named_by_its_tensor(name: str, tensor: str, dtype: str) -> None:
    problem = checks(name)[f"{dtype} is as near to float64 as PyTorch"].problem
    assert problem.startswith(f"{tensor}: relative error")
    assert ";" not in problem


def test_a_fault_in_one_element_is_found_by_the_largest_error() -> None:
    problem = checks("one_element_off")["bfloat16 is as near to float64 as PyTorch"].problem
    assert problem.startswith("y: largest error")


def test_strides_that_are_ignored_are_found() -> None:
    failed = [check.promise for check in checks("ignores_strides").values() if not check.ok]
    assert failed == ["rows with gaps between them", "columns with gaps between them"]


def test_an_overwritten_input_is_named() -> None:
    assert checks("overwrites_x")["inputs and incoming gradients unchanged"].problem == "X was overwritten"


def test_in_a_row_of_one_element_a_rounding_of_what_cancels_is_no_fault() -> None:
    assert checks("rounded_terms")["width 1"].problem == ""


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_rounding_in_another_order_than_the_reference_is_no_fault(name: str) -> None:
    op = make_op(parse(["op=rms_norm"]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert [check for check in conformance(op, name, choose(op, (name,))[name], device) if not check.ok] == []


def test_the_textbook_formula_fails_only_where_its_fp16_square_overflows() -> None:
    op = make_op(parse(["op=rms_norm"]))
    found = conformance(op, "textbook", choose(op, ("textbook",))["textbook"], CPU)
    assert [check.promise for check in found if not check.ok] == ["float16 x = 300: its square overflows"]
