from collections.abc import Callable

import pytest
import torch

from minillm.config import BatchConfig, Config
from minillm.data import BlocksDataModule, Corpus, prepare_corpus


@pytest.fixture
def corpus(make_config: Callable[..., Config]) -> Corpus:
    return prepare_corpus(make_config(name="synthetic", synthetic_tokens=300, val_fraction=0.4))  # 11 and 7 blocks


def module(corpus: Corpus, num_workers: int = 0) -> BlocksDataModule:
    return BlocksDataModule(corpus, BatchConfig(micro=2, accumulate=2), max_steps=7, seed=5, num_workers=num_workers)


def test_a_batch_is_an_optimizer_step_also_where_an_epoch_ends_in_it(corpus: Corpus) -> None:
    loader = module(corpus).train_dataloader()
    batches = list(loader)
    assert len(loader) == len(batches) == 7
    assert [len(batch["tokens"]) for batch in batches] == [4] * 7
    assert sorted(torch.cat([batch["index"] for batch in batches])[:11].tolist()) == list(range(11))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_at_a_step_gives_the_batches_of_the_uninterrupted_run(corpus: Corpus, num_workers: int) -> None:
    whole = list(module(corpus).train_dataloader())
    resumed = module(corpus, num_workers=num_workers)
    resumed.start_step = 4
    batches = list(resumed.train_dataloader())
    assert len(batches) == 3
    for batch, expected in zip(batches, whole[4:], strict=True):
        assert torch.equal(batch["index"], expected["index"])
        assert torch.equal(batch["tokens"], expected["tokens"])


def test_validation_is_in_order_by_micro_batches_and_repeats(corpus: Corpus) -> None:
    loader = module(corpus).val_dataloader()
    for _ in range(2):
        assert [batch["index"].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6]]


def test_reading_batches_leaves_the_global_random_state_alone(corpus: Corpus) -> None:
    before = torch.random.get_rng_state()
    list(module(corpus).train_dataloader())
    assert torch.equal(torch.random.get_rng_state(), before)
