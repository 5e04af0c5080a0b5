"""What is done *to* a model, from outside: precision, then compiling. The model itself knows of neither."""

import torch
from torch import nn

from minillm.model import Llama


def to_bf16(model: nn.Module) -> None:
    """`bf16-true`: matrices in bf16, vectors (the norms' weights) left in fp32, in place; a tied matrix stays one.

    Not Lightning's plugin of that name: it casts the norms' weights too, and 1.0 in bf16 never moves.
    """
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data = parameter.data.to(torch.bfloat16)


def compile_blocks(model: Llama) -> None:
    """`compile=true`: each block by itself, in place.

    One compiled block then serves all layers, and names in checkpoints stay: `torch.compile(block)` would prefix them
    with `_orig_mod`.
    """
    for block in model.blocks:
        block.compile(dynamic=False)
