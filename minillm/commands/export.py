"""scripts/export.py: a run's model in Hugging Face's format."""

from pathlib import Path

from pydantic import Field

from minillm.commands.options import Options, run_command, run_config
from minillm.errors import UserError

USAGE = """Writes a run's model as a folder that transformers loads as a plain Llama.

  python scripts/export.py run=last out=DIR
"""


class ExportOptions(Options):
    out: Path = Field(description="the folder to write")


def main(arguments: list[str]) -> int:
    return run_command(arguments, USAGE, ExportOptions, act)


def act(options: ExportOptions, rest: list[str]) -> None:
    if rest:
        raise UserError(f"{rest[0]} is not for this command: it takes run= and out=")
    config, folder = run_config(options.run, [])
    from minillm import hf, resume  # slow to import: not for mistakes
    from minillm.loaded import tokenizer_of, weights, with_shape

    saved = resume.newest(folder)
    out = options.out.expanduser()
    hf.export(weights(saved), with_shape(config, saved), tokenizer_of(config, folder), out)
    print(f"step {saved.step} of {folder}, as Hugging Face's Llama:")
    print(out)
