"""Marks around the model's parts, put there from outside for as long as a profile takes."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.profiler import record_function

from minillm.model import Llama

PREFIX = "part: "


def marked(function: Callable[..., Any], part: str) -> Callable[..., Any]:
    """`function`, a range of that name around each call in a profile."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(PREFIX + part):
            return function(*args, **kwargs)

    return call


@contextmanager
def marked_parts(model: Llama) -> Iterator[None]:
    """Inside, each part of the model runs within a range: embedding, norm, attention, rope, mlp.

    What is compiled as a whole (a block, the final norm) stays as it is: marks inside would compile it anew, as
    something else.
    """
    parts: list[tuple[Any, str, str]] = [(model.embedding, "forward", "embedding")]
    if model.final_norm._compiled_call_impl is None:
        parts.append((model.final_norm, "forward", "norm"))
    for block in model.blocks:
        if block._compiled_call_impl is None:
            parts += [(block.attention_norm, "forward", "norm"), (block.mlp_norm, "forward", "norm")]
            parts += [(block.attention, "forward", "attention"), (block.attention, "rope", "rope")]
            parts += [(block.mlp, "forward", "mlp")]
    before = [(module, attribute, vars(module).get(attribute)) for module, attribute, _ in parts]
    try:
        for module, attribute, part in parts:
            setattr(module, attribute, marked(getattr(module, attribute), part))
        yield
    finally:
        for module, attribute, own in before:
            if own is None:  # a method: the class has it
                vars(module).pop(attribute, None)
            else:
                setattr(module, attribute, own)
