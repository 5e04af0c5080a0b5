import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.data.packing import Blocks


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), max_size=12), sequence_length=st.integers(1, 20))
def test_every_token_after_the_first_is_a_target_exactly_once_except_the_counted_remainder(
    sizes: list[int], sequence_length: int
) -> None:
    stream = np.arange(sum(sizes), dtype=np.uint16)
    blocks = Blocks(np.split(stream, np.cumsum(sizes)), sequence_length)
    tokens = blocks[list(range(len(blocks)))]["tokens"].numpy()
    assert np.array_equal(tokens[:, 1:].ravel(), stream[1 : len(stream) - blocks.remainder])
    assert np.array_equal(tokens[:, :-1] + 1, tokens[:, 1:])
    assert blocks.remainder < sequence_length


def test_a_batch_has_the_blocks_that_were_asked_for_in_that_order() -> None:
    batch = Blocks([np.arange(10, dtype=np.uint16), np.arange(10, 100, dtype=np.uint16)], 8)[[11, 0, 1]]
    assert batch["index"].tolist() == [11, 0, 1]
    assert batch["tokens"].shape == (3, 9)
    assert batch["tokens"][:, 0].tolist() == [88, 0, 8]
    assert batch["tokens"].dtype.is_signed and batch["tokens"].element_size() == 8


def test_a_block_that_does_not_exist_is_an_error() -> None:
    blocks = Blocks([np.arange(20, dtype=np.uint16)], 8)
    for number in (-1, 2):
        with pytest.raises(IndexError):
            blocks[[number]]
