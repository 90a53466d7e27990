"""What the pictures of the GPT chapter's first page show."""

from __future__ import annotations

import itertools

import pytest
import torch
from matplotlib.figure import Figure

from toolkit.diagrams import texts_outside
from toolkit.gpt import index_pictures as pictures
from toolkit.models import Shipped, load


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("gpt")


def gids(figure: Figure) -> set[str]:
    """The names of what is drawn."""
    return {str(a.get_gid()) for a in figure.findobj() if a.get_gid()}


def test_what_is_added_on_the_way_is_what_the_model_returns(shipped: Shipped) -> None:
    found = pictures.follow(shipped)
    with torch.no_grad():
        logits = shipped.model(torch.tensor([found.ids]))[0]
        torch.testing.assert_close(found.logits, logits)
        features = torch.nn.functional.layer_norm(
            found.added.sum(0), (128,), found.gamma, found.beta
        )
    torch.testing.assert_close(found.features, features, atol=1e-5, rtol=1e-4)
    assert found.lens[-1] is not None
    best, chance = found.lens[-1]
    assert found.best(1) == pytest.approx({best: chance})
    assert len(found.stages) == len(found.added) == len(found.lens) == 10


def test_writing_appends_the_best_token_until_the_end(shipped: Shipped) -> None:
    steps = pictures.write(shipped)
    for before, after in itertools.pairwise(steps):
        assert after.before == before.before + before.text
        assert before.token == max(before.best, key=lambda token: before.best[token])
    assert steps[-1].token == "[END]"


def test_a_head_that_is_taken_away_comes_back(shipped: Shipped) -> None:
    before = pictures.next_tokens(shipped, pictures.TEXT)
    assert pictures.without(shipped, 3, 3) != before
    assert pictures.next_tokens(shipped, pictures.TEXT) == before


def test_pages_of_the_index_hold_the_tokens_and_escape_them(shipped: Shipped) -> None:
    found, steps = pictures.follow(shipped), pictures.write(shipped)
    assert "return" in pictures.step_page(steps, 2)
    assert "+ network 3" in pictures.stream_page(found)
    assert "L3 H3" in pictures.heads_page(found)
    assert "__repr__" in pictures.swapped_page(shipped, "__repr__")
    assert "..." in pictures.learned_text({"1%": ["x" * 80]}, "def f():", 0)


def test_all_texts_stand_inside_the_drawings(shipped: Shipped) -> None:
    drawn = (
        pictures.journey(pictures.follow(shipped)), pictures.three_blocks(), pictures.ways(),
    )  # fmt: skip
    for figure in drawn:
        assert not texts_outside(figure)


def test_only_the_encoder_layer_is_drawn_without_a_causal_mask() -> None:
    names = gids(pictures.three_blocks())
    hidden = {name for name in names if name.startswith("mask:") and name.endswith(":0")}
    assert {name.split(":")[1] for name in hidden} == {"decoder", "gpt"}
    assert "encoder.norm feed-forward>decoder.cross-attention:memory" in names
