"""Every file under configs/ composes to a valid configuration, and is what its name says."""

from typing import get_args

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from minillm.compose import CONFIGS, check, groups, read
from minillm.config import LAYERS, NORMS, Config
from minillm.layers import build_layers, loss, mlp, norm, rope
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
    if group in ("model", *LAYERS, "data", "logger") and choice != "norm=custom":
        assert getattr(config, group).name == name


def test_a_new_choice_needs_no_new_value() -> None:
    keys = set(known_values())
    assert {"trainer.max_steps", "norm.name", "compile"} <= keys
    for key in ("data.files", "norm.fuse_residual"):  # known everywhere, though only some files name them
        assert key in keys


@pytest.mark.parametrize(
    ("data", "own"),
    [
        ("stdlib", ""),
        ("text", "files text_column"),
        ("hub", "dataset subset split text_column"),
        ("synthetic", "synthetic_tokens"),
    ],
)
def test_help_shows_every_value_of_what_is_chosen(data: str, own: str) -> None:
    sources = {f"data.{key}" for key in ("files", "dataset", "subset", "split", "text_column", "synthetic_tokens")}
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = compose("train", [f"data={data}"])
    shown = {f"{key}.{name}" for key in composed if isinstance(composed[key], DictConfig) for name in composed[key]}
    shown |= {key for key in composed if not isinstance(composed[key], DictConfig)}
    assert shown == set(known_values()) - sources | {f"data.{key}" for key in own.split()}


def test_the_names_of_layers_are_those_that_exist() -> None:
    assert set(NORMS) == set(norm.IMPLEMENTATIONS)
    assert set(groups()["norm"]) == {*NORMS, "custom"}
    for layer in (rope, mlp, loss):
        group = layer.__name__.rpartition(".")[2]
        named = get_args(known_values()[f"{group}.name"].annotation)
        assert set(named) == set(groups()[group]) == set(layer.IMPLEMENTATIONS), group


@pytest.mark.parametrize(
    ("name", "millions"), [("tiny", 1.51), ("15m", 15.74), ("110m", 134.1), ("350m", 341.1), ("1b", 1498.5)]
)
def test_presets_have_the_size_of_their_name(name: str, millions: float) -> None:
    config = config_of(f"model={name}", "norm=torch")
    shape = config.model.model_copy(update={"vocab_size": config.model.vocab_size or config.tokenizer.vocab_size})
    with torch.device("meta"):
        model = Llama(shape, build_layers(config))
    counted = sum(p.numel() for p in model.parameters())  # a tied matrix once
    assert counted / 1e6 == pytest.approx(millions, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("110m", (1024, 32)), ("1b", (2048, 8))],
)
def test_experiments_have_the_published_shapes(name: str, shape: tuple[int, int]) -> None:
    norm_only = config_of(f"experiment=norm_{name}", "norm=triton")
    assert (norm_only.model.name, norm_only.trainer.precision, norm_only.model.tie_embeddings) == (
        name, "bf16-true", False
    )  # fmt: skip
    assert (norm_only.data.sequence_length, norm_only.batch.micro) == shape
    assert names(norm_only) == ["triton", "eager", "eager", "eager"]
    fused = config_of(f"experiment=fused_{name}")
    assert names(fused) == ["triton"] * 4
    assert fused == norm_only.model_copy(update={layer: getattr(fused, layer) for layer in LAYERS})


def names(config: Config) -> list[str]:
    return [getattr(config, layer).name for layer in LAYERS]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", "eager eager eager eager"),
        ("layers=triton", "triton triton triton triton"),
        ("layers=triton norm=torch", "torch triton triton triton"),
        ("loss=torch layers=triton", "triton triton triton torch"),
        ("experiment=norm_110m layers=triton", "triton triton triton triton"),
        ("experiment=fused_110m layers=eager", "eager eager eager eager"),
        ("experiment=fused_110m norm=eager", "eager triton triton triton"),
        ("experiment=fused_110m layers=eager mlp=triton", "eager eager triton eager"),
    ],
)
def test_layers_names_all_four_and_what_is_typed_beside_it_wins(typed: str, expected: str) -> None:
    assert names(config_of(*typed.split())) == expected.split()
