"""Tests that hold for every diagram; a test file lists its own in a subclass of `Drawings`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from matplotlib.figure import Figure

from toolkit import diagrams


def words(figure: Figure) -> list[str]:
    """All texts of a figure."""
    return [text.get_text() for ax in figure.axes for text in ax.texts]


class Drawings:
    """No text runs out of the picture or over another one."""

    drawings: dict[str, Callable[[], Figure]]

    def test_nothing_runs_out_of_the_picture(self, drawing: str) -> None:
        assert diagrams.texts_outside(self.drawings[drawing]()) == []

    def test_no_two_texts_overlap(self, drawing: str) -> None:
        figure = self.drawings[drawing]()
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        texts = [t for ax in figure.axes for t in ax.texts if t.get_text()]
        boxes = [(t.get_text(), t.get_window_extent(renderer).padded(-1)) for t in texts]
        clashes = [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.overlaps(y)]
        assert clashes == []
