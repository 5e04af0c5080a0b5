"""Forward and backward as one CUDA graph: launched by one call, so that no kernel waits for the host.

What it needs: nothing inside that the host decides or waits for, the same shapes each step, every kernel compiled and
every handle made before (hence the steps ahead of the capture, on its stream). The gradients live in the graph's own
memory and are written anew by each replay, so they are never set to None.

The optimizer's step follows outside: StochasticAdamW counts its steps on the host and makes its keys and bias
corrections there, from where they are copied. Inside, they would be those of the captured step for ever. It could be
captured if the count were a tensor on the device and the kernel derived keys and corrections from it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from minillm.bench.step.step import Step

STEPS_AHEAD = 3


@dataclass
class GraphedStep(Step):
    """A step whose `loss` and its backward are replayed on `tokens`, into which each batch is copied."""

    graph: torch.cuda.CUDAGraph | None = None
    tokens: Tensor | None = None

    def __call__(self) -> None:
        assert self.graph is not None and self.tokens is not None
        self.tokens.copy_(next(self.batches))
        self.graph.replay()
        self.optimizer.step()


def captured(step: Step) -> GraphedStep:
    """`step`, its forward and backward captured. Raises RuntimeError where they hold what cannot be."""
    tokens = next(step.batches).clone()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with step.attention():
        with torch.cuda.stream(stream):
            for _ in range(STEPS_AHEAD):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            step.loss(tokens).backward()
    return GraphedStep(step.loss, step.optimizer, step.batches, step.attention, graph=graph, tokens=tokens)
