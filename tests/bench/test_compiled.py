"""What is called compiled is compiled, however much is: torch.compile leaves a function eager that has many forms."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from minillm.bench import runner
from minillm.bench.config import parse
from minillm.bench.conformance import conformance
from minillm.bench.op import Case
from minillm.bench.rms_norm import RMSNorm

OP = RMSNorm(parse(["op=rms_norm"]))


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """All that is compiled from here on, in place of a compiler."""
    found: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return found


def test_every_check_of_a_compiled_implementation_compiles_it(forms: list[torch.fx.GraphModule]) -> None:
    checks = conformance(OP, "compiled", OP.implementations()["compiled"], torch.device("cpu"))
    assert len(forms) >= len(checks) - 1  # the last is traced with a backend of its own


def test_the_host_table_has_every_implementation_compiled(
    forms: list[torch.fx.GraphModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "host_microseconds", lambda once: 1.0)  # which waits for a GPU

    def scaled(by: float) -> Callable[..., tuple[Tensor, ...]]:
        return lambda x, weight: (x * weight * by,)

    case = Case(4, 8, torch.float32, torch.float32)
    functions = {f"by {by}": scaled(by) for by in range(12)}
    found = runner.time_host(OP, case, functions, torch.device("cpu"))
    assert set(found["eager"]) == set(found["torch.compile"]) == set(functions)


def test_what_fails_at_so_few_rows_is_left_out_of_the_host_table() -> None:
    def broken(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("never so few")

    case = Case(4, 8, torch.float32, torch.float32)
    found = runner.time_host(OP, case, {"broken": broken}, torch.device("cpu"))
    assert found == {"eager": {}, "torch.compile": {}}
