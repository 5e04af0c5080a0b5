"""The kernels' tests run compiled on a GPU, or in Triton's interpreter on a machine without one."""

import pytest
import torch

from kernels.operator import INTERPRETED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where the kernels are interpreted."""
    if INTERPRETED:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Every test starts from one seed, alone or in the suite."""
    torch.manual_seed(0)
