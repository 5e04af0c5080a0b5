"""Several devices, a process (a rank) each: which one this is, and what ranks tell one another.

A rank knows its place by the environment variables that torchrun sets, and `ranks.py` sets the same.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

PLACE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = timedelta(minutes=10)  # a rank that waits longer for another gives up


def launched() -> bool:
    """Whether this process is one of several ranks."""
    return all(name in os.environ for name in PLACE)


def rank() -> int:
    """This process's number; 0 is the one that prints, logs and writes files."""
    return int(os.environ["RANK"]) if launched() else 0


def world_size() -> int:
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


@contextmanager
def group(gpu: bool) -> Iterator[None]:
    """The ranks meet; in the `with` block they can talk, by gloo between CPUs and by NCCL between GPUs."""
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE)
    yield
    dist.destroy_process_group()  # not after an error: with a rank lost that could wait for it


def highest(values: Sequence[float]) -> list[float]:
    """Each value's maximum over the ranks. Hosts wait for one another, devices for nobody."""
    if not dist.is_initialized():
        return list(values)
    most = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.tolist()


def add_up(tensor: Tensor) -> Tensor:
    """Sum over the ranks, in place, on the tensor's device: the host does not wait for a GPU."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, in the same memory; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
