"""FSDP2 through Lightning, with checkpoints in the one format that all runs have: whole tensors, written by rank 0."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from minillm import distributed


class Sharded(ModelParallelStrategy):
    """Data-parallel over all devices (Lightning's default would be tensor-parallel).

    Lightning would number an optimizer's states by the model's parameters, a plain run numbers them by the optimizer's
    groups: here it is the latter, so that a checkpoint loads with any number of ranks.
    """

    def __init__(self, devices: int) -> None:
        super().__init__(data_parallel_size=devices, tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """In the `with` block gradients stay with the rank that computed them."""
        model = self.lightning_module.model if self.lightning_module else None
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return whole(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        plain = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        return whole(plain.state_dict())

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        own = self.lightning_module.state_dict()
        state = {name: part_of(value, own[name]) for name, value in checkpoint["state_dict"].items()}
        self.lightning_module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            states = {
                number: {key: part_of(value, parameters[number]) for key, value in state.items()}
                for number, state in saved["state"].items()
            }
            optimizer.load_state_dict({**saved, "state": states})


def whole(tree: Any) -> Any:
    """The tree with every sharded tensor put together, on rank 0's host; elsewhere what is left has no use."""

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        full = leaf.full_tensor()  # all ranks take part
        return full.cpu() if distributed.rank() == 0 else None

    return tree_map(gathered, tree)


def part_of(value: Any, like: Tensor) -> Any:
    """What this rank holds of a whole tensor, sharded as `like` is; anything else as it is."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    on_device = value.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)  # every rank has read it
