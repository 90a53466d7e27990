"""What the pictures of the BERT chapter's first page show."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.bert import index_pictures as pictures
from toolkit.diagrams import texts_outside
from toolkit.models import Shipped, load


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("bert")


def test_the_steps_that_are_kept_are_those_of_the_model(shipped: Shipped) -> None:
    found = pictures.follow(shipped)
    ids, segments = torch.tensor([found.ids]), torch.tensor([found.segments])
    with torch.no_grad():
        logits, follows = shipped.model(ids, segments)
    torch.testing.assert_close(found.logits, logits[0, found.gap])
    torch.testing.assert_close(found.next_logits, follows[0])
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(4, 4, 9))
    matrix = shipped.model.mlm.token.weight
    torch.testing.assert_close(found.transformed @ matrix.T + found.bias, found.logits)


def test_from_the_left_alone_the_word_behind_the_gap_does_not_matter(shipped: Shipped) -> None:
    left = [pictures.guesses(shipped, word, left_only=True) for word in pictures.WORDS]
    both = [pictures.guesses(shipped, word) for word in pictures.WORDS]
    assert all(one == left[0] for one in left)
    assert len({max(one, key=lambda word: one[word]) for one in both}) == len(both)


def test_all_texts_stand_inside_the_drawings(shipped: Shipped) -> None:
    found = pictures.follow(shipped)
    assert not texts_outside(pictures.journey(found))
    assert not texts_outside(pictures.stages())
    marks = {p.get_gid() for ax in pictures.both_masks(found.tokens, 2).axes for p in ax.patches}
    assert "BERT:2:8:True" in marks
    assert "left to right:2:3:False" in marks
    plt.close("all")
