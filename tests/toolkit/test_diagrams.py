"""Diagrams say the right shapes, and nothing in them overlaps or runs out of the picture."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib as mpl
import pytest
import torch
from matplotlib.figure import Figure

from tests.toolkit.drawings import Drawings, words
from toolkit import diagrams

DRAWINGS: dict[str, Callable[[], Figure]] = {
    "heads": diagrams.heads_and_mixing,
    "contexts": lambda: diagrams.decoder_contexts(
        torch.eye(4), ["big", "dog", "bird", "sees"], ["kan", "ta", "vida", "avi"]
    ),
}


class TestDrawings(Drawings):
    drawings = DRAWINGS


def test_a_text_that_runs_out_is_noticed() -> None:
    canvas = diagrams.Canvas(4, 4)
    canvas.text(3.9, 2, "much too long for this place")
    assert diagrams.texts_outside(canvas.figure) == ["much too long for this place"]


@pytest.mark.parametrize("heads", [2, 8])
def test_the_heads_add_up_to_the_width(heads: int) -> None:
    text = words(diagrams.heads_and_mixing(heads=heads, tokens=10, d_model=512))
    assert sum(f"(10, {512 // heads})" in t for t in text) == heads
    assert any("(512, 512)" in t for t in text)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        diagrams.heads_and_mixing(heads=3, d_model=512)


def test_contexts_get_an_arrow_from_every_annotation() -> None:
    """One per weight on the right; the left side has its one context."""
    figure = DRAWINGS["contexts"]()
    text = words(figure)
    assert [f"$c_{i}$" in text for i in range(1, 5)] == [True] * 4
    assert text.count("$c$") == 1
    widths = [p.get_linewidth() for p in figure.axes[0].patches
              if isinstance(p, mpl.patches.FancyArrowPatch)]  # fmt: skip
    assert sum(width > 2.5 for width in widths) == 4  # the weights of 1
    assert sum(width == 0.5 for width in widths) == 12  # the weights of 0


def test_contexts_refuse_weights_of_another_shape() -> None:
    with pytest.raises(ValueError, match="shape"):
        diagrams.decoder_contexts(torch.eye(3), ["a", "b", "c"], ["x", "y"])
