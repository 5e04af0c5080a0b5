"""What a run says of itself before it starts."""

from minillm.header import side


def test_how_much_text_a_side_has_is_said_with_its_documents_where_there_are_any() -> None:
    info = {"train_tokens": 6600, "train_documents": 1200, "val_tokens": 70}
    assert side(info, "train") == "6,600 tokens of 1,200 documents"
    assert side(info, "val") == "70 tokens"
