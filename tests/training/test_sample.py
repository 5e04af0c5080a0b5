"""Samples of text are kept after each validation, once a step, and do not change the training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.callbacks.sample import Sample

Run = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What makes a run train on a text."""
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "cache"))
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"story {number}\u2028 with two\nlines of words, é\n" * 4)
    return {
        "data.name": "text",
        "data.files": [str(tmp_path / "*.txt")],
        "model.vocab_size": None,
        "tokenizer.vocab_size": 300,
    }


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    return state


def test_each_validation_leaves_a_line_also_when_it_is_made_again(run: Run, text: dict[str, Any]) -> None:
    _, folder = run(text)
    lines = (folder / "samples.txt").read_text().split("\n")
    assert [line.split("\t")[0] for line in lines] == ["4", "6", ""]
    assert "[...]" in lines[0]
    run(text | {"resume": str(folder), "trainer.max_steps": 8})
    again = (folder / "samples.txt").read_text().split("\n")
    assert [line.split("\t")[0] for line in again] == ["4", "6", "8", ""]
    assert again[0] == lines[0]


def test_what_somebody_else_wrote_between_the_samples_stays(run: Run, text: dict[str, Any]) -> None:
    _, folder = run(text)
    with (folder / "samples.txt").open("ab") as file:
        file.write("mine: ² and ".encode() + b"\xff\n")
    run(text | {"resume": str(folder), "trainer.max_steps": 8})
    lines = (folder / "samples.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == ["4", "6", "mine: ² and \ufffd", "8"]


def test_sampling_changes_no_weight(run: Run, text: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _, with_samples = run(text, "with")
    monkeypatch.setattr(Sample, "on_validation_end", lambda *arguments: None)
    _, without = run(text, "without")
    assert not (without / "samples.txt").exists()
    for name, tensor in weights(with_samples).items():
        assert torch.equal(tensor, weights(without)[name]), name
