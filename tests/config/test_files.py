"""Every file under configs/ composes to a valid configuration, and is what its name says."""

import pytest
import torch

from minillm.compose import check, groups, read
from minillm.config import NORMS, Config
from minillm.layers.norm import IMPLEMENTATIONS, build_norm
from minillm.model import Llama
from minillm.problems import known_values

# What a choice cannot do without.
NEEDS = {
    "norm=custom": ["norm.name=torch.nn:RMSNorm"],
    "data=text": ["data.files=a.txt"],
    "data=hub": ["data.dataset=a/b"],
}
CHOICES = [f"{group}={choice}" for group, choices in groups().items() for choice in choices]


def config_of(*typed: str) -> Config:
    (config,) = check(read(list(typed)))
    return config


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_is_valid(choice: str) -> None:
    config = config_of(choice, *NEEDS.get(choice, []))
    group, _, name = choice.partition("=")
    if group in ("model", "norm", "data", "logger") and choice != "norm=custom":
        assert getattr(config, group).name == name


def test_a_new_choice_needs_no_new_value() -> None:
    keys = set(known_values())
    assert {"trainer.max_steps", "norm.name", "compile"} <= keys
    for key in ("data.files", "norm.fuse_residual"):  # known everywhere, though only some files name them
        assert key in keys


def test_the_names_of_norms_are_those_that_exist() -> None:
    assert set(NORMS) == set(IMPLEMENTATIONS)
    assert set(groups()["norm"]) == {*NORMS, "custom"}


@pytest.mark.parametrize(
    ("name", "millions"), [("tiny", 1.51), ("15m", 15.74), ("110m", 134.1), ("350m", 341.1), ("1b", 1498.5)]
)
def test_presets_have_the_size_of_their_name(name: str, millions: float) -> None:
    config = config_of(f"model={name}", "norm=torch")
    shape = config.model.model_copy(update={"vocab_size": config.model.vocab_size or config.tokenizer.vocab_size})
    with torch.device("meta"):
        model = Llama(shape, lambda dim: build_norm(config.norm, dim, shape.norm_eps))
    counted = sum(p.numel() for p in model.parameters())  # a tied matrix once
    assert counted / 1e6 == pytest.approx(millions, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("norm_110m", ("110m", 1024, 32)), ("norm_1b", ("1b", 2048, 8))],
)
def test_experiments_have_the_published_shapes(name: str, shape: tuple[str, int, int]) -> None:
    config = config_of(f"experiment={name}", "norm=triton")
    assert (config.model.name, config.data.sequence_length, config.batch.micro) == shape
    assert (config.norm.name, config.trainer.precision, config.model.tie_embeddings) == ("triton", "bf16-true", False)
