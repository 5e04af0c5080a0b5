"""Which values cannot be combined across the configuration's sections, a rule each."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from minillm.config import DataConfig, ModelConfig, NormConfig, OptimConfig, TokenizerConfig, TrainerConfig


def impossible(sections: Mapping[str, Any]) -> list[str]:
    """What cannot be combined across sections: a sentence each. A section that is missing (it is wrong in itself) is
    passed over, with the rules that need it."""
    problems = []
    for rule in (fused_by_triton_only, vocabulary_holds_the_tokens, named_source_is_read, second_moment_decays):
        needed = signature(rule).parameters
        if all(name in sections for name in needed):
            problems.append(rule(**{name: sections[name] for name in needed}))
    return [problem for problem in problems if problem]


def fused_by_triton_only(norm: NormConfig) -> str | None:
    if norm.fuse_residual or norm.name == "triton":
        return None
    return (
        f"norm.fuse_residual=false is for norm=triton, the only one that adds in the same kernel, not for {norm.name}"
    )


def vocabulary_holds_the_tokens(model: ModelConfig, tokenizer: TokenizerConfig, data: DataConfig) -> str | None:
    trains_one = tokenizer.path is None and data.name != "synthetic"
    if model.vocab_size is None or not trains_one or model.vocab_size >= tokenizer.vocab_size:
        return None
    return (
        f"model.vocab_size={model.vocab_size} is less than tokenizer.vocab_size={tokenizer.vocab_size}: "
        "raise the one, lower the other, or type model.vocab_size=null for the tokenizer's"
    )


def named_source_is_read(data: DataConfig) -> str | None:
    for source, key, value in (("text", "files", data.files), ("hub", "dataset", data.dataset)):
        if value and data.name != source:
            return f"data.{key} is read by data={source}, and data is {data.name}: type data={source} data.{key}=..."
    return None


def second_moment_decays(trainer: TrainerConfig, optim: OptimConfig) -> str | None:
    if trainer.precision != "bf16-true" or optim.beta2 <= 0.99:
        return None
    return (
        f"optim.beta2={optim.beta2} with trainer.precision=bf16-true: a bf16 second moment cannot decay that slowly; "
        "use at most 0.99 (0.95 is usual), or bf16-mixed"
    )
