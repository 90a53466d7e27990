"""Where the parameters of a Transformer are, counted and drawn in squares of D x D."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn import functional as F

from toolkit import plots
from toolkit.diagrams import millions

KINDS = ("attention", "feed-forward", "embedding", "biases and norms")
_COLOURS = dict(zip(KINDS[:3], plots.PALETTE, strict=False))
_GAP = 0.6  # between two groups of layers, in squares


def by_kind(model: Any) -> dict[str, int]:
    """The parameters of the chapter's EncoderDecoder by kind, shared ones counted once.

    A matrix counts for the part to which it belongs; the generator's belongs to the embeddings.
    Vectors, which are biases and the parameters of norms, are one kind.
    """
    counts = dict.fromkeys(KINDS, 0)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            kind = "biases and norms"
        elif "attn" in name:
            kind = "attention"
        else:
            kind = "feed-forward" if "feed_forward" in name else "embedding"
        counts[kind] += parameter.numel()
    return counts


def squares(model: Any) -> dict[str, float]:
    """The matrices of one encoder layer, one decoder layer and the embeddings in squares D x D."""
    width = model.encoder.layers[0].feed_forward.w_1.in_features
    count = {
        name: sum(p.numel() for p in module.parameters() if p.dim() > 1) / width**2
        for name, module in (
            ("encoder layer", model.encoder.layers[0]),
            ("decoder layer", model.decoder.layers[0]),
        )
    }
    return count | {"embedding": by_kind(model)["embedding"] / width**2}


def to_scale(models: Mapping[str, Any]) -> Figure:
    """Models as squares D x D, all to one scale: a column for each layer, and the embeddings."""
    widths = [model.encoder.layers[0].feed_forward.w_1.in_features for model in models.values()]
    unit = max(widths)
    figure, ax = plt.subplots(figsize=(6.8, 4.5))
    left, top = 0.0, 0.0
    for (name, model), width in zip(models.items(), widths, strict=True):
        side = width / unit
        right, high = _draw(ax, model, left, side)
        total = millions(sum(by_kind(model).values()))
        ax.text((left + right) / 2, high + 0.45, f"{name}: {total}", ha="center", fontsize=11)
        left, top = right + 1.2, max(top, high)
    for row, (kind, colour) in enumerate(_COLOURS.items()):
        y = top - 0.2 - 1.25 * row
        ax.add_patch(Rectangle((0.0, y - 0.4), 0.8, 0.8, facecolor=colour, edgecolor="none"))
        ax.text(1.15, y, kind, va="center", fontsize=10.5)
    ax.set(xlim=(-0.2, left - 0.9), ylim=(-1.6, top + 1.4), aspect="equal")
    ax.axis("off")
    return figure


def _draw(ax: Axes, model: Any, left: float, side: float) -> tuple[float, float]:
    """One model from x = left on; returns where it ends and how high it is."""
    count = squares(model)
    tall = round(count["decoder layer"])
    x = left
    for name, stack in (("encoder layer", model.encoder), ("decoder layer", model.decoder)):
        looks = 4 if name.startswith("encoder") else 8
        begin = x
        for _ in stack.layers:
            for y in range(round(count[name])):
                _square(ax, x, y * side, side, KINDS[0] if y < looks else KINDS[1])
            x += side
        _name(ax, (begin + x) / 2, name.split()[0], side)
        x += _GAP * side
    begin, rest, y = x, count["embedding"], 0
    while rest > 1e-9:
        _square(ax, x, y * side, side, KINDS[2], min(1.0, rest))
        rest, y = rest - 1, y + 1
        if y == tall:
            x, y = x + side, 0
    end = x + side * (y > 0)
    _name(ax, (begin + end) / 2, "embed.", side)
    return end, tall * side


def _square(ax: Axes, x: float, y: float, side: float, kind: str, share: float = 1.0) -> None:
    ax.add_patch(
        Rectangle(
            (x, y), side, side * share, facecolor=_COLOURS[kind], edgecolor=plots.SHEET,
            linewidth=0.8,
        )
    )  # fmt: skip


def _name(ax: Axes, x: float, text: str, side: float) -> None:
    ax.text(x, -0.25, text, ha="center", va="top", fontsize=10, rotation=0 if side > 0.7 else 45)


def likeness(model: Any) -> Tensor:
    """Cosines between the first feed-forward matrices of the encoder's layers: (N, N)."""
    rows = [layer.feed_forward.w_1.weight.detach().flatten() for layer in model.encoder.layers]
    flat = F.normalize(torch.stack(rows), dim=-1)  # (N, F D)
    return flat @ flat.T


def likenesses(maps: Mapping[str, Tensor]) -> Figure:
    """`likeness` of several models side by side."""
    figure, axes = plt.subplots(1, len(maps), figsize=(3.0 * len(maps), 2.8), squeeze=False)
    for ax, (title, found) in zip(axes.flat, maps.items(), strict=True):
        names = [str(number) for number in range(1, len(found) + 1)]
        plots.attention_map(
            ax, found.round(decimals=2).abs(), names, names, title=title, numbers=".0f",
            row_label="layer", column_label="layer",
        )  # fmt: skip
        for text in ax.texts:
            text.set_fontsize(10)
    return figure
