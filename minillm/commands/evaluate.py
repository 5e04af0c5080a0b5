"""scripts/evaluate.py: how well a run's model predicts text that it was not trained on."""

from typing import TYPE_CHECKING

from minillm.commands.options import Options, run_command, run_config
from minillm.errors import UserError

if TYPE_CHECKING:
    from minillm.data import Blocks
    from minillm.loaded import LoadedRun

USAGE = """Loss, perplexity and bits per byte of a run's model, each with a standard error.

  python scripts/evaluate.py run=last                                   the run's own validation text
  python scripts/evaluate.py run=last data=text data.files=book.txt     all of another text

Any value of train.py can be typed, such as data.sequence_length=512 or layers=triton.
"""
SOURCE = ("name", "files", "dataset", "subset", "split", "text_column", "synthetic_tokens")


def main(arguments: list[str]) -> int:
    return run_command(arguments, USAGE, Options, act)


def act(options: Options, rest: list[str]) -> None:
    config, folder = run_config(options.run, rest)
    from minillm.evaluate import evaluate  # slow to import: not for mistakes
    from minillm.loaded import load_run

    run = load_run(config, folder)
    blocks, which = text(run)
    print(f"step {run.saved.step} of {folder}")
    tokens = len(blocks) * blocks.sequence_length
    print(f"on {which}: {tokens:,} tokens in {len(blocks):,} blocks of {blocks.sequence_length}", flush=True)
    if blocks.remainder:
        print(f"the last {blocks.remainder:,} tokens fill no block and are left out", flush=True)
    result = evaluate(run, blocks)
    for name, value, error in result.rows():
        print(f"{name:>14}  {value:.4f}" + ("" if error is None else f" ± {error:.4f}"))


def text(run: "LoadedRun") -> tuple["Blocks", str]:
    """What is evaluated, and what to call it.

    Of the text that the run was trained on, that is the part which it was not trained on; of another text all.
    """
    from minillm.data import prepare_corpus
    from minillm.data.whole_text import whole_text
    from minillm.resume import from_anywhere

    now, trained = from_anywhere(run.config).data.model_dump(mode="json"), run.saved.config["data"]
    if any(now[key] != trained[key] for key in SOURCE):
        if run.tokenizer is None:
            raise UserError("the run was trained on synthetic tokens and has no tokenizer: it cannot read a text")
        if run.config.data.name == "synthetic":
            raise UserError("data=synthetic is for runs that were trained on such tokens: name a text")
        return whole_text(run.config, run.tokenizer), f"all of data={run.config.data.name}"
    if now["val_fraction"] != trained["val_fraction"]:
        raise UserError(
            f"data.val_fraction={now['val_fraction']}, but the run was trained with {trained['val_fraction']}: leave "
            "it out, or some of what it was trained on would be evaluated"
        )
    corpus = prepare_corpus(run.config)
    if corpus.info["hash"] != run.saved.corpus:
        raise UserError(
            f"the text that the run was trained on has changed (corpus {run.saved.corpus}, now {corpus.info['hash']}): "
            "name one to evaluate, such as data=text data.files=..."
        )
    return corpus.val, "the run's validation text"
