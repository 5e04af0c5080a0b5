"""A run's model, loaded to be used: for export, generation and evaluation."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from minillm import hardware, requirements, resume
from minillm.build import build_model
from minillm.config import NOT_SHAPE, Config
from minillm.data.tokenizer import load_tokenizer
from minillm.errors import UserError
from minillm.layers import Loss
from minillm.model import Llama

TOKENIZER = "tokenizer.json"  # in a run's folder, beside config.yaml; not there if the tokens are synthetic


@dataclass(frozen=True)
class LoadedRun:
    """The newest whole checkpoint of a run."""

    config: Config  # the run's with what was typed over it; the vocabulary's size is filled in
    saved: resume.Saved
    model: Llama
    loss: Loss
    tokenizer: Tokenizer | None  # None: synthetic tokens

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device


def load_run(config: Config, folder: Path) -> LoadedRun:
    """Build the model as `config` says, on one device, uncompiled, with the weights of the run in `folder`.

    Raises UserError if no checkpoint is whole, or for what this machine cannot do.
    """
    saved = resume.newest(folder)
    config = with_shape(config, saved)
    single = config.trainer.model_copy(update={"devices": 1, "strategy": "single"})
    kept = config.model.model_copy(update={"activation_checkpointing": "none"})
    config = config.model_copy(update={"model": kept, "compile": False, "trainer": single})
    requirements.check(config)
    model, loss = build_model(config)
    model.load_state_dict(weights(saved))
    return LoadedRun(config, saved, model.eval(), loss, tokenizer_of(config, folder))


def with_shape(config: Config, saved: resume.Saved) -> Config:
    """The config with the checkpoint's vocabulary size, which `config.yaml` may leave open.

    Raises UserError, naming the field, for another shape than the checkpoint's.
    """
    config = config.with_vocabulary(saved.config["model"]["vocab_size"])
    new = config.model_dump(mode="json")
    for name, before, now in resume.in_section("model", saved.config, new, skip=NOT_SHAPE):
        if before != now:
            raise UserError(f"{name}={now}, but the run has {before}: leave it out")
    return config


def weights(saved: resume.Saved) -> dict[str, Tensor]:
    """The parameters under the model's names, on the CPU, in the dtypes that they were trained in."""
    content = torch.load(saved.path, map_location="cpu", weights_only=True, mmap=True)
    if content["global_step"] != saved.step:
        raise UserError(f"{saved.path} has just been written anew by the run's training: type the command again")
    return {name.removeprefix("model."): tensor for name, tensor in content["state_dict"].items()}


def tokenizer_of(config: Config, folder: Path) -> Tokenizer | None:
    path = folder / TOKENIZER
    return load_tokenizer(path, config.tokenizer.end_token) if path.exists() else None


def autocast(config: Config) -> torch.autocast:
    """The context of the precision that the run has: what Lightning enters in training."""
    dtype = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(hardware.precision(config))
    return torch.autocast(hardware.device(config).type, dtype, enabled=dtype is not None)
