"""What the pictures of the block of GPT show."""

from __future__ import annotations

import pytest
import torch

from solutions.gpt import PostNormBlock, PreNormBlock
from toolkit.diagrams import texts_outside
from toolkit.gpt import block_pictures as pictures
from toolkit.models import Shipped, load
from toolkit.plots import array


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load("gpt")


def test_constant_parts_add_up_in_pre_norm_and_are_normalised_in_post_norm() -> None:
    x = torch.tensor([[[1.0, 3.0]]])
    for kind, expected in ((PreNormBlock, [7.0, 3.0]), (PostNormBlock, [1.0, -1.0])):
        block = kind(2, 1).eval()
        pictures.set_constant(block, (4.0, 0.0), (2.0, 0.0))
        assert block(x).flatten().tolist() == pytest.approx(expected, abs=1e-3)


def test_a_part_is_worth_what_its_absence_costs(shipped: Shipped) -> None:
    found = pictures.worth(shipped, functions=20)
    assert len(found.parts) == 8
    assert found.tokens > 100
    assert max(found.parts, key=lambda key: found.parts[key].change) == (0, "network")
    assert pictures.worth(shipped, functions=20) == found  # every part is back in its place
    control = pictures.worth(shipped, functions=20, mean=True)
    assert control.loss == found.loss
    assert 0 < control.parts[0, "network"].change < found.parts[0, "network"].change
    texts = [text.get_text() for text in pictures.missed(found).axes[0].texts]
    assert texts == [f"{part.change:.2f}" for part in found.parts.values()]


def test_the_two_forms_of_gelu_differ_by_less_than_a_thousandth() -> None:
    curve = array(pictures.gelu_gap().axes[0].lines[1].get_ydata())
    assert 4 < abs(curve).max() < 5.5


def test_all_texts_stand_inside_the_drawing() -> None:
    assert not texts_outside(pictures.two_orders())
