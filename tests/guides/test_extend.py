"""docs/extend.md, followed by three people: one norm is right, one has dW 1% off, one is right but slow."""

import sys
from pathlib import Path

import pytest
import torch

from minillm.bench.config import parse
from minillm.bench.conformance import conformance
from minillm.bench.runner import choose, make_op
from minillm.compare.results import summarize
from minillm.compare.runner import measure
from minillm.compose import ROOT, check, read
from minillm.layers import build_layers
from minillm.train import train
from tests.compare.conftest import shop as shop  # the fixture
from tests.compare.made import Workshop, make_plan, measurement

SMALL = (
    "data=synthetic data.synthetic_tokens=4000 data.sequence_length=16 model.hidden_size=32 model.num_layers=1 "
    "tokenizer.vocab_size=300 batch.micro=4 trainer=cpu trainer.max_steps=2 logger=none trainer.progress_bar=false"
)
OTHERS = '''

class Times(torch.autograd.Function):
    """The identity; its gradient is multiplied."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad


class Off(MyNorm):
    def forward(self, x):
        wide = x.float()
        rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * rstd * Times.apply(self.weight.float())).to(x.dtype)


class Slow(MyNorm):
    def forward(self, x):
        for _ in range(20):
            y = super().forward(x)
        return y
'''


def code_of(guide: str) -> str:
    """The guide's Python block."""
    return (ROOT / "docs" / guide).read_text().split("```python\n")[1].split("```")[0]


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of somebody's with `my_norms.py` in it."""
    (tmp_path / "my_norms.py").write_text(code_of("extend.md") + OTHERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_norms", raising=False)


def findings(norm: str) -> dict[str, str]:
    """What the conformance check finds wrong, by the promise that is broken."""
    op = make_op(parse(["op=rms_norm", f"impl=my_norms:{norm}", "check=true"]))
    ((name, implementation),) = choose(op, (f"my_norms:{norm}",)).items()
    checks = conformance(op, name, implementation, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    assert len(checks) > 20
    return {check.promise: check.problem for check in checks if not check.ok}


def test_the_guides_norm_passes_every_check() -> None:
    assert findings("MyNorm") == {}


def test_the_one_that_is_off_is_told_which_gradient() -> None:
    found = findings("Off")
    assert "float32 is as near to float64 as PyTorch" in found
    assert all(problem.startswith("dW") for problem in found.values())


@pytest.mark.parametrize("norm", ["MyNorm", "Slow"])
def test_each_is_trained_and_named_as_what_ran(norm: str, tmp_path: Path) -> None:
    (config,) = check(read([*SMALL.split(), "norm=custom", f"norm.name=my_norms:{norm}"]))
    result = train(config, tmp_path / "run")
    assert result["layers_ran"]["norm"] == f"my_norms:{norm}"
    (eager,) = check(read([*SMALL.split(), f"resume={tmp_path / 'run'}", "norm=eager", "trainer.max_steps=3"]))
    assert train(eager, tmp_path / "run")["steps"] == 3


@pytest.mark.parametrize(("speed", "verdict"), [(0.9, "slower"), (1.1, "faster"), (1.0, "equal")])
def test_a_comparison_says_what_its_samples_say(shop: Workshop, tmp_path: Path, speed: float, verdict: str) -> None:
    names = ("eager", "my_norms:Slow")
    shop.speed = {names[1]: speed}
    done = measure(measurement(make_plan(names)), tmp_path, lambda so_far: None, lambda text: None)
    assert verdict in str(summarize(done, "finished")["variants"][1]["verdict"])


def test_a_size_of_ones_own_can_be_typed() -> None:
    typed = next(line for line in (ROOT / "docs" / "extend.md").read_text().splitlines() if "hidden_size=512" in line)
    (config,) = check(read(typed.split()[2:]))
    assert (config.model.hidden_size, config.model.num_kv_heads, config.model.head_dim) == (512, 2, 64)
    build_layers(config)
