"""The command line: what was typed, made into what Hydra reads as it was meant, and checked before Hydra runs anything.

Hydra composes, shows and sweeps. It also takes `+trainer.lrr=1` for a new value, stops at the first mistake, and reads
`data.files=a(1).txt` as a function call. So every value is set whether Hydra has seen its name or not (`++`): that it
exists, with this type, is `Config`'s to say, of all of them together.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from minillm.config import LAYERS, NOT_SHAPE, Config, DataConfig
from minillm.errors import UserError, reading
from minillm.folders import own_folder, run_folder
from minillm.problems import did_you_mean, known_values, shown, validate

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
OWN_CHOICE = NOT_SHAPE - {"name"}  # what a checkpoint from elsewhere leaves open; it has a name


def layers_label(choices: Mapping[str, str]) -> str:
    """The layers in a folder's name: all alike by their one name, else those that are not eager: `norm-triton`."""
    names = {layer: choices[layer] for layer in LAYERS}
    if len(set(names.values())) == 1:
        return names["norm"]
    return "_".join(f"{layer}-{name}" for layer, name in names.items() if name != "eager")


OmegaConf.register_new_resolver("repository", lambda: str(ROOT), replace=True)
OmegaConf.register_new_resolver("own_folder", cache(lambda wanted: str(own_folder(wanted))), replace=True)
OmegaConf.register_new_resolver("layers", lambda: layers_label(HydraConfig.get().runtime.choices), replace=True)


@dataclass(frozen=True)
class Command:
    """A command line as Hydra gets it, and what is wrong with the rest of it."""

    overrides: list[str]
    multirun: bool = False
    config_name: str = "train"
    problems: list[str] = field(default_factory=list)


def groups() -> dict[str, list[str]]:
    """Config groups and their choices: the folders of `configs/` and the files in them."""
    folders = sorted(folder for folder in CONFIGS.iterdir() if folder.is_dir())
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


def read(typed: list[str], multirun: bool = False) -> Command:
    """What was typed: `key=value`, `+key=value`, `~key`. What is wrong is left out, with a sentence in `problems`."""
    command = Command([], multirun)
    for text in typed:
        try:
            command.overrides.append(normalized(text, multirun))
        except UserError as error:
            command.problems.append(str(error))
    overrides = [parsed(text) for text in command.overrides]
    if any(override.key_or_group == "init_from" and override.value() is not None for override in overrides):
        command.problems.extend(
            f"{key} beside init_from=, which brings its own shape: leave one of them out"
            for key in (override.key_or_group for override in overrides)
            if key == "model" or (key.startswith("model.") and key.removeprefix("model.") not in OWN_CHOICE)
        )
    for override in overrides:
        if override.key_or_group == "resume" and override.value() is not None:
            try:
                return resumed(command, str(override.value()))
            except UserError as error:
                command.problems.append(str(error))
    return command


def normalized(typed: str, multirun: bool) -> str:
    """One override, quoted where Hydra would read its text as something else, `++` before a value's key."""
    if typed.startswith("~"):
        parsed(typed)
        return typed
    key, equals, value = typed.partition("=")
    key = key.lstrip("+")
    if not key or not equals:
        raise UserError(f"{typed} is not understood: type key=value, for example norm=triton or trainer.max_steps=500")
    if takes_text(key):
        value = verbatim(value, multirun)
    override = parsed(f"{key}={value}")
    if override.is_sweep_override() and not multirun:
        raise UserError(
            f"{typed} has several values: choose one, or type -m before it to run each, one after the other"
        )
    choices = groups().get(key)
    if choices is None:
        return f"{'' if key.startswith(('hydra.', 'hydra/')) else '++'}{key}={value}"
    for choice in chosen(override):
        if choice not in choices:
            raise UserError(no_such_choice(key, shown(choice), choices))
    return f"{key}={value}"


def chosen(override: Override) -> list[Any]:
    """What an override chooses: one value, or those of a sweep. None for glob(*), which takes from what there is."""
    if override.value_type == ValueType.GLOB_CHOICE_SWEEP:
        return []
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


def no_such_choice(group: str, choice: str, choices: list[str]) -> str:
    """The sentence for `group=choice`."""
    if group == "norm" and ":" in choice:
        return f"norm={choice} is typed in two parts: norm=custom norm.name={choice}"
    if (group, choice) == ("layers", "each"):
        return "layers=each compares layers: it is for compare.py, a run has layers=eager or layers=triton"
    return f"{group}={choice} is unknown: choose {', '.join(choices)}{did_you_mean(f'{group}=', choice, choices)}"


def takes_text(key: str) -> bool:
    """Whether the value is free text, such as a path, that nobody thinks of quoting."""
    if key in ("hydra.run.dir", "hydra.sweep.dir"):
        return True
    field = known_values().get(key)
    return field is not None and bool({str, list[str]} & {field.annotation, *get_args(field.annotation)})


def verbatim(value: str, multirun: bool) -> str:
    """Free text, quoted. Stays as it is: null, what is quoted already, lists, interpolations, the lists of a sweep."""
    if value == "null" or value.startswith(("'", '"', "[")) or "${" in value or (multirun and "," in value):
        return value
    return QuotedString(text=value, quote=Quote.single).with_quotes()


def parsed(text: str) -> Override:
    """Hydra's reading of an override. Raises UserError where it has none."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        key, _, value = text.partition("=")
        raise UserError(
            f"{text} cannot be read: quote the value for the shell and for Hydra, \"{key}='{value}'\""
        ) from error


def resumed(command: Command, which: str, word: str = "resume") -> Command:
    """Going on with a run: its stored configuration is the base, its folder the folder. word: what was typed for it.

    A group's choice is the values in that choice's file. Of another `data`, nothing of the one before is left but the
    length of a block, which is the run's.
    """
    if command.multirun:
        raise UserError(f"{word}={which} goes on with one run: leave -m out")
    folder = run_folder(word, which)
    ConfigStore.instance().store("resumed", stored(folder / "config.yaml"))
    values = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null"]
    for text in spelled_out(command.overrides):
        override = parsed(text)
        group = override.key_or_group
        if group in ("experiment", "debug", "init_from"):
            raise UserError(f"{text} sets up a new run: leave it out with {word}=, or leave out {word}=")
        if group in groups() and not override.is_delete():
            choice = plain(OmegaConf.load(CONFIGS / group / f"{override.value()}.yaml"))
            if group == "data":
                fields = DataConfig.model_fields.items()
                choice = {key: field.default for key, field in fields if not field.is_required()} | choice
                del choice["sequence_length"]
            values += [f"++{group}.{key}={as_typed(value)}" for key, value in choice.items()]
        else:
            values.append(text)
    values += [f"++resume={as_typed(str(folder))}", f"hydra.run.dir={as_typed(str(folder))}"]
    return replace(command, overrides=values, config_name="resumed")


def stored(path: Path) -> dict[str, Any]:
    """A run's configuration, as data. Hydra never looks into the folder: it would do what it finds there, and could be
    told to run any code. Raises UserError for a file that cannot be read, or has what no run writes."""
    with reading(path, YAMLError, OmegaConfBaseException, ValueError, instead="mend it, or start a new run"):
        values: Any = OmegaConf.to_container(OmegaConf.load(path))
        if not isinstance(values, dict):
            raise ValueError(f"it holds a {type(values).__name__}, no run's configuration")
    foreign = {*map(str, values)} - {*Config.model_fields}
    if foreign:
        raise UserError(f"{path} has {', '.join(sorted(foreign))}, which no run writes: remove it")
    return values


def spelled_out(overrides: list[str]) -> list[str]:
    """Overrides with `layers=name` as the groups that it stands for, first: one that is typed beside it wins."""
    shorthand = [text for text in overrides if text.startswith("layers=")]
    layers = [f"{layer}={parsed(text).value()}" for text in shorthand for layer in LAYERS]
    return layers + [text for text in overrides if text not in shorthand]


def as_typed(value: Any) -> str:
    """A plain value in Hydra's grammar, which reads JSON's."""
    if isinstance(value, str):
        return QuotedString(text=value, quote=Quote.single).with_quotes()
    return json.dumps(value, ensure_ascii=False)


def plain(config: Any) -> dict[str, Any]:
    """A composed configuration as a dictionary, interpolations resolved, without the values that are missing (???)."""

    def without_missing(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: without_missing(value) for key, value in node.items() if value != "???"}
        return node

    values: dict[str, Any] = without_missing(OmegaConf.to_container(config, resolve=True))
    return values


def check(command: Command) -> list[Config]:
    """The configurations of all jobs of a command. Raises UserError with one line a problem, of all jobs together."""
    configs, problems = [], list(command.problems)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        try:
            for job in jobs(command):
                try:
                    configs.append(validate(plain(compose(command.config_name, job))))
                except UserError as error:
                    problems += str(error).splitlines()
        except (HydraException, OmegaConfBaseException) as error:
            key = getattr(error, "full_key", None)  # OmegaConf's errors have it
            problems.append((f"{key}: " if key else "") + str(error).splitlines()[0])
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))  # once, though every job has it
    return configs


def jobs(command: Command) -> list[list[str]]:
    """The overrides of each job: one, or those that Hydra's own sweeper makes of the command."""
    if not command.multirun:
        return [command.overrides]
    loader = GlobalHydra.instance().config_loader()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(command.overrides)
    return BasicSweeper.split_arguments(overrides, max_batch_size=None)[0]
