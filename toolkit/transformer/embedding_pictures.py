"""The pictures of a Transformer's embeddings: one matrix, three uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots

WORDS = ("5", "April", "März", "March")
# Entries of +-0.5: their variance is 1/4, one over the width, and the rows are orthogonal.
MATRIX = 0.5 * torch.tensor([[-1.0, 1, 1, 1], [1, -1, 1, 1], [-1, -1, 1, -1], [-1, -1, -1, 1]])


def three_uses(state: Tensor, row: int = 1) -> Figure:
    """`MATRIX` read for a token of the source and of the target, and multiplied by a state.

    Args:
        state: (4,), what the decoder hands over.
        row: the token that is read.
    """
    figure, ax = plt.subplots(figsize=(5.5, 3.3))
    logits = MATRIX @ state  # (4,)
    for i, word in enumerate(WORDS):
        y = -0.6 * i
        strong = i == row
        ax.text(2.55, y, word, ha="right", va="center", fontsize=10.5)
        for j, value in enumerate(MATRIX[i].tolist()):
            ax.add_patch(
                plt.Rectangle((2.7 + 0.62 * j, y - 0.25), 0.58, 0.5, lw=0,
                              fc="#cfe0f1" if strong else "#eef2f6")
            )  # fmt: skip
            text = f"{value:.1f}".replace("-", "−")
            ax.text(2.99 + 0.62 * j, y, text, ha="center", va="center", fontsize=10)
        ax.text(6.45, y, f"{logits[i]:.0f}", ha="center", va="center", fontsize=11,
                weight="bold" if logits[i] == logits.max() else "normal")  # fmt: skip
        ax.annotate("", (6.2, y), (5.25, y), arrowprops={"arrowstyle": "->", "lw": 1.2,
                    "color": plots.PALETTE[2]})  # fmt: skip
    ax.text(3.9, 0.55, "$E$, one matrix", ha="center", fontsize=11)
    ax.text(6.45, 0.55, "logits", ha="center", fontsize=11, color=plots.PALETTE[2])
    numbers = ", ".join(f"{v:.0f}" for v in state.tolist()).replace("-", "−")
    ax.text(4.6, -2.5, f"3  times the decoder's state ({numbers})", ha="center",
            fontsize=10.5, color=plots.PALETTE[2])  # fmt: skip
    read = ", ".join(f"{2 * v:.0f}" for v in MATRIX[row].tolist()).replace("-", "−")
    for number, side, y, colour in (("1", "source", 0.0, 0), ("2", "target", -1.2, 1)):
        ax.text(-0.1, y, f"{number}  {side}\n2 · {WORDS[row]} =\n({read})", ha="left",
                va="center", fontsize=10.5, color=plots.PALETTE[colour])  # fmt: skip
        ax.annotate("", (1.5, y), (1.85, -0.6 * row), arrowprops={"arrowstyle": "->", "lw": 1.4,
                    "color": plots.PALETTE[colour]})  # fmt: skip
    ax.set(xlim=(-0.2, 6.8), ylim=(-2.75, 0.85))
    ax.axis("off")
    return figure


def vocabulary_costs(
    sizes: Sequence[int], tokens: Sequence[float], others: Mapping[str, tuple[int, float]]
) -> Figure:
    """Tokens per sentence against the size of the vocabulary, both on logarithmic axes.

    Args:
        sizes, tokens: of byte pairs with more and more merges.
        others: single vocabularies, by name.
    """
    figure, ax = plt.subplots(figsize=(5.6, 3.1))
    ax.plot(sizes, tokens, "o-", color=plots.PALETTE[0])
    ax.text(sizes[-1], tokens[-1] * 1.14, "byte pairs", fontsize=10.5, color=plots.PALETTE[0],
            ha="center")  # fmt: skip
    for (name, (size, count)), colour in zip(others.items(), plots.PALETTE[1:], strict=False):
        ax.plot(size, count, "D", color=colour, ms=6)
        ax.text(size * 1.13, count, name, va="center", fontsize=10.5, color=colour)
    ax.set(xscale="log", yscale="log", xlabel="entries of the vocabulary",
           ylabel="tokens per sentence", xlim=(70, 9000), ylim=(12, 140))  # fmt: skip
    ax.set_yticks([20, 50, 100], ["20", "50", "100"])
    ax.set_xticks([100, 300, 1000, 3000], ["100", "300", "1,000", "3,000"])
    ax.minorticks_off()
    return figure


def relatedness(matrix: Tensor, groups: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Mean cosine of two tokens of one group, and of two of different groups.

    Args:
        matrix: (V, D). groups: ids.
    """
    ids = [i for group in groups for i in group]
    number = torch.tensor([n for n, group in enumerate(groups) for _ in group])  # (n,)
    unit = torch.nn.functional.normalize(matrix[ids], dim=-1)
    cosines = unit @ unit.T  # (n, n)
    same = number[:, None] == number
    apart = ~torch.eye(len(ids), dtype=torch.bool)
    return cosines[same & apart].mean().item(), cosines[~same].mean().item()


def readable(size: float) -> str:
    """A size with three significant digits."""
    return f"{float(f'{size:.3g}'):g}"


def spreads_and_code(found: Mapping[str, float], code: float) -> Figure:
    """How large a scaled embedding's entries are, by version, beside those of a position code."""
    figure, ax = plt.subplots(figsize=(5.4, 0.9 + 0.36 * len(found)))
    for row, size in enumerate(found.values()):
        ax.barh(-row, size, 0.6, color=plots.PALETTE[0 if row == 0 else 1], alpha=0.85)
        ax.text(size * 1.1, -row, readable(size), va="center", fontsize=10.5)
    ax.axvline(code, color=plots.INK, lw=1.2, ls="--")
    ax.text(code * 1.06, 0.45, "a position code", fontsize=10, va="bottom")
    ax.set_yticks([-row for row in range(len(found))], list(found))
    ax.tick_params(axis="y", length=0, labelsize=10.5)
    ax.set(xscale="log", xlim=(0.02, 120), ylim=(-len(found) + 0.4, 1.0),
           xlabel="RMS of an entry (log)")  # fmt: skip
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
    return figure
