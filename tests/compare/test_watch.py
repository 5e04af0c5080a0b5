"""What others do on the CPUs is seen, and told apart from our own."""

import time

import pytest

from minillm.compare import watch


def test_our_own_work_is_not_that_of_others() -> None:
    before = watch.cpu_seconds([])
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = watch.cpu_seconds([])
    if before is None or after is None:
        pytest.skip("/proc does not tell")
    elapsed, busy, ours = (new - old for new, old in zip(after, before, strict=True))
    assert ours >= 0.25 and busy >= 0.25 and elapsed >= 0.25
