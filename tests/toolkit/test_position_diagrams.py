"""Diagrams of the chapter on positions say what is computed; widget frames need nothing else."""

from __future__ import annotations

import base64
import functools
import io
import math
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tests.toolkit.drawings import Drawings, words
from toolkit import position_diagrams as drawn

LOW = [(108, 111), (256, 119), (32, 257)]  # lo, low, and low after a space


def draw(name: str) -> Figure:
    if name == "sum":
        torch.manual_seed(0)
        return drawn.embedding_plus_position(
            ["I", "have", "a", "dream"], torch.randn(4, 32), torch.randn(4, 32)
        )
    return drawn.merge_tree(" lowest", LOW)


DRAWINGS = {name: functools.partial(draw, name) for name in ("sum", "merges")}


class TestDrawings(Drawings):
    drawings = DRAWINGS


def test_the_strips_show_the_table_its_multiple_the_position_and_the_sum() -> None:
    torch.manual_seed(1)
    embeddings, positions = torch.randn(2, 16), torch.randn(2, 16)
    figure = drawn.embedding_plus_position(["a", "b"], embeddings, positions)
    strips = [np.asarray(image.get_array())[0] for image in figure.axes[0].images]
    expected = [embeddings, embeddings * 4, positions, embeddings * 4 + positions]
    for line in range(2):
        for strip, values in zip(strips[4 * line : 4 * line + 4], expected, strict=True):
            np.testing.assert_allclose(strip, values[line], rtol=1e-6)
    assert len({image.get_clim() for image in figure.axes[0].images}) == 1  # one scale


def test_strips_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="fit"):
        drawn.embedding_plus_position(["a"], torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="fit"):
        drawn.embedding_plus_position(["a"], torch.zeros(1, 4), torch.zeros(1, 6))


def test_the_tree_merges_in_the_order_of_learning() -> None:
    text = words(drawn.merge_tree(" lowest", LOW))
    assert [word for word in text if word.startswith("merge")] == ["merge 0", "merge 1", "merge 2"]
    assert {"lo", "low", "␣low"} <= set(text)
    assert "ids 258, 101, 115, 116" in text


def test_the_tree_shows_bytes_that_are_no_text_as_numbers() -> None:
    text = words(drawn.merge_tree("é", [(195, 169)]))
    assert {"c3", "a9", "é", "ids 256"} <= set(text)
    assert words(drawn.merge_tree("é", []))[-1] == "ids 195, 169"


def test_a_tree_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        drawn.merge_tree("", LOW)


def test_the_table_frame_holds_the_table_as_a_picture() -> None:
    table = torch.tensor([[-1.0, 0.0, 1.0], [1.0, 1.0, -1.0]])
    frame = drawn.table_frame(table, 'two "rows" & more', ("a < b",))
    assert "alt='two &quot;rows&quot; &amp; more'" in frame
    assert "a &lt; b" in frame
    data = base64.b64decode(re.search(r"base64,([^']+)'", frame)[1])
    pixels = plt.imread(io.BytesIO(data))
    assert pixels.shape[:2] == (2, 3)
    red, blue = pixels[0, 2], pixels[0, 0]
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert np.array_equal(pixels[1, 0], red)
    assert np.array_equal(pixels[1, 2], blue)
    assert "http" not in frame


def test_the_pair_frame_says_the_codes_and_the_matrix_that_joins_them() -> None:
    omega, place, offset = 0.3, 5, 7
    frame = drawn.pair_frame(omega, place, offset)
    codes = [(math.sin(omega * p), math.cos(omega * p)) for p in (place, place + offset)]
    for sine, cosine in codes:
        assert f"({sine:+.2f}, {cosine:+.2f})" in frame
    numbers = [float(x) for x in re.search(r"matrix \[\[(.+)\]\]", frame)[1]
               .replace("], [", ", ").split(", ")]  # fmt: skip
    matrix = np.array(numbers).reshape(2, 2)
    np.testing.assert_allclose(matrix @ codes[0], codes[1], atol=0.02)


def test_the_matrix_of_the_pair_frame_does_not_depend_on_the_position() -> None:
    matrices = {re.search(r"matrix (\[\[.+?\]\])", drawn.pair_frame(0.2, p, 3))[1]
                for p in (0, 4, 20)}  # fmt: skip
    assert len(matrices) == 1
