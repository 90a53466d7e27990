"""Pictures of the page on offsets as rotations: clock hands that turn, and products of two codes.

As on the page on sinusoidal codes, the tip of a hand is its sine to the right of the middle and its
cosine above it: position 0 points to the 12, and hands turn clockwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from toolkit import plots
from toolkit.plots import INK, PALETTE
from toolkit.positional_encoding.clock_pictures import face

FREQUENCIES = (1.0, 0.1)  # of the small example: width 4, base 100
NAMES = ("fast", "slow")
_GREY = "#6f747d"

# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme takes the background from every table.
_SHEET = (
    "<style>.turns{background:#fbfaf7;color:#22252b;padding:.4em .7em;margin:.3em 0;"
    "max-width:100%;box-sizing:border-box;overflow-x:auto;font-size:13px;line-height:1.6}"
    ".turns table{border-collapse:collapse;width:auto!important;margin:.2em 0;"
    "background:none!important}"
    ".turns :is(td,th){padding:.15em .5em;border:0!important;text-align:center;"
    "font-weight:normal;color:#22252b!important;background:none!important;"
    "font-variant-numeric:tabular-nums}"
    ".turns th[scope=row]{text-align:left}.turns svg{display:block;width:24em;max-width:100%}"
    "</style>"
)


# --------------------------------------------------------------------------- turning hands


def turn_page(t: int, k: int) -> str:
    """Both hands at position t and k positions further on, with their codes, as HTML."""
    drawn, lines = [], []
    for index, (name, w) in enumerate(zip(NAMES, FREQUENCIES, strict=True)):
        drawn.append(_clock(110 + 220 * index, w * t, w * (t + k), (str(t), str(t + k))))
        drawn.append(
            f"<text x='{110 + 220 * index}' y='207' text-anchor='middle' font-size='14' "
            f"fill='{INK}'>{name}</text>"
        )
        degrees = round(math.degrees(w * k))
        lines.append(
            f"<tr><th scope=row>{name}</th><td>{_pair(w * t)}</td>"
            f"<td>{_number(w * k, '.1f')} = {_number(degrees, 'd')}°</td>"
            f"<td><b>{_pair(w * (t + k))}</b></td></tr>"
        )
    label = f"two clock hands at position {t} and at position {t + k}"
    return (
        f"{_SHEET}<div class=turns>"
        f"<svg viewBox='0 0 440 212' role='img' aria-label='{label}'>{''.join(drawn)}</svg>"
        f"<table><tr><th scope=row>hand</th><th scope=col>code at {t}</th><th scope=col>turn</th>"
        f"<th scope=col>code at {t + k}</th></tr>{''.join(lines)}</table></div>"
    )


def _clock(middle: float, start: float, end: float, labels: tuple[str, str]) -> str:
    """A face with the hand before (grey) and after the turn (blue), and the angle between."""
    face = f"<circle cx='{middle}' cy='100' r='70' fill='none' stroke='#cfcabd'/>"

    def tip(angle: float, length: float) -> tuple[str, str]:
        x, y = middle + length * math.sin(angle), 100 - length * math.cos(angle)
        return f"{x:.1f}", f"{y:.1f}"

    steps = [start + (end - start) * i / 24 for i in range(25)]
    arc = " ".join(",".join(tip(a, 32)) for a in steps)
    turn = f"<polyline points='{arc}' fill='none' stroke='{PALETTE[1]}' stroke-width='3'/>"
    near = abs(math.remainder(end - start, 2 * math.pi)) < 0.4
    apart = math.copysign(0.14 if near else 0.0, end - start)  # or the labels would overlap
    hands = []
    for angle, colour, label, aside in (
        (start, _GREY, labels[0], -apart),
        (end, PALETTE[0], labels[1], apart),
    ):
        x, y = tip(angle, 70)
        right, down = tip(angle + aside, 85)
        hands.append(
            f"<line x1='{middle}' y1='100' x2='{x}' y2='{y}' stroke='{colour}' stroke-width='3'/>"
            f"<text x='{right}' y='{down}' dy='5' text-anchor='middle' font-size='14' "
            f"fill='{colour}'>{label}</text>"
        )
    return face + turn + "".join(hands)


def _pair(angle: float) -> str:
    return f"({_number(math.sin(angle), '.2f')}, {_number(math.cos(angle), '.2f')})"


def _number(value: float, form: str) -> str:
    text = format(value, form)
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def moved(matrices: Mapping[str, Tensor], t: int = 3, k: int = 1) -> Figure:
    """Where matrices (4, 4) take both hands of position t, beside where position t + k is.

    A column a matrix; fast hands above, slow ones below.
    """
    figure, axes = plt.subplots(2, len(matrices), figsize=(1.3 * len(matrices), 2.9))
    code = torch.tensor([f(w * t) for w in FREQUENCIES for f in (math.sin, math.cos)])
    for column, (title, matrix) in enumerate(matrices.items()):
        found = (matrix.float() @ code).view(2, 2)  # a row a hand: sine, cosine
        for row, w in enumerate(FREQUENCIES):
            ax = axes[row, column]
            face(ax)
            ax.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
            _hand(ax, math.sin(w * t), math.cos(w * t), _GREY, "-", f"position {t}")
            aim = math.sin(w * (t + k)), math.cos(w * (t + k))
            ax.plot([0, aim[0]], [0, aim[1]], color=PALETTE[2], lw=7, alpha=0.35,
                    solid_capstyle="butt", label=f"position {t + k}")  # fmt: skip
            _hand(ax, *found[row].tolist(), PALETTE[1], "-", "moved by the matrix")
            if row == 0:
                ax.set_title(title, loc="center")
            if column == 0:
                ax.text(-1.75, 0, NAMES[row], rotation=90, ha="center", va="center")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=10)
    return figure


def _hand(ax: Axes, x: float, y: float, colour: str, style: str, label: str) -> None:
    ax.plot([0, x], [0, y], style, color=colour, lw=2.4, label=label)
    ax.plot([x], [y], "o", color=colour, ms=4)


# --------------------------------------------------------------------------- products of codes


def product(offsets: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """The dot product of two codes that are so many positions apart: the sum of cos(k w_i).

    Args:
        offsets: (N,).
        width: of the codes.
    """
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.cos(offsets.double()[:, None] * frequencies).sum(-1)


def products(widths: Sequence[int] = (64, 512), reach: int = 60) -> Figure:
    """Products against the offset: of the small example, and of wide codes as a share of k = 0."""
    figure, axes = plt.subplots(1, 2, figsize=(5.2, 2.1))
    small, wide = torch.arange(-8, 9), torch.arange(-reach, reach + 1)
    axes[0].plot(small.tolist(), product(small, 4, 100.0).tolist(), "o-", color=PALETTE[0], lw=1)
    axes[0].set(title="width 4, base 100", xlabel="offset k", ylabel="product")
    for index, width in enumerate(widths):
        share = product(wide, width) / (width / 2)
        axes[1].plot(wide.tolist(), share.tolist(), color=PALETTE[index], label=f"width {width}")
    axes[1].set(title="base 10000", xlabel="offset k", ylabel="share of k = 0", ylim=(0, 1.04))
    axes[1].legend(fontsize=9, loc="upper left")
    for ax in axes:
        ax.axvline(0, color=INK, lw=0.6, ls=":")
    return figure


def offset_share(scores: Tensor, causal: bool = False) -> float:
    """Which share of the scores' variance a function of the offset alone explains.

    A softmax over the keys doesn't see what is added to a whole row, so each row is shifted to
    mean 0 first; the function is found by least squares.

    Args:
        scores: (T, T), a row a query.
        causal: whether only keys up to the query count.

    Returns:
        1 if the weights depend on the offset alone, 0 if it says nothing about them.
    """
    length = len(scores)
    position = torch.arange(length)
    offset = position - position[:, None]  # (T, T), key minus query
    counted = offset <= 0 if causal else torch.ones_like(offset, dtype=torch.bool)
    shown = counted[..., None]  # (T, T, 1)
    indicators = F.one_hot(offset + length - 1)  # (T, T, 2T - 1)
    both = torch.cat([scores[..., None], indicators], -1).double()  # (T, T, 2T)
    both = both - (both * shown).sum(1, keepdim=True) / shown.sum(1, keepdim=True)
    seen, features = both[counted].split([1, 2 * length - 1], dim=-1)
    solved = torch.linalg.lstsq(features, seen, driver="gelsd").solution
    error = (features @ solved - seen).square().sum() / seen.square().sum()
    return 1 - error.item()


def score_maps(maps: Mapping[str, Tensor], causal: Sequence[str] = ()) -> Figure:
    """Scores of every query and key (T, T), each map in its own colours; hidden pairs blank."""
    figure, axes = plt.subplots(1, len(maps), figsize=(1.75 * len(maps), 2.0))
    for ax, (title, scores) in zip(axes, maps.items(), strict=True):
        shown = plots.array(scores)
        if title in causal:
            hidden = torch.ones(len(scores), len(scores), dtype=torch.bool).triu(1)
            shown[hidden.numpy()] = math.nan
        ax.imshow(shown, cmap="Blues")
        ticks = range(0, len(scores), 5)
        ax.set(title=title, xticks=ticks, yticks=ticks, xlabel="key")
    axes[0].set_ylabel("query")
    return figure


# --------------------------------------------------------------------------- the base


def wavelengths(bases: Sequence[int], width: int, length: int) -> Figure:
    """Positions per full turn of every hand, a line a base; those below the length in blue."""
    figure, ax = plt.subplots(figsize=(5.2, 2.1))
    for down, base in enumerate(bases):
        turns = [2 * math.pi * base ** (i / width) for i in range(0, width, 2)]
        colours = [PALETTE[0] if turn <= length else PALETTE[1] for turn in turns]
        ax.scatter(turns, [down] * len(turns), c=colours, s=34, alpha=0.75, lw=0)
    ax.axvline(length, color=INK, lw=1, ls="--")
    ax.set(xscale="log", xlabel="positions for a full turn", ylabel="base")
    ax.set_yticks(range(len(bases)), [f"{base:,}" for base in bases])
    ax.set_ylim(len(bases) - 0.5, -0.5)
    ax.grid(visible=False)
    return figure
