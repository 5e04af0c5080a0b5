"""What scripts/train.py does: check the command, then let Hydra run it.

Exit status: 0 done; 1 the run failed; 2 the command or its configuration is wrong, nothing was done; 143 and 130
stopped by SIGTERM and SIGINT. A user's mistake is a sentence a line on stderr; HYDRA_FULL_ERROR=1 shows the stack.
"""

import os
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from minillm.compose import CONFIGS, Command, check, parsed, plain, read
from minillm.config import Config
from minillm.errors import UserError
from minillm.folders import RUNS, check_writable
from minillm.output import go_on_unheard
from minillm.problems import validate

UNDER_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ


def main() -> None:
    """Run the command line in sys.argv."""
    go_on_unheard()
    sys.path.append(os.getcwd())  # norm.name=my_module:MyNorm, from where the command was typed
    try:
        if UNDER_TORCHRUN and os.environ["RANK"] != "0":
            from minillm.torchrun import told

            run_job(*told())
        else:
            sys.argv[1:] = checked(sys.argv[1:])
            run_jobs()
    except UserError as error:
        fail(error, status=2)
    except KeyboardInterrupt:
        sys.exit(130)


def checked(arguments: list[str]) -> list[str]:
    """The command line for Hydra, after everything that can be known now was found right. Raises UserError."""
    options, rest = get_args_parser().parse_known_args(arguments)
    for option in rest:
        if option.startswith("-"):
            raise UserError(f"{option} is no option: values are typed as key=value (trainer.max_steps=500); see --help")
    overrides = [*options.overrides, *rest]  # argparse splits them at an option in between
    flags = [argument for argument in arguments if argument not in overrides]
    if options.help or options.hydra_help or options.info or options.shell_completion:
        return arguments
    command = read(overrides, options.multirun)
    configs = check(command)
    if UNDER_TORCHRUN and options.multirun:
        raise UserError("-m runs several jobs, and torchrun starts the processes of one: leave one of them out")
    if not options.cfg:
        check_folder(command)
        check_machine(configs)
    if command.config_name != "train":
        flags += ["--config-name", command.config_name]
    return [*flags, *command.overrides]


def check_folder(command: Command) -> None:
    """Raise UserError where Hydra could not make the run's folder."""
    key = "hydra.sweep.dir" if command.multirun else "hydra.run.dir"
    typed = [override.value() for override in map(parsed, command.overrides) if override.key_or_group == key]
    if typed and not typed[-1]:
        raise UserError(f"{key}= names no folder: type {key}=DIR, or leave it out")
    folder = Path(str(typed[-1])).absolute() if typed else RUNS
    goes_on = command.config_name != "train"
    check_writable(folder, "get the permission, or go on in a copy of it" if goes_on else f"type {key}=DIR")


def check_machine(configs: list[Config]) -> None:
    """Raise UserError for what this machine, or a layer that was named, cannot do, and for files that are not there:
    of all jobs together."""
    from minillm import requirements  # slow to import: not for --help
    from minillm.data.files import find_files
    from minillm.init_from import adopted

    requirements.check(*(adopted(config) if config.init_from and not config.resume else config for config in configs))
    find_files([pattern for config in configs for pattern in config.data.files])


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def run_jobs(values: DictConfig) -> None:
    """One job, in the folder that Hydra made for it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode == RunMode.MULTIRUN and values.logger.group is None:
        values.logger.group = folder.parent.name  # the sweep's
    config = validate(plain(values))
    if UNDER_TORCHRUN:
        from minillm.torchrun import tell

        tell(config, folder)
    run_job(config, folder)


def run_job(config: Config, folder: Path) -> None:
    """Train; a failure ends the program with status 1."""
    from minillm.train import train

    try:
        train(config, folder)
    except UserError as error:
        fail(error, status=1)


def in_sentences(act: Callable[[], int]) -> int:
    """The exit status of a command other than train: `act()`'s, 2 for a mistake, 130 interrupted."""
    go_on_unheard()
    sys.path.append(os.getcwd())  # my_module:MyNorm, from where the command was typed
    try:
        return act()
    except UserError as error:
        fail(error, status=2)
    except KeyboardInterrupt:
        return 130


def taken(arguments: list[str], keys: Container[str]) -> tuple[dict[str, str], list[str]]:
    """Of these keys the values, each byte for byte all after the first `=`, the last one typed; and what else was."""
    own: dict[str, str] = {}
    rest = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in keys:
            own[key] = value
        else:
            rest.append(argument)
    return own, rest


def fail(error: UserError, status: int) -> NoReturn:
    """End the program with the error's sentences."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise error
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    sys.exit(status)
