"""The pictures of the page on training one's own BERT."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from toolkit.bert import training_pictures as pictures


def test_means_of_neighbours_lie_in_their_middle() -> None:
    steps, means = pictures.smooth([float(n) for n in range(1, 13)], width=5)
    assert steps == means == [3, 8]


def test_losses_are_drawn_with_the_line_of_frequency() -> None:
    figure = pictures.live_losses({"a": [8.0] * 20, "b": [7.0] * 20}, 6.1)
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines[:2]] == ["a", "b"]
    assert list(lines[2].get_ydata()) == pytest.approx([6.1 + pictures.NO_CHOICE] * 2)
    plt.close(figure)


def test_an_answer_is_escaped_and_has_a_bar() -> None:
    page = pictures.answers_page("a [MASK] < b", [("<", 0.25)])
    assert "a [MASK] &lt; b" in page
    assert "&lt;</th>" in page
    assert "width:25.0%" in page
