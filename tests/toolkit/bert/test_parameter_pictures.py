"""The page on BERT's parameters: counts, drawings and times."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.collections import PatchCollection

from solutions.bert import BertModel
from toolkit.bert import parameter_pictures as pictures


@pytest.mark.parametrize("sizes", [(10, 4, 1, 8, 6), (31, 12, 3, 48, 20)])
def test_the_parts_add_up_to_the_parameters_of_the_model(sizes: tuple[int, ...]) -> None:
    words, width, layers, inner, positions = sizes
    model = BertModel(words, width, layers, 2, inner, positions)
    assert sum(pictures.by_part(*sizes).values()) == sum(p.numel() for p in model.parameters())


def test_the_tiny_model_is_drawn_with_a_square_for_each_parameter() -> None:
    figure = pictures.every_number()
    squares = [c for c in figure.axes[0].collections if isinstance(c, PatchCollection)]
    drawn = sum(len(collection.get_paths()) for collection in squares)
    assert drawn == sum(pictures.by_part(**pictures.TINY).values()) == 272
    plt.close(figure)


def test_the_exponent_is_that_of_the_last_doubling() -> None:
    assert pictures.exponent([1, 10, 20], [9.0, 100, 400]) == pytest.approx(2)
