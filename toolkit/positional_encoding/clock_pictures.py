"""Pictures of the page on sinusoidal codes: digits, waves, clock hands, and tables of codes.

A pair of a code's columns is drawn as the hand of a clock: its tip is the sine to the right of the
middle and the cosine above it. So angle 0 points to the 12, and hands turn clockwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from toolkit import plots
from toolkit.plots import INK, PALETTE

SIGNED = "RdBu_r"  # red for 1, blue for -1
_FACE = "#b9b4a8"


def tips(code: Tensor) -> list[tuple[float, float]]:
    """Where the hands of an interleaved code (D,) end: right and up of the middle, a pair each.

    Raises:
        ValueError: if a column has no partner.
    """
    if code.ndim != 1 or len(code) % 2:
        raise ValueError(f"a code of pairs is needed, not one of shape {tuple(code.shape)}")
    return [(right, up) for right, up in code.view(-1, 2).tolist()]


def clocks(titles: Sequence[str], codes: Tensor, *, marked: bool = False) -> Figure:
    """A clock for each row of an interleaved table of codes, a hand for each of its pairs.

    Args:
        titles: what stands above each clock.
        codes: (T, D) in the interleaved layout; the first hand is the longest.
        marked: draw how far to the right the first hand reaches.
    """
    figure, axes = plt.subplots(1, len(codes), figsize=(max(1.35 * len(codes), 3.2), 1.75))
    for ax, title, code in zip(axes, titles, codes, strict=True):
        face(ax)
        for pair, (right, up) in enumerate(tips(code)):
            length = 1 - 0.32 * pair
            ax.plot(
                [0, length * right], [0, length * up], color=PALETTE[pair], lw=2.2 + pair,
                solid_capstyle="round",
            )  # fmt: skip
            if marked and pair == 0:
                ax.plot([0, right], [up, up], color=PALETTE[1], lw=1.6, ls="--")
                ax.plot([0, 0], [-1, 1], color=_FACE, lw=0.8)
        ax.plot([0], [0], "o", color=INK, ms=3.5)
        ax.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08))
        ax.set_title(title, fontsize=11, loc="center")
    return figure


def face(ax: Axes) -> None:
    """A clock without hands: a circle of radius 1 with a mark for each hour, and no axes."""
    ax.add_patch(Circle((0, 0), 1, fill=False, ec=_FACE, lw=1.2))
    hours = [(math.sin(math.pi * h / 6), math.cos(math.pi * h / 6)) for h in range(12)]
    marks = [((0.93 * x, 0.93 * y), (x, y)) for x, y in hours]
    ax.add_collection(LineCollection(marks, colors=_FACE, linewidths=1))
    ax.set_aspect("equal")
    ax.axis("off")


def digits_and_waves(digits: Tensor, waves: Tensor) -> Figure:
    """Binary digits and sines as colours, a row each, the fastest above.

    Args:
        digits: (N, K) of 0 and 1, the least significant first.
        waves: (N, K) frequencies' sines between -1 and 1, the fastest first.
    """
    figure, axes = plt.subplots(1, 2, figsize=(4.9, 2.6), gridspec_kw={"wspace": 0.08})
    both = ((axes[0], digits, "binary digits"), (axes[1], waves, "sines"))
    for ax, values, title in both:
        plots.attention_map(
            ax, values.T, title=title, row_label="", column_label="position",
            limits=(-1.0, 1.0), cmap=SIGNED, rows=[f"{k}" for k in range(values.shape[1])],
            columns=[f"{t}" if t % 4 == 0 else "" for t in range(len(values))],
        )  # fmt: skip
        ax.set_aspect("auto")
        ax.tick_params(axis="x", labelrotation=0)
    for k, t in digits.T.nonzero().tolist():
        axes[0].text(t, k, "1", ha="center", va="center", fontsize=9, color="white")
    axes[0].set_ylabel("digit")
    axes[1].set_ylabel("wave")
    return figure


def failures(gaps: Mapping[str, Tensor], distances: Mapping[str, Tensor]) -> Figure:
    """How functions of one number fail: neighbours become equal, or far positions do.

    Args:
        gaps: for each function, (T,) the difference of position t and t + 1; zeros are not drawn.
        distances: for each code, (T,) the distance of position t from position 0.
    """
    figure, axes = plt.subplots(1, 2, figsize=(5.2, 2.7))
    for name, values in gaps.items():
        seen = (values > 0).nonzero()[:, 0]
        axes[0].semilogy(plots.array(seen), plots.array(values[seen]), label=name)
        if len(seen) < len(values):
            last = int(seen[-1])
            axes[0].plot([last], [values[last].item()], "x", color=INK, ms=7)
    axes[0].set(xlabel="position", title="step to the next position")
    axes[0].legend(fontsize=9)
    for (name, values), width in zip(distances.items(), (1.0, 1.8, 1.8), strict=False):
        axes[1].plot(plots.array(values), label=name, lw=width)
    high = max(values.max().item() for values in distances.values())
    axes[1].set(xlabel="position", title="distance from position 0", ylim=(-0.1, 1.5 * high))
    axes[1].legend(fontsize=9, loc="upper left", ncols=2)
    return figure


def wavelengths(found: Mapping[int, Tensor], base: float = 10000.0) -> Figure:
    """Wavelengths against the number of the pair, a line for each width, on a logarithmic axis."""
    figure, ax = plt.subplots(figsize=(4.9, 2.4))
    for width, lengths in found.items():
        shape = "o-" if len(lengths) < 40 else "-"
        ax.semilogy(range(len(lengths)), plots.array(lengths), shape, ms=3, label=f"D = {width}")
    right = max(map(len, found.values())) - 1
    for height, name, side in (
        (2 * math.pi, "2π", "top"),
        (2 * math.pi * base, f"{base:.0f} · 2π", "bottom"),
    ):
        ax.axhline(height, color=INK, lw=0.8, ls=":")
        ax.text(right, height, name, fontsize=9.5, ha="right", va=side)
    ax.set(xlabel="pair i", ylabel="positions a turn", ylim=(1.5, 40 * base))
    ax.legend(fontsize=9, loc="lower right", bbox_to_anchor=(1, 0.1))
    return figure


def heat_maps(tables: Mapping[str, Tensor]) -> Figure:
    """Tables of codes as colours, one below the other."""
    figure, axes = plt.subplots(len(tables), 1, figsize=(4.9, 1.7 * len(tables)), squeeze=False)
    for ax, (title, table) in zip(axes[:, 0], tables.items(), strict=True):
        image = ax.imshow(
            plots.array(table), cmap=SIGNED, vmin=-1, vmax=1, aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        ax.set(xlabel="column", ylabel="position", title=title, yticks=range(0, len(table), 5))
    figure.colorbar(image, ax=axes, shrink=0.7)
    return figure


def tables(found: Mapping[str, Tensor], rows: Sequence[str], across: int = 2) -> Figure:
    """Small tables of codes with their numbers, some in a line."""
    down = -(-len(found) // across)
    figure, axes = plt.subplots(down, across, figsize=(2.5 * across, 2.0 * down), squeeze=False)
    for ax in axes.flat[len(found) :]:
        ax.set_visible(False)
    for ax, (title, values) in zip(axes.flat, found.items(), strict=False):
        _numbers(ax, values, rows, title)
    return figure


def _numbers(ax: Axes, values: Tensor, rows: Sequence[str], title: str) -> None:
    shown = (values * 100).round() / 100 + 0.0
    columns = [str(column) for column in range(values.shape[1])]
    plots.attention_map(
        ax, torch.where(shown == 0, 0.0, shown), rows, columns, title=title, numbers=".2f",
        limits=(-1.3, 1.3), cmap=SIGNED, row_label="", column_label="",
    )  # fmt: skip
    ax.set_aspect("auto")
    for text in ax.texts:
        text.set_fontsize(10)
