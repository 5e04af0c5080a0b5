"""`init_from`: training starts from a Llama in Hugging Face's format, a folder or a name on the hub."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor, nn

from minillm.config import Config
from minillm.errors import UserError, reading
from minillm.hf import CONFIG, WEIGHTS, packed, read_json, safetensors, shape_of
from minillm.problems import validate


def adopted(config: Config) -> Config:
    """The config with the shape, the tokenizer and the end token of the checkpoint that `init_from` names.

    Raises UserError for a checkpoint that cannot be found, or that this model cannot represent.
    """
    name = str(config.init_from)
    folder = find(name, [CONFIG, "tokenizer.json"])
    description = read_json(folder / CONFIG)
    try:
        model = config.model.model_dump() | shape_of(description) | {"name": Path(name).name}
    except UserError as error:
        raise UserError("\n".join(f"init_from={name}: {line}" for line in str(error).splitlines())) from error
    tokenizer = config.tokenizer.model_dump()
    if config.tokenizer.path is None and config.data.name != "synthetic":
        tokenizer |= {"path": str(folder / "tokenizer.json"), "end_token": end_token(name, folder, description)}
    return validate(config.model_dump() | {"model": model, "tokenizer": tokenizer})


def end_token(name: str, folder: Path, description: Mapping[str, Any]) -> str:
    """The token that ends a text, from its number in the checkpoint's files."""
    if not (folder / "tokenizer.json").exists():
        raise UserError(f"init_from={name} has no tokenizer.json: give one that fits with tokenizer.path=")
    number = description.get("eos_token_id")
    number = next(iter(number), None) if isinstance(number, list) else number
    file = folder / "tokenizer.json"
    with reading(file, Exception, instead=f"give another init_from= than {name}"):  # tokenizers raises nothing narrower
        token = None if number is None else Tokenizer.from_file(str(file)).id_to_token(number)
    if token is None:
        raise UserError(
            f"init_from={name}: its eos_token_id={number} is not in its tokenizer: give "
            f"tokenizer.path={file} tokenizer.end_token=, the token between documents"
        )
    return token


def load_weights(model: nn.Module, config: Config) -> None:
    """Give `model`, of `config`'s shape, the weights of the checkpoint that `init_from` names; its dtypes stay."""
    load_file = safetensors().load_file
    folder = find(str(config.init_from), ["*.safetensors", "*.safetensors.index.json"])
    index = folder / f"{WEIGHTS}.index.json"
    files = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else [WEIGHTS]
    tensors: dict[str, Tensor] = {}
    for file in files:
        if not (folder / file).exists():
            raise UserError(f"init_from={config.init_from} has no {file}: weights are read from *.safetensors alone")
        with reading(folder / file, Exception, instead="copy it again"):  # safetensors' own error, if it is cut short
            tensors |= load_file(folder / file)
    model.load_state_dict(packed(tensors, config.model))


def find(name: str, files: Iterable[str]) -> Path:
    """The folder of a checkpoint: as it is, or with these files of it from the hub (or its cache)."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise UserError(f"init_from={name} has no {CONFIG}: give a folder in Hugging Face's format")
        return folder.absolute()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"init_from={name} is no folder, and no name on the hub either, which is owner/model")
    import huggingface_hub

    from minillm.data.hub import hub_answers

    offline = huggingface_hub.constants.HF_HUB_OFFLINE or not hub_answers()
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(files), local_files_only=offline))
    except (OSError, ValueError) as error:
        reason = "the hub is out of reach and it is not in the local cache" if offline else " ".join(str(error).split())
        raise UserError(f"init_from={name} is no folder here, and from the hub it did not come: {reason}") from error
