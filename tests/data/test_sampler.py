import itertools

import pytest

from minillm.data.sampler import PassSampler, StepSampler


def test_every_step_is_whole_and_every_epoch_visits_every_block_once() -> None:
    steps = list(StepSampler(10, 4, max_steps=5, seed=0))
    assert [len(step) for step in steps] == [4] * 5
    order = list(itertools.chain(*steps))
    first, second = order[:10], order[10:]
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


@pytest.mark.parametrize(("blocks", "ranks"), [(24, 3), (23, 2), (7, 3), (3, 2)])
def test_ranks_share_evenly_the_very_steps_that_one_rank_takes(blocks: int, ranks: int) -> None:
    alone = StepSampler(blocks, 2 * ranks, 20, seed=0)
    samplers = [StepSampler(blocks, 2, 20, seed=0, rank=rank, world_size=ranks) for rank in range(ranks)]
    for step, *parts in zip(alone, *samplers, strict=True):
        assert {len(part) for part in parts} == {2}
        assert sorted(itertools.chain(*parts)) == sorted(step)


def test_a_pass_is_in_order_and_ends_with_the_rest() -> None:
    assert list(PassSampler(5, 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(("blocks", "size", "ranks"), [(9, 4, 2), (8, 4, 2), (5, 1, 2), (7, 2, 3), (2, 4, 2)])
def test_in_a_pass_no_block_is_lost_or_seen_twice_and_no_rank_is_without(blocks: int, size: int, ranks: int) -> None:
    samplers = [PassSampler(blocks, size, rank=rank, world_size=ranks) for rank in range(ranks)]
    parts = [part for sampler in samplers for part in sampler]
    assert sorted(itertools.chain(*parts)) == list(range(blocks))
    assert all(parts)
    assert {len(list(sampler)) for sampler in samplers} == {len(samplers[0])}


def test_more_ranks_than_blocks_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 blocks cannot be shared out among 3 ranks"):
        PassSampler(2, 1, world_size=3)
