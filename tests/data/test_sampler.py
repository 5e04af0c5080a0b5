import itertools

import pytest

from minillm.data.sampler import StepSampler


def test_an_epoch_visits_every_block_once_and_its_last_step_takes_the_rest() -> None:
    steps = list(StepSampler(10, 4, max_steps=6, seed=0))
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    first, second = list(itertools.chain(*steps[:3])), list(itertools.chain(*steps[3:]))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_resumed_run_sees_what_the_uninterrupted_one_saw() -> None:
    whole = StepSampler(10, 4, max_steps=8, seed=3)
    for step in range(9):
        resumed = StepSampler(10, 4, max_steps=8, seed=3, start_step=step)
        assert list(resumed) == list(whole)[step:]
        assert len(resumed) == 8


def test_the_order_depends_on_the_seed_alone() -> None:
    assert list(StepSampler(50, 4, max_steps=3, seed=1)) == list(StepSampler(50, 4, max_steps=9, seed=1))[:3]
    assert list(StepSampler(50, 4, max_steps=3, seed=1)) != list(StepSampler(50, 4, max_steps=3, seed=2))


@pytest.mark.parametrize(("blocks", "ranks"), [(24, 3), (23, 2), (7, 3)])
def test_ranks_share_each_step_evenly_and_no_block_is_seen_twice_in_an_epoch(blocks: int, ranks: int) -> None:
    samplers = [StepSampler(blocks, 2, 40, seed=0, rank=rank, world_size=ranks) for rank in range(ranks)]
    epoch: list[int] = []
    for step in list(zip(*samplers, strict=True))[: samplers[0].steps_per_epoch]:
        assert len({len(part) for part in step}) == 1 and step[0]
        epoch += itertools.chain(*step)
    assert len(epoch) == len(set(epoch)) == blocks - blocks % ranks


def test_without_a_seed_the_order_is_fixed_and_one_epoch_long() -> None:
    assert list(StepSampler(5, 2)) == [[0, 1], [2, 3], [4]]


def test_more_ranks_than_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 blocks cannot be shared out among 3 ranks"):
        StepSampler(2, 1, world_size=3)
