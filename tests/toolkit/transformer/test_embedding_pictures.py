"""The matrix with three uses, how related tokens are, and the pictures."""

from __future__ import annotations

from typing import ClassVar

import matplotlib.pyplot as plt
import torch

from tests.toolkit.drawings import Drawings, words
from toolkit.transformer import embedding_pictures as pictures

STATE = torch.tensor([1.0, -1, 1, 1])


class TestDrawings(Drawings):
    """No text runs out of a picture or over another one."""

    drawings: ClassVar = {"three uses": lambda: pictures.three_uses(STATE)}


def test_the_matrix_has_orthogonal_rows_of_variance_one_over_the_width() -> None:
    assert pictures.MATRIX.var(unbiased=False) == 0.25
    assert pictures.MATRIX.mean() == 0
    assert torch.equal(pictures.MATRIX @ pictures.MATRIX.T, torch.eye(4))
    shown = words(pictures.three_uses(STATE))
    assert shown.count("2") == 1
    assert shown.count("0") == 3
    plt.close("all")


def test_words_of_a_group_are_told_from_others() -> None:
    matrix = torch.tensor([[1.0, 0], [2, 0], [0, 1], [0, 3]])
    assert pictures.relatedness(matrix, [[0, 1], [2, 3]]) == (1, 0)


def test_sizes_are_printed_with_three_digits() -> None:
    assert [pictures.readable(x) for x in (0.0442, 22.63, 1.0001)] == ["0.0442", "22.6", "1"]
    plt.close("all")
