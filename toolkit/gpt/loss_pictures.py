"""Pictures of the page on GPT's loss: shifted targets, a function token by token, chunks."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from toolkit.plots import INK, PALETTE, SHEET

# The page's batch: two texts of a vocabulary of three tokens, and the logits at each position.
VOCABULARY = ("the", "cat", "sat")
IDS = ((0, 1, 2), (1, 2, 0))  # the second text has two tokens; its last id is padding
LOGITS = (
    ((0.0, 2.0, 1.0), (1.0, 0.0, 1.0), (2.0, 0.0, 0.0)),
    ((0.0, 0.0, 0.0), (2.0, 0.0, 0.0), (0.0, 1.0, 2.0)),
)
_PALE = "#dbe6f2"
_SOFT = "#cfcabd"


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """The page's batch: logits (2, 3, 3), ids (2, 3), and which targets count (2, 3)."""
    return torch.tensor(LOGITS), torch.tensor(IDS), torch.tensor([[True] * 3, [True, True, False]])


def shifted() -> Figure:
    """What is read at each position of the first text, the probabilities there, and the target."""
    figure, ax = plt.subplots(figsize=(5.8, 3.3))
    shares = torch.tensor(LOGITS[0]).softmax(-1).tolist()
    for position, (token, row) in enumerate(zip(IDS[0], shares, strict=True)):
        left = 2.6 * position
        target = IDS[0][position + 1] if position + 1 < len(IDS[0]) else None
        ax.text(left + 1, -0.62, VOCABULARY[token], ha="center", fontsize=13,
                bbox={"boxstyle": "round,pad=0.3", "fc": "#eceae4", "ec": "none"})  # fmt: skip
        ax.text(left + 1, -1.22, f"position {position}", ha="center", fontsize=10)
        for i, share in enumerate(row):
            right = i == target
            colour = PALETTE[0] if right else (_PALE if target is not None else "#eceae4")
            ax.add_patch(Rectangle((left + 0.68 * i, 0), 0.58, 2 * share, fc=colour))
            x = left + 0.68 * i + 0.29
            ax.text(x, 2 * share + 0.06, f"{share:.2f}", ha="center", fontsize=9.5,
                    color=PALETTE[0] if right else INK)  # fmt: skip
            ax.text(x, -0.2, VOCABULARY[i], ha="center", fontsize=9.5)
        if target is None:
            ax.text(left + 1, 2.35, "no target", ha="center", fontsize=11, color=INK)
            continue
        ax.text(left + 1, 2.62, f"target: {VOCABULARY[target]}", ha="center", fontsize=11,
                color=PALETTE[1])  # fmt: skip
        ax.text(left + 1, 2.25, f"loss {-math.log(row[target]):.4f}", ha="center", fontsize=11,
                color=PALETTE[0])  # fmt: skip
        # Where the target stands in the text: the token of the next position
        ax.plot(
            [left + 3.1, left + 2.27, left + 2.27], [-0.55, -0.55, 2.7], color=PALETTE[1], lw=1.2
        )
        ax.annotate("", (left + 1.85, 2.7), (left + 2.3, 2.7),
                    arrowprops={"arrowstyle": "-|>", "color": PALETTE[1], "lw": 1.2})  # fmt: skip
    ax.set(xlim=(-0.1, 7.3), ylim=(-1.35, 2.95))
    ax.axis("off")
    return figure


# --------------------------------------------------------------------------- a real function


@torch.no_grad()
def token_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """The loss (nats) of each token of a text but the first: ids (1, T) -> (T - 1,)."""
    shares = model(ids[:, :-1]).log_softmax(-1)[0]  # (T - 1, V)
    return -shares[torch.arange(ids.shape[1] - 1), ids[0, 1:]]


def surprise(names: Sequence[str], losses: Sequence[float], most: float = 7.0) -> str:
    """A text with the loss of each token below it, darker where it is larger, as HTML.

    Args:
        names: of all tokens, the first too, which has no loss; "⏎" begins a new line.
        losses: of all but the first.
        most: the loss of the darkest.
    """
    cells = []
    for name, loss in zip(names, [None, *losses], strict=True):
        if name.startswith("⏎"):
            cells.append("</div><div>")
        cells.append(_cell(name, loss, most))
    return (
        "<style>.nats{display:inline-block;text-align:center;margin:0 1px 5px 0;padding:1px 4px;"
        "border-radius:3px;font-family:monospace;font-size:14px;line-height:1.35}"
        ".nats small{display:block;font-size:11.5px;font-family:sans-serif}</style>"
        f"<div style='background:{SHEET};color:{INK};padding:.6em .7em;max-width:46em'>"
        f"<div>{''.join(cells)}</div></div>"
    )


def _cell(name: str, loss: float | None, most: float) -> str:
    share = 0.0 if loss is None else min(loss / most, 1.0)
    colour = ",".join(
        f"{round(a + (b - a) * share)}" for a, b in ((228, 12), (236, 62), (245, 122))
    )
    ink = "#fff" if share > 0.66 else "#000"  # what stands out more
    return (
        f"<span class=nats style='background:rgb({colour});color:{ink}'>{html.escape(name)}"
        f"<small style='color:{ink}'>{'–' if loss is None else f'{loss:.2f}'}</small></span>"
    )


# --------------------------------------------------------------------------- chunks


def rows_or_chunks(lengths: Sequence[int], starts: Sequence[int], length: int) -> Figure:
    """Documents as rows of their own, padded to the longest, and the chunks of their stream.

    Args:
        lengths: tokens of the documents, in the order of the stream.
        starts: where the chunks begin.
        length: of a chunk.
    """
    figure, axes = plt.subplots(
        2, 1, figsize=(5.8, 3.5), sharex=True, height_ratios=(len(lengths), len(starts))
    )
    longest = max(lengths)
    for y, each in enumerate(lengths):
        _bar(axes[0], 0, y, longest, "#efece5")
        _bar(axes[0], 0, y, each, PALETTE[y % len(PALETTE)], str(y + 1))
    axes[0].set_title("each document a row, padded to the longest")
    axes[1].set_title(f"chunks of {length} tokens, cut anywhere")
    ends = torch.tensor(lengths).cumsum(0).tolist()
    for y, start in enumerate(starts):
        for number, (end, each) in enumerate(zip(ends, lengths, strict=True)):
            first, last = max(start, end - each), min(start + length, end)
            if first < last:
                colour = PALETTE[number % len(PALETTE)]
                _bar(axes[1], first - start, y, last - first, colour, str(number + 1))
    for ax, rows in zip(axes, (len(lengths), len(starts)), strict=True):
        ax.set(ylim=(rows - 0.4, -0.6), xlim=(0, max(longest, length)), yticks=[])
        ax.spines["left"].set_visible(False)
    axes[1].set_xlabel("tokens")
    return figure


def _bar(ax: Axes, left: float, y: float, width: float, colour: str, text: str = "") -> None:
    ax.add_patch(Rectangle((left, y - 0.4), width, 0.8, fc=colour, ec=SHEET, lw=1.2))
    if width > 5:
        ax.text(left + width / 2, y, text, color="white", ha="center", va="center", fontsize=10)


def padding_share(lengths: Sequence[int]) -> float:
    """The share of padding if documents of these lengths are the rows of one batch."""
    return 1 - sum(lengths) / (len(lengths) * max(lengths))


# --------------------------------------------------------------------------- without the shift


def learn(
    make: Any, loss: Any, sample_blocks: Any, stream: Tensor, steps: int = 80, seed: int = 0,
) -> tuple[list[float], nn.Module]:  # fmt: skip
    """The losses of a short training with one way to compute the loss, and the model.

    Args:
        make: called without anything, makes the model.
        loss: logits (B, T, V) and ids (B, T) -> scalar.
        sample_blocks: of the chapter. stream: (M,).
    """
    torch.manual_seed(seed)
    model = make().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        ids, _ = sample_blocks(stream, 32, 8)
        value = loss(model(ids), ids)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return losses, model.eval()


def losses(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Loss against step, a named line for each."""
    figure, ax = plt.subplots(figsize=(5.6, 2.2))
    for (name, values), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(range(1, len(values) + 1), values, color=colour)
        ax.text(len(values) + 1.5, values[-1], name, color=colour, va="center", fontsize=10.5)
    longest = max(map(len, curves.values()))
    ax.set(xlabel="step", ylabel="loss (nats)", ylim=(0, None), xlim=(0, 1.3 * longest))
    return figure
