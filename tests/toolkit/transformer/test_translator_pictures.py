"""What the page on the translators shows: maps, heads that are switched off, wrong parts."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from solutions.transformer import PositionwiseFeedForward
from toolkit import models
from toolkit.transformer import translator_pictures as pictures

matplotlib.use("Agg")
TEXT = "March 5, 2021 and 3 days ago"


@pytest.fixture(scope="module")
def shipped() -> models.Shipped:
    return models.load("transformer-en-zh")


def test_rows_are_named_by_what_is_written(shipped: models.Shipped) -> None:
    found = pictures.look(shipped, TEXT)
    assert found.read[0] == "<bos>"
    assert found.written[-1] == "<eos>"
    assert found.read[1:] == found.written[:-1]
    weights = found.weights("cross", 1, 1)
    assert weights.shape == (len(found.written), len(found.source))
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(found.written)))
    assert "月 month" in found.table("cross", 1, 1)
    assert len(pictures.heads_page(found).children) == 4


def test_a_head_or_a_part_is_replaced_in_a_copy(shipped: models.Shipped) -> None:
    before = pictures.say(shipped, TEXT)
    less = pictures.without_head(shipped, "cross", 1, 2)
    assert less.model.decoder.layers[1].src_attn.out_proj.weight[:, 48:72].abs().max() == 0
    same = pictures.with_part(shipped, "PositionwiseFeedForward", PositionwiseFeedForward)
    assert pictures.say(same, TEXT) == before == pictures.say(shipped, TEXT)


def test_shares_and_new_sentences(shipped: models.Shipped) -> None:
    shares = pictures.aligned_shares(shipped, pictures.aligned_pairs(shipped, 3))
    assert shares.shape == (2, 4)
    assert shares.max() <= 1
    pairs = pictures.of_items(shipped, 2, 4)
    assert 0 <= pictures.exact(shipped, pairs) <= 1
    assert "«student»" in pictures.say(shipped, "I am a student")


def test_figure_is_drawn() -> None:
    figure = pictures.by_items({"a": [1, 0.5, 0], "b": [1, 1, 1]}, trained=2)
    figure.canvas.draw()
    plt.close(figure)
