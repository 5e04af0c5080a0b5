"""scripts/generate.py: text from a run's model, streamed.

Standard output is the prompt and what follows it, nothing else; the speed is told on standard error.
"""

import itertools
import os
import sys
import time
from statistics import median
from typing import Annotated

from pydantic import Field

from minillm.commands.options import Options, run_command, run_config
from minillm.errors import UserError

USAGE = """Continues a prompt, which is taken byte for byte: from prompt=, or else from standard input.

  python scripts/generate.py run=last prompt='def f(x, y=1): '
  python scripts/generate.py run=last temperature=0 < prompt.txt
  python scripts/generate.py run=last prompt=import layers=triton tokens=200

Any value of train.py can be typed, such as the layers' implementations or trainer=cpu.
"""


class GenerateOptions(Options):
    prompt: str | None = Field(None, description="the text to continue; standard input unless given")
    tokens: Annotated[int, Field(ge=1)] = Field(
        100, description="new tokens, at most (100); it also stops at the end token and where the context is full"
    )
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.8, description="0 takes the likeliest token, 1 draws by the model's own probabilities (0.8)"
    )
    top_k: Annotated[int, Field(ge=1)] | None = Field(
        None, description="draw among so many likeliest; all unless given"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="of the drawing (0)")
    cache: bool = Field(
        True, description="false: run the whole text again for every token, to see what the cache saves"
    )


def main(arguments: list[str]) -> int:
    return run_command(arguments, USAGE, GenerateOptions, act)


def act(options: GenerateOptions, rest: list[str]) -> None:
    prompt = read_prompt(options)
    config, folder = run_config(options.run, rest)
    import torch  # slow to import: not for mistakes

    from minillm.data.tokenizer import vocabulary_size
    from minillm.generate import decoded, generate
    from minillm.loaded import autocast, load_run

    run = load_run(config, folder)
    if run.tokenizer is None:
        raise UserError(f"{folder} was trained on synthetic tokens, which are no text: choose another run")
    ids, context = run.tokenizer.encode(prompt, add_special_tokens=False).ids, config.data.sequence_length
    vocabulary = vocabulary_size(run.tokenizer)
    if len(ids) >= context:
        raise UserError(
            f"the prompt has {len(ids)} tokens, and the model's context of {context} must hold one more: "
            f"shorten it, or type data.sequence_length={2 * len(ids)}, beyond what the model was trained for"
        )
    if options.top_k is not None and options.top_k > vocabulary:
        raise UserError(f"top_k={options.top_k} is more than the vocabulary of {vocabulary}: type that at most")
    new = generate(
        run.model,
        torch.tensor(ids, device=run.device),
        min(options.tokens, context - len(ids)),
        temperature=options.temperature,
        seed=options.seed,
        top_k=options.top_k,
        vocabulary=vocabulary,
        end=run.tokenizer.token_to_id(config.tokenizer.end_token),
        cached=options.cache,
    )
    print(prompt, end="", flush=True)
    times = [time.perf_counter()]
    with autocast(config):
        for text in decoded(run.tokenizer, ids, new):
            print(text, end="", flush=True)
            times.append(time.perf_counter())
    print(flush=True)
    print(speed(times[:-1], len(ids)), file=sys.stderr)  # the last text is what is left over, no token


def speed(times: list[float], prompt: int) -> str:
    """Of the start and each token, in seconds. Kernels may be compiled for the first tokens: hence the median."""
    count, first = len(times) - 1, f", the first after {times[1] - times[0]:.2f} s" if len(times) > 1 else ""
    steps = [after - before for before, after in itertools.pairwise(times[1:])]
    rate = f", then {1 / median(steps):.1f} a second (median)" if steps else ""
    return f"{count} tokens after a prompt of {prompt}{first}{rate}"


def read_prompt(options: GenerateOptions) -> str:
    """The prompt as it was given. Raises UserError if there is none, or if it is not UTF-8."""
    if options.prompt is None and sys.stdin.isatty():
        raise UserError("there is no prompt: type prompt='...', or send one to standard input")
    raw = sys.stdin.buffer.read() if options.prompt is None else os.fsencode(options.prompt)
    if not raw:
        raise UserError("the prompt is empty: give at least one character to continue")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"the prompt is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}") from error
