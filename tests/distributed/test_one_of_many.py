"""What a rank does, in one process that is told it is one of several."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy

from minillm import distributed, requirements, summary
from minillm.config import Config
from minillm.errors import UserError
from minillm.ranks import run_ranks
from minillm.train import train
from tests.training.conftest import make_config, make_module


def place(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    for name, value in zip(distributed.PLACE, (rank, rank, world_size, "127.0.0.1", 1), strict=True):
        monkeypatch.setenv(name, str(value))


class Recorded(DDPStrategy):
    """Notes what happens while gradients are kept from the other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = False

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        self.blocked = True
        yield
        self.blocked = False


def test_gradients_are_averaged_once_a_step_in_the_last_micro_batch() -> None:
    module, strategy, blocked = make_module({"batch.micro": 2}), Recorded(), []

    def backward(loss: torch.Tensor) -> None:
        blocked.append(strategy.blocked)
        loss.backward()

    module.optimizers = lambda: LightningOptimizer(torch.optim.SGD(module.parameters(), lr=1.0))
    module.update, module.manual_backward = lambda optimizer: torch.zeros(()), backward
    module.trainer = SimpleNamespace(global_step=0, world_size=2, barebones=False, strategy=strategy)
    module.training_step({"tokens": torch.randint(97, (6, 17)), "index": torch.arange(6)}, 0)
    assert blocked == [True, True, False]
    assert module.tokens == 2 * 6 * 16


def test_only_the_first_rank_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    place(monkeypatch, 1, 2)
    summary.write(tmp_path, {"status": "running"})
    assert list(tmp_path.iterdir()) == []
    place(monkeypatch, 0, 2)
    summary.write(tmp_path, {"status": "running"})
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize(("devices", "strategy"), [(1, "single"), (3, "ddp")])
def test_processes_that_torchrun_started_for_another_config_are_refused(
    monkeypatch: pytest.MonkeyPatch, devices: int, strategy: str
) -> None:
    place(monkeypatch, 0, 2)
    with pytest.raises(UserError, match=r"torchrun has started 2 processes for trainer\.devices="):
        requirements.check(make_config({"trainer.devices": devices, "trainer.strategy": strategy}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trainer.devices": 2}, "needs trainer=ddp or trainer=fsdp"),
        ({"trainer.strategy": "fsdp", "trainer.precision": "16-mixed"}, "use trainer=ddp, or bf16-mixed"),
    ],
)
def test_what_cannot_be_shared_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_config(changes)


def fails(config: Config, folder: Any, known: dict[str, Any], signals: Any) -> None:
    known["steps"] = 3
    raise UserError("what a rank has found")


@pytest.mark.process
def test_what_a_rank_says_is_raised_here_with_what_it_came_to_know(tmp_path: Any) -> None:
    known: dict[str, Any] = {}
    with pytest.raises(UserError, match=r"^what a rank has found$"):
        run_ranks(fails, make_config({"trainer.strategy": "ddp"}), tmp_path, known)
    assert known["steps"] == 3


def fails_after_the_other_has_noticed(config: Config, folder: Any, known: dict[str, Any], signals: Any) -> None:
    if distributed.rank() == 0:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    time.sleep(1)
    raise UserError("what a rank has found")


@pytest.mark.process
def test_a_rank_that_only_misses_another_leaves_the_word_to_it(tmp_path: Any) -> None:
    config = make_config({"trainer.strategy": "ddp", "trainer.devices": 2})
    with pytest.raises(UserError, match=r"^what a rank has found$"):
        run_ranks(fails_after_the_other_has_noticed, config, tmp_path, {})


def test_too_few_validation_blocks_for_the_ranks_are_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minillm.train.run_ranks", lambda run, *given: run(*given, None))
    with pytest.raises(UserError, match=r"validation blocks cannot be shared out among trainer\.devices=200"):
        train(make_config({"trainer.strategy": "ddp", "trainer.devices": 200}), tmp_path)
