"""What all tests share."""

import os

import pytest
import torch

# The tests' tensors are tiny: a second thread costs more than it gives, most of all beside a second process.
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where no GPU is usable."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))
