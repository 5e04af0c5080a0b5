"""What scripts/train.py does: check the command, then let Hydra run it.

Exit status: 0 done; 1 the run failed; 2 the command or its configuration is wrong, nothing was done; 130 interrupted.
A user's mistake is a sentence a line on stderr; HYDRA_FULL_ERROR=1 shows the stack.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from minillm.compose import CONFIGS, check, plain, read
from minillm.config import Config
from minillm.errors import UserError
from minillm.problems import validate


def main() -> None:
    """Run the command line in sys.argv."""
    sys.path.append(os.getcwd())  # norm.name=my_module:MyNorm, from where the command was typed
    try:
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
    if not options.cfg:
        for config in configs:
            check_machine(config)
    if command.config_dir != CONFIGS:
        flags += ["--config-dir", str(command.config_dir), "--config-name", command.config_name]
    return [*flags, *command.overrides]


def check_machine(config: Config) -> None:
    """Raise UserError for what this machine, or the norm that was named, cannot do."""
    from minillm import hardware  # slow to import: not for --help
    from minillm.layers.norm import build_norm

    hardware.check(config)
    build_norm(config.norm, config.model.hidden_size, config.model.norm_eps)


@hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
def run_jobs(values: DictConfig) -> None:
    """One job, in the folder that Hydra made for it."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if HydraConfig.get().mode == RunMode.MULTIRUN and values.logger.group is None:
        values.logger.group = folder.parent.name  # the sweep's
    config = validate(plain(values))
    stored = folder / "config.yaml"
    before = stored.read_bytes() if stored.exists() else None
    OmegaConf.save(config.model_dump(), stored)
    from minillm.train import train

    try:
        train(config, folder)
    except UserError as error:
        if before is not None:  # what a run that is there refuses is not its configuration
            stored.write_bytes(before)
        fail(error, status=1)


def fail(error: UserError, status: int) -> NoReturn:
    """End the program with the error's sentences."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        raise error
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    sys.exit(status)
