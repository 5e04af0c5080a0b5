"""The beginning of a run, for a reader."""

from typing import Any

from minillm import hardware
from minillm.config import Config
from minillm.data import Corpus


def header(config: Config, known: dict[str, Any], corpus: Corpus, parameters: int, needed: str) -> str:
    """What is about to run, in a few lines."""
    model, info = config.model, corpus.info
    layers = " ".join(f"{layer}={name}" for layer, name in known["layers_ran"].items())
    if hardware.interpreted(config):
        layers += ", in Triton's interpreter: timings mean nothing"
    compiled = ", blocks compiled" if config.compile else ""
    device, attention = known["env"]["device"], known["attention_backend"]
    trainer = config.trainer
    ranks = "" if trainer.strategy == "single" else f"{trainer.devices} by {trainer.strategy}, each "
    done = known["starts"][-1]["step"]
    steps = f"{done + 1} to {trainer.max_steps}, each" if done else f"{trainer.max_steps} of"
    sequences = config.batch.micro * config.batch.accumulate * trainer.devices
    return "\n".join(
        (
            f"model   {model.name}: {parameters:,} parameters, vocabulary {model.vocab_size}",
            f"layers  {layers}",
            f"device  {ranks}{device}, precision {known['precision']}, attention {attention}{compiled}",
            f"memory  about {needed}",
            f"data    {info['source']}: {side(info, 'train')} to train on, {side(info, 'val')} for validation",
            f"steps   {steps} {sequences} x {config.data.sequence_length} tokens",
        )
    )


def side(info: dict[str, Any], name: str) -> str:
    """How much text the side (train, val) has; synthetic tokens are in no documents."""
    documents = info.get(f"{name}_documents")
    return f"{info[f'{name}_tokens']:,} tokens" + (f" of {documents:,} documents" if documents else "")
