"""The pictures of the three attentions of a Transformer.

Encoder self-attention, decoder self-attention and cross-attention are one function; what differs is
whose queries meet whose keys, and the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots, widgets
from toolkit.transformer.mask_pictures import draw_mask

SOURCE_INK, TARGET_INK = plots.PALETTE[0], plots.PALETTE[1]
_FILL = {SOURCE_INK: "#dfeaf5", TARGET_INK: "#f6e7da"}


class Attention(NamedTuple):
    """One of the three: who asks, who is asked, and which pairs are allowed.

    queries: Tq tokens. keys: Tk tokens. mask: (Tq, Tk) bool, True = may attend.
    """

    name: str
    queries: Sequence[str]
    keys: Sequence[str]
    mask: Tensor
    query_ink: str
    key_ink: str


def three(
    source: Sequence[str], target: Sequence[str], src_mask: Tensor, tgt_mask: Tensor
) -> tuple[Attention, Attention, Attention]:
    """The three attentions of a sentence and its translation.

    Args:
        source: S tokens. target: U tokens, <bos> first.
        src_mask: (1, S) or (S,) bool. tgt_mask: (U, U) bool.
    """
    columns = src_mask.reshape(1, -1)  # (1, S)
    return (
        Attention("encoder self-attention", source, source,
                  columns.expand(len(source), -1), SOURCE_INK, SOURCE_INK),
        Attention("decoder self-attention", target, target, tgt_mask, TARGET_INK, TARGET_INK),
        Attention("cross-attention", target, source,
                  columns.expand(len(target), -1), TARGET_INK, SOURCE_INK),
    )  # fmt: skip


def overview(attentions: Sequence[Attention]) -> Figure:
    """Each attention in a row: its queries, its keys and values, and its mask."""
    figure, axes = plt.subplots(
        len(attentions), 2, figsize=(6.2, 1.85 * len(attentions)), width_ratios=(3.6, 1.9)
    )
    for (left, right), one in zip(axes, attentions, strict=True):
        _roles(left, one)
        _mask(right, one)
    return figure


def _roles(ax: Axes, one: Attention) -> None:
    """Chips for the queries, and for the keys and values below them, joined where allowed."""
    lanes = (("queries", one.queries, one.query_ink, 1.0), ("keys,\nvalues", one.keys,
              one.key_ink, 0.0))  # fmt: skip
    at = {}
    for label, tokens, ink, y in lanes:
        ax.text(-0.55, y, label, ha="right", va="center", fontsize=10.5, color=ink)
        for i, token in enumerate(tokens):
            at[label, i] = (float(i), y)
            box = {"boxstyle": "round,pad=0.3", "fc": _FILL[ink], "ec": ink, "lw": 0.9}
            ax.text(i, y, token, ha="center", va="center", fontsize=10.5, bbox=box, zorder=3)
    for i, j in one.mask.nonzero().tolist():
        (x0, y0), (x1, y1) = at["queries", i], at["keys,\nvalues", j]
        ax.plot((x0, x1), (y0 - 0.2, y1 + 0.2), color="#8a857a", lw=1.1, zorder=1)
    ax.set(xlim=(-1.45, 3.55), ylim=(-0.45, 1.75))
    ax.text(-1.4, 1.6, one.name, ha="left", va="center", fontsize=11.5, weight="bold")
    ax.axis("off")


def _mask(ax: Axes, one: Attention) -> None:
    draw_mask(ax, one.mask, one.queries, one.keys)
    ax.xaxis.tick_top()
    for labels, ink in ((ax.get_xticklabels(), one.key_ink), (ax.get_yticklabels(), one.query_ink)):
        for label in labels:
            label.set_color(ink)


def heads_page(weights: Tensor, rows: Sequence[str], columns: Sequence[str], caption: str) -> str:
    """Attention weights (Tq, Tk) of one head as HTML, queries down."""
    return widgets.side_by_side(widgets.heat_table(weights, rows, columns, caption))


def dependence(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """How much each output depends on each input.

    Args:
        layer: (1, T, D) -> (1, T, D).
        x: (1, T, D).

    Returns:
        (T, T): entry [i, j] is how far output i moves, at its largest entry, when input j gets
        another vector.
    """
    with torch.no_grad():
        before = layer(x)[0]  # (T, D)
        columns = []
        for j in range(x.shape[1]):
            other = x.clone()
            other[0, j] = -other[0, j]
            columns.append((layer(other)[0] - before).abs().amax(-1))  # (T,)
    return torch.stack(columns, 1)


def dependences(found: dict[str, Tensor], tokens: Sequence[str]) -> Figure:
    """Who depends on whom: matrices (T, T) beside each other, dark where an output moves at all."""
    figure, axes = plt.subplots(
        1, len(found), figsize=(0.6 + 2.1 * len(found), 2.5), squeeze=False, sharey=True
    )
    for ax, (title, moved) in zip(axes[0], found.items(), strict=True):
        draw_mask(ax, moved > 1e-6, tokens, tokens)
        ax.set(title=title, xlabel="input changed", ylabel="output" if ax is axes[0, 0] else "")
    return figure
