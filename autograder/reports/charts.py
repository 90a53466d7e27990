"""The class report's pictures, as SVG that follows the page's colours, light or dark."""

from __future__ import annotations

import io
import re
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from autograder.common import cards

BLUE, ORANGE, PALE = "#5b7fc7", "#c2571a", "#b7912f"


@contextmanager
def _figure(width: float, height: float) -> Iterator[Any]:
    import matplotlib
    from matplotlib.figure import Figure

    # The text stays text: readable for machines, and in the page's own colour and font.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0)
        yield figure


def _svg(figure: Any, name: str, label: str) -> str:
    """The figure as an element of a page; its ids begin with `name`."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several pictures stand on one page.
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg)
    # Axes and their text in the colour of the page.
    svg = svg.replace("#000000", "currentColor")
    svg = re.sub(r"(<text style=\")(?![^\"]*fill)", r"\1fill: currentColor; ", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def histogram(scores: Sequence[float], most: float) -> str:
    """The distribution of points."""
    from matplotlib.ticker import MaxNLocator

    most = max(most, 1.0)
    with _figure(4.8, 2.7) as figure:
        axes = figure.subplots()
        axes.hist(
            [min(max(score, 0.0), most) for score in scores],
            bins=[most * step / 10 for step in range(11)],
            color=BLUE,
            edgecolor="none",
            rwidth=0.92,
        )
        if scores:
            middle = statistics.median(scores)
            axes.axvline(middle, color=ORANGE, linewidth=1.6, linestyle="--")
            left = middle < 0.8 * most
            axes.annotate(
                f"median {cards.number(middle)}",
                (middle, 1),
                xytext=(4 if left else -4, 2),
                textcoords="offset points",
                xycoords=("data", "axes fraction"),
                color=ORANGE,
                fontsize=9,
                ha="left" if left else "right",
            )
        axes.set_xlim(0, most)
        axes.set_xlabel("points")
        axes.set_ylabel("students")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.patch.set_alpha(0)
        return _svg(figure, "marks", f"Histogram of the points of {len(scores)} students")


def lost_points(sections: Sequence[tuple[str, float, float]]) -> str:
    """Points that the class lost, section by section, the most first.

    Args:
        sections: heading, points lost by known mistakes, points lost by others.
    """
    # Narrow, with each heading above its bar: as large on a phone as on a wide screen.
    with _figure(4.6, 0.75 + 0.52 * len(sections)) as figure:
        axes = figure.subplots()
        places = range(len(sections))
        known = [one[1] for one in sections]
        other = [one[2] for one in sections]
        axes.barh(places, known, height=0.42, color=ORANGE, label="known mistakes")
        if any(other):
            axes.barh(places, other, left=known, height=0.42, color=PALE, label="other failures")
        most = max((one[1] + one[2] for one in sections), default=0) or 1
        for place, (heading, first, second) in enumerate(sections):
            short = textwrap.shorten(heading, 46, placeholder="…")
            axes.text(0, place - 0.3, short, fontsize=10.5, va="bottom", parse_math=False)
            number = cards.number(round(first + second, 1))
            axes.text(first + second + 0.01 * most, place, number, fontsize=10.5, va="center")
        axes.set_ylim(len(sections) - 0.6, -0.85)
        axes.set_xlim(0, 1.12 * most)
        axes.set_yticks([])
        axes.set_xlabel("points lost by the class")
        axes.set_ylabel("section of the book")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.axvline(0, color="#000000", linewidth=0.8)
        if any(other):
            axes.legend(loc="lower right", frameon=False, fontsize=9.5)
        axes.patch.set_alpha(0)
        said = "; ".join(
            f"{heading}: {cards.number(round(first + second, 1))}"
            for heading, first, second in sections
        )
        return _svg(figure, "lost", f"Points lost by the class in each section of the book. {said}")
