"""What *Before you begin* shows: broadcasting as a picture, and a model of one letter."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from toolkit.diagrams import FILL, SOFT
from toolkit.plots import INK, SHEET


class NextLetter(nn.Module):
    """From each letter to logits for the letter that follows it."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.output = nn.Linear(d_model, vocab_size)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)  # (T,) -> (T, d_model)
        return self.output(x)  # (T, vocab_size)


def least_loss(text: Sequence[str]) -> float:
    """The smallest mean loss of a model that sees one letter: it knows how often which follows."""
    pairs = Counter(itertools.pairwise(text))
    before = Counter(text[:-1])
    each = [count * -math.log(count / before[first]) for (first, _), count in pairs.items()]
    return sum(each) / (len(text) - 1)


def broadcasting(column: Sequence[int], row: Sequence[int]) -> Figure:
    """A column plus a row: both are repeated until their shapes agree, and then added."""
    high, wide, gap = len(column), len(row), 1.15
    figure, ax = plt.subplots(figsize=(0.5 * (3 * wide + 2 * gap), 0.5 * (high + 1.9)))
    ax.set_xlim(-0.1, 3 * wide + 2 * gap + 0.1)
    ax.set_ylim(-1.0, high + 0.9)
    ax.set_aspect("equal")
    ax.axis("off")
    at = [n * (wide + gap) for n in range(3)]
    for i, first in enumerate(column):
        for j, second in enumerate(row):
            y = high - 1 - i
            _cell(ax, at[0] + j, y, first, "query", copy=j > 0)
            _cell(ax, at[1] + j, y, second, "key", copy=i > 0)
            _cell(ax, at[2] + j, y, first + second, "output")
    for x, sign in zip(at[1:], "+=", strict=True):
        ax.text(x - gap / 2, high / 2, sign, ha="center", va="center", fontsize=17)
    titles = (f"({high}, 1)", f"({wide},)", f"({high}, {wide})")
    said = ("its column repeated", "its row repeated", "added")
    for x, title, words in zip(at, titles, said, strict=True):
        ax.text(x + wide / 2, high + 0.45, title, ha="center", va="center", fontsize=12)
        ax.text(x + wide / 2, -0.5, words, ha="center", va="center", fontsize=10, color=SOFT)
    return figure


def _cell(ax: Axes, x: float, y: float, number: int, kind: str, copy: bool = False) -> None:
    """One number in its square; a copy is pale, with a dotted edge."""
    edge = {"linestyle": ":", "edgecolor": SOFT} if copy else {"edgecolor": INK}
    colour = SHEET if copy else FILL[kind]
    ax.add_patch(Rectangle((x, y), 1, 1, facecolor=colour, linewidth=1, **edge))
    ink = SOFT if copy else INK
    ax.text(x + 0.5, y + 0.5, f"{number}", ha="center", va="center", fontsize=13, color=ink)
