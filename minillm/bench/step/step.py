"""One training step, whatever the model."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Step:
    """Calling it takes a step with the next batch: loss, gradients, update, gradients forgotten. It waits for nothing.

    Enter `attention` around steps, and `marks` too where they are profiled.
    """

    loss: Callable[[Tensor], Tensor]  # tokens (B, T + 1) -> mean loss of their B T targets
    optimizer: torch.optim.Optimizer
    batches: Iterator[Tensor]
    attention: Callable[[], AbstractContextManager[None]] = nullcontext
    marks: Callable[[], AbstractContextManager[None]] = nullcontext

    def __call__(self) -> None:
        self.loss(next(self.batches)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
