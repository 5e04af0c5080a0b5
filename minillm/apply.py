"""What is done *to* a model, from outside: activation checkpointing, precision, compiling, sharding, in that order.

The model itself knows of none of them, and the names of its parameters stay.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from minillm.model import Block, Llama


class CheckpointedBlock(Block):
    """A block that keeps its inputs alone and runs again in backward (Chen et al. 2016)."""

    def forward(self, *inputs: Any) -> Any:
        # Nothing in a block is random, so there is no generator's state to put back.
        return checkpoint(super().forward, *inputs, use_reentrant=False, preserve_rng_state=False)


def checkpoint_blocks(model: Llama) -> None:
    """`model.activation_checkpointing=block`, in place: a wrapper would change the names of the parameters."""
    for block in model.blocks:
        block.__class__ = CheckpointedBlock


def to_bf16(model: nn.Module) -> None:
    """`bf16-true`: matrices in bf16, vectors (the norms' weights) left in fp32, in place; a tied matrix stays one.

    Not Lightning's plugin of that name: it casts the norms' weights too, and 1.0 in bf16 never moves.
    """
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            parameter.data = parameter.data.to(torch.bfloat16)


def compile_blocks(model: Llama) -> None:
    """`compile=true`: each block by itself, and the final norm, in place.

    One compiled block then serves all layers, and names in checkpoints stay: `torch.compile(block)` would prefix them
    with `_orig_mod`. (A final norm left eager cost 1.6% of a step at 110M.)
    """
    for module in (*model.blocks, model.final_norm):
        module.compile(dynamic=False)


def shard(model: Llama, mesh: DeviceMesh, precision: str) -> None:
    """`trainer=fsdp`: every parameter is split over the ranks of `mesh` (FSDP2), in place, and gathered block by block.

    Under `bf16-mixed` the fp32 masters are sharded and matrices gathered in bf16, in which autocast would use them.
    Gradients are averaged in fp32. The norms' weights, small, are fp32 always and stay gathered from forward to
    backward; so do the embedding and the output projection, which the loss uses outside the model's forward.
    """
    vectors = MixedPrecisionPolicy(cast_forward_inputs=False)
    matrices = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if precision == "bf16-mixed" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # the tables of positions and an fp32 stream stay fp32
    )
    for block in model.blocks:
        assert isinstance(block, Block)
        norms = [block.attention_norm, block.mlp_norm]
        fully_shard(norms, mesh=mesh, mp_policy=vectors, reshard_after_forward=False)
        fully_shard(block, mesh=mesh, mp_policy=matrices)
    fully_shard(model.final_norm, mesh=mesh, mp_policy=vectors, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=matrices, reshard_after_forward=False)
