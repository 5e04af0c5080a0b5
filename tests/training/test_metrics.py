"""A step's numbers are read when they have arrived: the host waits for them where a checkpoint is to be written."""

from types import SimpleNamespace

import pytest
import torch

from minillm import distributed
from minillm.callbacks.metrics import Metrics, Readout
from minillm.errors import OtherRankError, UserError

NAN = float("nan")


class Late:
    """An event that the device has passed only when it is waited for."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass


def test_a_step_waits_for_no_number_and_a_checkpoint_for_all() -> None:
    trainer = SimpleNamespace(precision_plugin=None, global_step=3, max_steps=9, loggers=[])
    metrics = Metrics(SimpleNamespace(), every=5, last_checkpoint=lambda: "there is none")
    metrics.pending.append(Readout(3, torch.tensor([NAN, 1.0, NAN]), torch.arange(2), Late(), row=None))
    metrics.poll(trainer)
    assert len(metrics.pending) == 1
    with pytest.raises(UserError, match="went wrong at step 3: loss nan"):
        metrics.on_save_checkpoint(trainer, None, {})


@pytest.mark.parametrize(
    ("own", "kind", "samples"), [(NAN, UserError, r"samples \[4, 5\]"), (2.0, OtherRankError, "another rank's samples")]
)
def test_a_rank_whose_part_was_right_names_no_samples(own: float, kind: type[UserError], samples: str) -> None:
    trainer = SimpleNamespace(precision_plugin=None)
    metrics = Metrics(SimpleNamespace(), every=5, last_checkpoint=lambda: "there is none")
    readout = Readout(3, torch.tensor([NAN, NAN, own]), torch.tensor([4, 5]), None, row=None)
    with pytest.raises(UserError, match=samples) as caught:
        metrics.check(trainer, readout, *readout.values.tolist())
    assert type(caught.value) is kind


def test_of_gradients_that_were_averaged_no_rank_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    metrics = Metrics(SimpleNamespace(), every=5, last_checkpoint=lambda: "there is none")
    readout = Readout(3, torch.tensor([2.0, NAN, 2.0]), torch.tensor([4, 5]), None, row=None)
    with pytest.raises(UserError, match=r"\(samples \[4, 5\] or another rank's\)"):
        metrics.check(SimpleNamespace(precision_plugin=None), readout, *readout.values.tolist())
