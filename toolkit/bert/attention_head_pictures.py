"""Pictures of the page on BERT's attention heads: shares of attention, and losses without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import widgets
from toolkit.bert.attention_heads import TARGETS, TASKS, Head
from toolkit.plots import INK, PALETTE

Heads = Mapping[tuple[int, int], Head]


def looks(heads: Heads, even: Mapping[str, float]) -> Figure:
    """Shares of each head's attention in percent, darker where they exceed even attention."""
    figure, ax = plt.subplots(figsize=(4.9, 5.2))
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


def cuts(found: Mapping[tuple[str, str], Mapping[str, float]], names: Sequence[str]) -> Figure:
    """How much the losses of both tasks grow when one head returns zeros.

    Args:
        found: as `toolkit.bert.attention_heads.read_cuts` returns it.
        names: of the heads, such as "0.2".
    """
    figure, axes = plt.subplots(1, 2, figsize=(4.9, 4.9), sharey=True, sharex=True)
    colours = [PALETTE[int(name[0]) % len(PALETTE)] for name in names]
    for ax, task in zip(axes, TASKS, strict=True):
        values = [found[name, task]["change"] for name in names]
        errors = [found[name, task]["error"] for name in names]
        ax.barh(range(len(names)), values, xerr=errors, color=colours, ecolor=INK, height=0.7)
        for y, (value, error) in enumerate(zip(values, errors, strict=True)):
            text = f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
            ax.text(max(value, 0) + error + 0.03, y, text, va="center")
        ax.set_title(task, fontsize=10)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    axes[0].set_ylabel("layer.head")
    axes[0].set(xlim=(None, 1.55), xticks=(0, 0.5, 1))
    figure.supxlabel("more loss without the head (nats)", fontsize=10)
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
