"""Pictures of the page on BERT's attention heads: where they look, and the loss without them."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import widgets
from toolkit.bert.attention_heads import TARGETS, Head
from toolkit.plots import INK, PALETTE

Heads = Mapping[tuple[int, int], Head]


def looks(heads: Heads, even: Mapping[str, float]) -> Figure:
    """Shares of each head's attention in percent, darker where they exceed even attention."""
    figure, ax = plt.subplots(figsize=(5.8, 5.6))
    rows = [[100 * even[name] for name in TARGETS]]
    rows += [[100 * head.shares[name] for name in TARGETS] for head in heads.values()]
    ax.imshow(rows, cmap="Blues", vmin=0, vmax=60, aspect="auto")
    for y, row in enumerate(rows):
        for x, value in enumerate(row):
            ax.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=10,
                    color="white" if value > 36 else INK)  # fmt: skip
    ax.axhline(0.5, color=INK, lw=1)
    ax.set_yticks(range(len(rows)), ["even", *(f"{n}.{h}" for n, h in heads)])
    ax.set_xticks(range(len(TARGETS)), [name.replace(" ", "\n") for name in TARGETS])
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.set_ylabel("layer.head")
    for spine in ax.spines.values():
        spine.set_visible(False)
    return figure


def cuts(heads: Heads) -> Figure:
    """How much the loss of masked tokens grows when one head returns zeros."""
    figure, ax = plt.subplots(figsize=(5.8, 4.4))
    names = [f"{layer}.{head}" for layer, head in heads]
    values = [head.change for head in heads.values()]
    errors = [head.error for head in heads.values()]
    colours = [PALETTE[layer % len(PALETTE)] for layer, _ in heads]
    ax.barh(range(len(names)), values, xerr=errors, color=colours, ecolor=INK, height=0.7)
    for y, (value, error) in enumerate(zip(values, errors, strict=True)):
        ax.text(max(value, 0) + error + 0.015, y, f"{round(value, 3) + 0.0:.3f}", va="center",
                fontsize=9.5)  # fmt: skip
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlabel="more loss without the head (nats)", ylabel="layer.head")
    ax.set_xlim(right=1.2 * max(values))
    return figure


def maps(weights: Tensor, tokens: list[str]) -> object:
    """All attention maps of one sentence, to choose from; weights (N, H, T, T)."""
    layers, heads = weights.shape[:2]
    return widgets.frames(
        {"layer": [str(n) for n in range(layers)], "head": [str(h) for h in range(heads)]},
        lambda layer, head: widgets.side_by_side(
            widgets.heat_table(
                weights[int(layer), int(head)], tokens, tokens, f"layer {layer}, head {head}", 1
            )
        ),
        start={"layer": 0, "head": 2},
    )
