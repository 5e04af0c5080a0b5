"""A checkpointed block gives the gradients that it gives without, keeps less, and touches nothing of its caller's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minillm.apply import checkpoint_blocks, compile_blocks
from minillm.model import Llama
from tests.training.conftest import make_module

FUSED = {f"{layer}.name": "triton" for layer in ("norm", "rope", "mlp", "loss")}
TOKENS = torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(1))


def gradients(*apply: Callable[[Llama], None], layers: dict[str, Any]) -> tuple[dict[str, Tensor], int]:
    """Gradients by name, and the bytes kept for backward."""
    module = make_module({"model.num_layers": 3} | layers)
    for change in apply:
        change(module.model)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = module.loss_sum(TOKENS)
    loss.backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}, sum(kept.values())


@pytest.mark.parametrize("layers", [{}, FUSED], ids=["eager", "triton"])
def test_gradients_are_equal_to_the_bit_and_less_is_kept(layers: dict[str, Any]) -> None:
    expected, all_kept = gradients(layers=layers)
    found, kept = gradients(checkpoint_blocks, layers=layers)
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        assert torch.equal(found[name], grad), name
    assert kept < all_kept


def test_it_composes_with_compile_and_one_compiled_block_serves_all_layers() -> None:
    torch._dynamo.reset()
    expected, _ = gradients(layers={"model.num_layers": 4})
    torch._dynamo.utils.counters.clear()
    found, _ = gradients(checkpoint_blocks, compile_blocks, layers={"model.num_layers": 4})
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 3  # the first block, which starts the stream; all others; the norm after them
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-5)


def test_a_blocks_inputs_are_unmodified() -> None:
    model = make_module(FUSED).model
    checkpoint_blocks(model)
    inputs = [torch.randn(2, 16, 32, requires_grad=True) for _ in range(2)]
    tables = [torch.rand(16, 4) for _ in range(2)]
    before = [tensor.detach().clone() for tensor in (*inputs, *tables)]
    sum(output.square().sum() for output in model.blocks[1](*inputs, *tables)).backward()
    for tensor, old in zip((*inputs, *tables), before, strict=True):
        assert torch.equal(tensor, old)


def test_names_in_checkpoints_stay() -> None:
    model: nn.Module = make_module().model
    names = list(model.state_dict())
    checkpoint_blocks(model)
    assert list(model.state_dict()) == names
