"""What the pictures of masked language modelling show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from toolkit.bert import masking_pictures as pictures
from toolkit.corpora.docstrings import IGNORE, MASK
from toolkit.models import Shipped, load

SENTENCE = "Return true if the object is a code object."


@pytest.fixture(scope="module")
def bert() -> Shipped:
    return load("bert")


def test_the_fate_of_a_token_is_read_from_input_and_label() -> None:
    ids = torch.tensor([[7, 8, 9, 10]])
    corrupted = torch.tensor([[MASK, 20, 9, 10]])
    labels = torch.tensor([[7, 8, 9, IGNORE]])
    assert pictures.fates(ids, corrupted, labels).tolist() == [[0, 1, 2, -1]]


def test_the_bars_of_the_outcomes_are_as_long_as_their_shares() -> None:
    wide = {p.get_gid(): p.get_width() for p in pictures.outcomes().axes[0].patches if p.get_gid()}
    assert wide["chosen"] / wide["rest"] == pytest.approx(0.15 / 0.85)
    assert [wide[name] for name in pictures.FATES] == pytest.approx([8, 1, 1])


def test_each_chosen_token_has_a_field_in_its_epoch() -> None:
    found = torch.tensor([[0, -1], [-1, 1], [2, -1]])
    fields = {p.get_gid() for p in pictures.epochs(found, ["a", "b"]).axes[0].patches}
    assert fields - {None} == {"[MASK]:0:0", "another token:1:1", "unchanged:2:0"}


def test_the_bars_of_several_functions_add_up_to_what_they_chose() -> None:
    ids = torch.arange(5, 105)[None]  # (1, 100)
    labels = ids.masked_fill(torch.arange(100) >= 10, IGNORE)
    corrupted = torch.where(torch.arange(100) < 6, MASK, ids)
    figure = pictures.shares({"six of ten": (ids, corrupted, labels)})
    assert [p.get_width() for p in figure.axes[0].patches] == pytest.approx([6, 0, 4])


def test_a_prediction_comes_from_the_model_and_its_weights_sum_to_one(bert: Shipped) -> None:
    one = pictures.predict(bert.model, bert.tokenizer, SENTENCE, 6)
    assert one.tokens[6] == "[MASK]"
    assert one.best[0] == ("is", pytest.approx(one.share))
    assert one.rank == 1
    assert all(
        weights.sum().item() == pytest.approx(1, abs=1e-4) for weights in one.weights.values()
    )
    shown = pictures.frame(one, "layer 1, head 2", 6, "is")
    assert shown.count("<span class=") == len(one.tokens)
    assert "is</td>" in shown


def test_a_token_that_is_in_the_input_is_predicted_more_often(bert: Shipped) -> None:
    found = pictures.three_ways(bert.model, bert.tokenizer, SENTENCE, (5, 6), "turtle")
    assert [one["input"] for one in found[:3]] == ["[MASK]", "object", "turtle"]
    assert found[1]["original_share"] > found[0]["original_share"]
    assert found[4]["original_share"] > found[3]["original_share"]


def test_pieces_are_predicted_better_alone_than_with_their_word(bert: Shipped) -> None:
    found = pictures.word_accuracy(bert.model, bert.tokenizer, bert.held_out()[:4], 20)
    assert found["words"] == 20
    assert found["pieces"] >= 40
    assert found["alone"] > found["whole"]


def test_words_of_several_pieces_are_found_with_their_positions(bert: Shipped) -> None:
    pieces = bert.tokenizer
    found = list(pictures._words(pieces, [["Returns all descendant elements."]]))
    ids, start, end = found[0]
    words: list[Tensor] = [torch.tensor([2, *ids, 3])[start:end]]
    assert pieces.tokens(words[0].tolist()) == ["desc", "##end", "##ant"]
