"""The pictures of a Transformer's masks, and a translator with some of them left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots
from toolkit.corpora.translation import BOS, EOS, PAD

MASKS = ("encoder", "cross", "causal")  # what `greedy_without` can leave out
_ALLOWED, _CHANGED = "#dfeaf5", "#f6e7da"


def draw_mask(ax: Axes, mask: Tensor, rows: Sequence[str], columns: Sequence[str]) -> Axes:
    """A mask (Tq, Tk) with tokens for queries (rows) and keys (columns), dark where allowed."""
    plots.attention_map(ax, mask, rows, columns, limits=(0.0, 1.25), row_label="", column_label="")
    ax.set_xticks([j - 0.5 for j in range(len(columns))], minor=True)
    ax.set_yticks([i - 0.5 for i in range(len(rows))], minor=True)
    ax.grid(which="minor", color=plots.SHEET, linewidth=1.5)
    ax.tick_params(which="minor", length=0)
    ax.tick_params(labelsize=10.5)
    for label in ax.get_xticklabels():
        label.set(rotation=0, horizontalalignment="center")
    return ax


def grids(
    masks: Mapping[str, Tensor], rows: Sequence[str], columns: Sequence[str] | None = None, *,
    across: int = 3,
) -> Figure:  # fmt: skip
    """Masks beside each other; one of a single row is drawn as such, for all queries."""
    columns = rows if columns is None else columns
    across = min(across, len(masks))
    down = -(-len(masks) // across)
    figure, axes = plt.subplots(
        down, across, figsize=(0.8 + 2.0 * across, 2.4 * down), squeeze=False
    )
    for ax in axes.flat[len(masks) :]:
        ax.set_visible(False)
    for ax, (title, mask) in zip(axes.flat, masks.items(), strict=False):
        shown = rows if len(mask) == len(rows) else ["any"] * len(mask)
        draw_mask(ax, mask, shown, columns)
        ax.set_title(title)
    return figure


# --------------------------------------------------------------------------- two layers


def averages(values: Sequence[float], layers: int, *, causal: bool) -> list[list[float]]:
    """Layers in which every position takes the mean of what it may see.

    Args:
        values: one number for each of T positions.

    Returns:
        layers + 1 lists of T numbers, the input first.
    """
    found = [list(values)]
    for _ in range(layers):
        below = found[-1]
        seen = [below[: i + 1] if causal else below for i in range(len(below))]
        found.append([sum(part) / len(part) for part in seen])
    return found


def two_layers(values: Sequence[float], tokens: Sequence[str]) -> Figure:
    """`averages` in two layers with and without the causal mask, and who looks at whom."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.0))
    last = len(values) - 1
    right = averages(values, 2, causal=True)
    for ax, causal in zip(axes, (True, False), strict=True):
        found = averages(values, 2, causal=causal)
        for y, row in enumerate(found):
            for x, value in enumerate(row):
                same = value == right[y][x]
                box = {"boxstyle": "round,pad=0.35", "fc": _ALLOWED if same else _CHANGED,
                       "ec": plots.PALETTE[0] if same else plots.PALETTE[1], "lw": 1}  # fmt: skip
                ax.text(x, y, f"{value:g}", ha="center", va="center", fontsize=11.5, bbox=box,
                        zorder=3)  # fmt: skip
                for j in range(len(row)) if y else ():
                    if causal and j > x:
                        continue
                    ahead = j > x
                    ax.plot((x, j), (y - 0.22, y - 0.78), lw=1.6 if ahead else 1.0, zorder=1,
                            color=plots.PALETTE[1] if ahead else "#b6b1a6")  # fmt: skip
        for x, token in enumerate(tokens):
            ax.text(x, -0.55, token, ha="center", va="center", fontsize=10.5)
        if causal:
            for y, name in enumerate(("input", "layer 1", "layer 2")):
                ax.text(-0.55, y, name, ha="right", va="center", fontsize=10.5)
        ax.set(xlim=(-1.35 if causal else -0.6, last + 0.5), ylim=(-0.8, 2.4))
        ax.set_title("with the causal mask" if causal else "without")
        ax.axis("off")
    return figure


# --------------------------------------------------------------------------- masks left out


@torch.no_grad()
def greedy_without(
    model: nn.Module, source: Tensor, left_out: Collection[str] = (), max_length: int = 45
) -> Tensor:
    """Greedy search with a translator some of whose masks are left out.

    Args:
        model: with `encode`, `decode` and `generator`, as the chapter's.
        source: (B, S) int64, padded with PAD.
        left_out: of `MASKS`.

    Returns:
        (B, U) int64; after its end a row is filled with PAD.

    Raises:
        ValueError: there is no such mask.
    """
    unknown = set(left_out) - set(MASKS)
    if unknown:
        raise ValueError(f"no mask {', '.join(sorted(unknown))}; there are {', '.join(MASKS)}")
    padding = (source != PAD).unsqueeze(1)  # (B, 1, S)
    memory = model.encode(source, None if "encoder" in left_out else padding)  # (B, S, D)
    target = torch.full((len(source), 1), BOS)  # (B, 1)
    done = torch.zeros(len(source), dtype=torch.bool)  # (B,)
    while target.shape[1] <= max_length and not done.all():
        size = target.shape[1]
        past = torch.ones(1, size, size, dtype=torch.bool).tril()  # (1, U, U)
        hidden = model.decode(
            memory, None if "cross" in left_out else padding, target,
            None if "causal" in left_out else past,
        )  # fmt: skip
        token = model.generator(hidden[:, -1]).argmax(-1).masked_fill(done, PAD)  # (B,)
        done |= token == EOS
        target = torch.cat([target, token[:, None]], 1)  # (B, U + 1)
    return target[:, 1:]
