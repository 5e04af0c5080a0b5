"""What can be resumed: the newest checkpoint that is whole, and whether a configuration fits it."""

import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minillm.config import NOT_SHAPE, Config
from minillm.errors import UserError


@dataclass(frozen=True)
class Saved:
    """A whole checkpoint, and what it says of the run that wrote it."""

    path: Path
    step: int
    config: dict[str, Any]
    corpus: str  # its hash
    starts: list[dict[str, Any]]  # (step, layers_ran) of each time that the run was started


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of the run in `folder`, links to nowhere too: last.ckpt, then from newest to oldest."""
    files = (folder / "checkpoints").glob("*.ckpt")
    return sorted(files, key=lambda file: (file.name == "last.ckpt", file.lstat().st_mtime_ns), reverse=True)


def state(folder: Path) -> list[tuple[str, int, int]]:
    """What tells the checkpoints of one moment from those of another: name, file and time of each."""
    stats = ((file.name, file.lstat()) for file in checkpoints(folder))
    return [(name, stat.st_ino, stat.st_mtime_ns) for name, stat in stats]


def newest(folder: Path) -> Saved:
    """The newest checkpoint that is whole; of each newer one a warning on stderr. Raises UserError if there is none."""
    passed_over: set[int] = set()
    for path in checkpoints(folder):
        if (inode := path.lstat().st_ino) in passed_over:  # another name of the same file
            continue
        try:
            return read(path)
        except Exception as error:  # a file that is no checkpoint, or no longer, can raise anything
            reason = str(error).partition("\n")[0]
            print(f"warning: {path} is damaged ({reason}): going on from the one before", file=sys.stderr)
            passed_over.add(inode)
    found = "none of its checkpoints is whole" if passed_over else "it has no checkpoints/*.ckpt"
    raise UserError(f"{folder} cannot be resumed: {found}; start a new run")


def read(path: Path) -> Saved:
    """Check every byte, then read what is not a tensor. Nothing in the file can name code to run.

    PyTorch writes a CRC-32 for each part of its (zip) file, but does not look at it when it loads.
    """
    with zipfile.ZipFile(path) as parts:
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts.infolist()):  # mapped, it loads as noise
            raise zipfile.BadZipFile("it is compressed, as no run writes it")
        if broken := parts.testzip():
            raise zipfile.BadZipFile(f"{broken} has another checksum than it was written with")
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # no tensor of it is read
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, no run's state")
    return Saved(path, content["global_step"], content["config"], content["corpus"], content["starts"])


def check(saved: Saved, config: Config, corpus: str | None = None) -> None:
    """Raise UserError, naming the field, if the run cannot go on as `config` says, on the data `corpus` (a hash).

    A vocabulary size that `config` leaves open is the tokenizer's, and the tokenizer is part of the corpus.
    """
    new = config.model_dump(mode="json")
    for name, before, now in (
        *in_section("model", saved.config, new, skip=NOT_SHAPE),
        ("data.sequence_length", saved.config["data"]["sequence_length"], new["data"]["sequence_length"]),
        ("data.train_blocks", saved.config["data"].get("train_blocks"), new["data"]["train_blocks"]),
        ("seed", saved.config["seed"], new["seed"]),  # the data's order comes from it
    ):
        if before != now and (name, now) != ("model.vocab_size", None):
            raise UserError(f"{name}={now}, but the run to resume has {before}: leave it, or start a new run")
    before, now = saved.config["trainer"]["precision"], new["trainer"]["precision"]
    if (before == "bf16-true") != (now == "bf16-true"):  # the weights are stored in other dtypes
        raise UserError(
            f"trainer.precision={now}, but the run to resume has {before}: bf16-true and the others cannot follow each "
            "other; leave it, or start a new run"
        )
    before, now = sequences_a_step(saved.config), sequences_a_step(new)
    if before != now:  # the data's order is cut into steps of that many, however they are shared out
        batch, devices = new["batch"], new["trainer"]["devices"]
        raise UserError(
            f"batch.micro={batch['micro']} batch.accumulate={batch['accumulate']} trainer.devices={devices} make {now} "
            f"sequences a step, but the run to resume has {before}: make it as many, or start a new run"
        )
    if corpus not in (None, saved.corpus):
        raise UserError(
            f"the run to resume was trained on other data (corpus {saved.corpus}, now {corpus}): give it the data.* "
            "and tokenizer.* that it had, with the same content, or start a new run"
        )
    if saved.step >= config.trainer.max_steps:
        raise UserError(
            f"the run has already taken its {saved.step} steps: "
            f"add trainer.max_steps={2 * saved.step} (or any more) to resume=, to go on"
        )


def changes(saved: Saved, config: Config) -> list[str]:
    """What a resumed run is told of what goes on otherwise than it began and changes its numbers, a line each."""
    lines = []
    if (planned := saved.config["trainer"]["max_steps"]) != config.trainer.max_steps:
        lines.append(f"rate    of learning: its course is now that of {config.trainer.max_steps} steps, not {planned}")
    new = config.model_dump(mode="json")
    for name, before, now in in_section("optim", saved.config, new):
        if before != now:
            lines.append(f"{name}={now} from here on, {before} before")
    if (before := sequences_a_validation(saved.config)) != (now := sequences_a_validation(new)):
        lines.append(f"validation on at most {now} sequences from here on, {before} before")
    return lines


def sequences_a_validation(config: dict[str, Any]) -> int:
    """At most, on all devices."""
    return int(config["trainer"]["val_batches"] * config["batch"]["micro"] * config["trainer"]["devices"])


def sequences_a_step(config: dict[str, Any]) -> int:
    """Of an optimizer step, on all devices."""
    return int(config["batch"]["micro"] * config["batch"]["accumulate"] * config["trainer"]["devices"])


def in_section(
    section: str, old: dict[str, Any], new: dict[str, Any], skip: frozenset[str] = frozenset()
) -> list[tuple[str, Any, Any]]:
    """(name, value before, value now) of a section's fields."""
    return [(f"{section}.{key}", old[section].get(key), new[section][key]) for key in sorted(set(new[section]) - skip)]


def from_anywhere(config: Config) -> Config:
    """The config with absolute paths: a run goes on from any working directory."""

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().absolute())

    data, tokenizer = config.data, config.tokenizer
    changed: dict[str, Any] = {"files": [absolute(path) for path in data.files]}
    if data.dataset is not None and Path(data.dataset).is_dir():
        changed["dataset"] = absolute(data.dataset)
    if tokenizer.path is not None:
        tokenizer = tokenizer.model_copy(update={"path": absolute(tokenizer.path)})
    return config.model_copy(update={"data": data.model_copy(update=changed), "tokenizer": tokenizer})
