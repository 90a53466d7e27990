"""Pictures of learned, relative and rotary positions and of ALiBi, with the small example of both
pages: *the dog bit the man*.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from toolkit import plots

SENTENCES = ("the dog bit the man", "the man bit the dog")
FRONT = ("yesterday", "again", "and", "then", "suddenly", "still")  # words to put before them

# One step turns by the angle of the triangle with sides 3, 4 and 5, so that turned vectors are
# short decimals.
COSINE, SINE = 0.8, 0.6
ANGLE = math.atan2(SINE, COSINE)
QUERY = (0.8, -0.6)  # of «bit»: turned back by one step, so that it fits the token before it
KEY = (5.0, 0.0)  # of «dog» and «man»

# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme takes the background from every table.
_SHEET = (
    "<style>.shifts{background:#fbfaf7;color:#22252b;padding:.4em .7em;margin:.3em 0;"
    "max-width:100%;box-sizing:border-box;overflow-x:auto;font-size:13px;line-height:1.6}"
    ".shifts table{border-collapse:collapse;width:auto!important;margin:.2em 0;"
    "background:none!important}"
    ".shifts :is(td,th){padding:.15em .5em;border:0!important;text-align:center;"
    "font-weight:normal;color:#22252b!important;background:var(--c,#fbfaf7)!important;"
    "font-variant-numeric:tabular-nums}"
    ".shifts th[scope=row]{text-align:left}.shifts svg{display:block;width:21em;max-width:100%}"
    ".shifts .both{display:flex;flex-wrap:wrap;gap:.3em 1.6em;align-items:center}</style>"
)


# --------------------------------------------------------------------------- learned positions


def similarity(embeddings: Mapping[str, Tensor]) -> Figure:
    """Cosines of every two position embeddings, a map for each model.

    Args:
        embeddings: (L, D) for each name, a row a position.
    """
    figure, axes = plt.subplots(1, len(embeddings), figsize=(3.1 * len(embeddings), 3.0))
    for ax, (name, rows) in zip(axes, embeddings.items(), strict=True):
        unit = rows / rows.norm(dim=-1, keepdim=True)  # (L, D)
        image = ax.imshow(plots.array(unit @ unit.T), cmap="RdBu_r", vmin=-1, vmax=1)
        ticks = range(0, len(rows), 32)
        ax.set(title=name, xlabel="position", xticks=ticks, yticks=ticks)
    axes[0].set_ylabel("position")
    figure.colorbar(image, ax=axes, label="cosine", shrink=0.8)
    return figure


# --------------------------------------------------------------------------- relative positions


def offsets_page(words: Sequence[str], indices: Tensor) -> str:
    """Which offset vector each pair of tokens uses, as HTML: one colour a vector.

    Args:
        words: T tokens.
        indices: (T, T), entries 0 to 2k, k on the diagonal.
    """
    middle = int(indices[0, 0])
    head = "".join(f"<th scope=col>{html.escape(word)}</th>" for word in words)
    lines = []
    for word, row in zip(words, indices.tolist(), strict=True):
        cells = "".join(f"<td style='--c:{_signed(i - middle, middle)}'>{i}</td>" for i in row)
        lines.append(f"<tr><th scope=row>{html.escape(word)}</th>{cells}</tr>")
    used = len(indices.unique())
    return (
        f"{_SHEET}<div class=shifts><table><tr><td></td>{head}</tr>{''.join(lines)}</table>"
        f"<div>{2 * middle + 1} vectors, of which this sentence uses {used}</div></div>"
    )


def _signed(offset: int, most: int) -> str:
    """White for 0, bluer to the left and more orange to the right."""
    share = 0.75 * abs(offset) / max(most, 1)
    strong = (92, 150, 204) if offset < 0 else (226, 138, 60)
    red, green, blue = (round(250 + (c - 250) * share) for c in strong)
    return f"#{red:02x}{green:02x}{blue:02x}"


# --------------------------------------------------------------------------- rotary positions


def turned(vector: Sequence[float], position: int, angle: float = ANGLE) -> tuple[float, float]:
    """A pair of features, turned by its position times an angle."""
    a, b = vector
    cos, sin = math.cos(position * angle), math.sin(position * angle)
    return a * cos - b * sin, a * sin + b * cos


@dataclass(frozen=True)
class Turned:
    """The query of «bit» and the key of a noun, turned by their positions, and their product."""

    noun: str
    m: int
    n: int
    query: tuple[float, float]
    key: tuple[float, float]

    @property
    def score(self) -> float:
        """The dot product."""
        return self.query[0] * self.key[0] + self.query[1] * self.key[1]


def rotary_example(sentence: str, in_front: int = 0) -> list[Turned]:
    """«bit» and the two nouns of a sentence, with some words in front of it."""
    words = [*FRONT[:in_front], *sentence.split()]
    m = words.index("bit")
    return [
        Turned(word, m, n, turned(QUERY, m), turned(KEY, n))
        for n, word in enumerate(words)
        if word in ("dog", "man")
    ]


def hands_page(sentence: str, in_front: int) -> str:
    """The turned query of «bit» and the turned keys of both nouns as clock hands, as HTML."""
    found = rotary_example(sentence, in_front)
    words = [*FRONT[:in_front], *sentence.split()]
    arrows = [("bit", found[0].query, found[0].m, 88.0, plots.PALETTE[0])]
    for one in found:
        colour = plots.PALETTE[1 if one.noun == "dog" else 2]
        arrows.append((one.noun, one.key, one.n, 66.0, colour))
    drawn = "".join(
        _arrow(f"{word} {place}", vector, *rest) for word, vector, place, *rest in arrows
    )
    label = "; ".join(f"{word} at position {place}" for word, _, place, *_ in arrows)
    lines = "".join(
        f"<tr><th scope=row>bit {one.m}, {one.noun} {one.n}</th><td>{_minus(one.m - one.n)}</td>"
        f"<td>({_minus(one.query[0])}, {_minus(one.query[1])})</td>"
        f"<td>({_minus(one.key[0])}, {_minus(one.key[1])})</td>"
        f"<td><b>{_minus(one.score)}</b></td></tr>"
        for one in found
    )
    numbered = " ".join(f"{html.escape(w)}<sub>{t}</sub>" for t, w in enumerate(words))
    return (
        f"{_SHEET}<div class=shifts><div>{numbered}</div><div class=both>"
        f"<svg viewBox='0 0 300 236' role='img' aria-label='{label}'>"
        f"<circle cx='150' cy='118' r='88' fill='none' stroke='#cfcabd'/>{drawn}</svg>"
        "<table><tr><td></td><th scope=col>m − n</th><th scope=col>query</th>"
        f"<th scope=col>key</th><th scope=col>score</th></tr>{lines}</table></div></div>"
    )


def _arrow(label: str, vector: Sequence[float], length: float, colour: str) -> str:
    """A hand from the middle of the picture in a vector's direction, with a name at its tip."""
    size = math.hypot(*vector)
    x, y = vector[0] / size, -vector[1] / size
    tip = f"x2='{150 + length * x:.1f}' y2='{118 + length * y:.1f}'"
    anchor = "middle" if abs(x) < 0.35 else "start" if x > 0 else "end"
    return (
        f"<line x1='150' y1='118' {tip} stroke='{colour}' stroke-width='3'/>"
        f"<circle cx='{150 + length * x:.1f}' cy='{118 + length * y:.1f}' r='4' fill='{colour}'/>"
        f"<text x='{150 + (length + 9) * x:.1f}' y='{122 + (length + 12) * y:.1f}' "
        f"text-anchor='{anchor}' font-size='14' fill='{colour}'>{label}</text>"
    )


def _minus(value: float) -> str:
    text = str(value) if isinstance(value, int) else f"{value:.2f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def pairings(width: int = 8) -> Figure:
    """Which features of a head turn together, in both layouts: a colour a pair."""
    figure, ax = plt.subplots(figsize=(5.6, 2.3))
    half = width // 2
    rows = {
        "interleaved": [i // 2 for i in range(width)],
        "half and half": [i % half for i in range(width)],
    }
    for down, (name, pairs) in enumerate(rows.items()):
        y = -1.7 * down
        ax.text(-0.25, y + 0.4, name, ha="right", va="center", fontsize=11)
        for feature, pair in enumerate(pairs):
            colour = plots.PALETTE[pair]
            ax.add_patch(
                Rectangle((feature, y), 0.92, 0.8, fc=colour, alpha=0.28, ec=colour, lw=1.4)
            )
            ax.text(feature + 0.46, y + 0.4, f"{feature}", ha="center", va="center", fontsize=11)
            ax.text(
                feature + 0.46, y - 0.28, f"$\\omega_{pair}$", ha="center", va="center",
                fontsize=10.5, color=colour,
            )  # fmt: skip
    ax.set(xlim=(-2.9, width), ylim=(-2.3, 1.0))
    ax.axis("off")
    return figure


def lines(
    panels: Mapping[str, tuple[Sequence[float], Mapping[str, Sequence[float]]]],
    x_labels: Sequence[str],
    y_label: str = "score",
) -> Figure:
    """Panels of lines, the first of each solid and thick.

    Args:
        panels: for each title the x values, and for each name the heights.
        x_labels: what is across, a label a panel.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(3.0 * len(panels), 2.8), squeeze=False)
    for ax, label, (title, (x, curves)) in zip(axes[0], x_labels, panels.items(), strict=True):
        for index, (name, heights) in enumerate(curves.items()):
            colour, width = plots.PALETTE[index], 2.6 if index == 0 else 1.5
            ax.plot(x, heights, color=colour, lw=width, label=name)
        low, high = ax.get_ylim()
        ax.set(title=title, xlabel=label, ylim=(low, high + 0.45 * (high - low)))  # for the legend
        ax.legend(fontsize=9, loc="upper left")
    axes[0, 0].set_ylabel(y_label)
    return figure


# --------------------------------------------------------------------------- ALiBi


def reach(weights: Tensor, heads: Sequence[int], slopes: Sequence[str]) -> Figure:
    """Weights of the last of T tokens on those before it, a line a head.

    Args:
        weights: (H, T), of the heads named.
        heads: their numbers.
        slopes: their slopes, as they are printed.
    """
    figure, ax = plt.subplots(figsize=(5.4, 2.9))
    distance = torch.arange(weights.shape[-1]).flip(0)  # (T,)
    for index, (head, slope, row) in enumerate(zip(heads, slopes, weights, strict=True)):
        ax.plot(
            plots.array(distance), plots.array(row), color=plots.PALETTE[index],
            label=f"head {head}, slope {slope}",
        )  # fmt: skip
    ax.invert_xaxis()  # earlier tokens to the left, as in the sentence
    ax.set(xlabel="tokens back", ylabel="attention weight")
    ax.legend(fontsize=9, loc="upper left")
    return figure
