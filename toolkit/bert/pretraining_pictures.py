"""Pictures of the page on pre-training BERT: a batch and its loss, the curves, the ten gaps."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.plots import INK, PALETTE, SHEET

# The page's batch: tokens, and the probability of the right token at each chosen position.
VOCABULARY = ("file", "open", "it", "the")
BATCH = (
    ("[CLS] the [MASK] is [MASK] [SEP] close it [SEP]", {2: ("file", 1 / 2), 4: ("open", 1 / 4)}),
    ("[CLS] the file is open [SEP] [MASK] rains [SEP]", {6: ("it", 1 / 8)}),
)
PAIRS = (("is next", 0.8), ("is random", 0.5))
SHARES = ("1%", "10%", "100%")


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The page's batch as logits (2, 9, 4) and (2, 2), labels (2, 9) and is_random (2,)."""
    of_words = torch.full((2, 9, 4), 0.25)
    labels = torch.full((2, 9), -100)
    for row, (_, chosen) in enumerate(BATCH):
        for position, (token, share) in chosen.items():
            right = VOCABULARY.index(token)
            of_words[row, position] = (1 - share) / 3
            of_words[row, position, right] = share
            labels[row, position] = right
    of_pairs = torch.tensor([[0.8, 0.2], [0.5, 0.5]])
    return of_words.log(), of_pairs.log(), labels, torch.tensor([0, 1])


def batch_picture() -> Figure:
    """The batch: what is read, what is to be predicted, and each prediction's loss."""
    figure, axes = plt.subplots(2, 1, figsize=(4.9, 3.0))
    for ax, (text, chosen), (label, share) in zip(axes, BATCH, PAIRS, strict=True):
        end = 0.0
        for position, token in enumerate(text.split()):
            width = 0.9 + 0.42 * len(token)  # in about characters
            x, asked = end + width / 2, position in chosen
            end += width
            ax.text(
                x, 0, token, ha="center", va="center", fontsize=10.5,
                color="white" if asked else INK,
                bbox={"boxstyle": "round,pad=0.2", "fc": PALETTE[0] if asked else "#eceae4",
                      "ec": "none"},
            )  # fmt: skip
            if asked:
                right, p = chosen[position]
                ax.text(x, 0.95, f"{right}: {p:g}\nloss {-math.log(p):.3f}",
                        ha="center", va="center", fontsize=10.5, color=PALETTE[0])  # fmt: skip
        ax.text(0.3, -0.95, f"{label}: {share:g}, loss {-math.log(share):.3f}",
                ha="left", va="center", fontsize=10.5, color=PALETTE[1])  # fmt: skip
        ax.plot([1.5, 1.5], [-0.36, -0.66], color=PALETTE[1], lw=1.2)
        ax.set(xlim=(-0.1, end + 0.1), ylim=(-1.35, 1.5))
        ax.axis("off")
    return figure


def curves(rows: Sequence[Mapping[str, str]], frequency: float) -> Figure:
    """Losses of the shipped model's pre-training, and accuracies on held-out text.

    Args:
        rows: of `toolkit.models.Shipped.curves`.
        frequency: the loss of predicting by the tokens' frequency alone.
    """
    figure, axes = plt.subplots(2, 1, figsize=(4.9, 4.1), sharex=True)
    for kind, colour in (("mlm", PALETTE[0]), ("nsp", PALETTE[1])):
        losses = torch.tensor([float(row[f"{kind}_loss"]) for row in rows if row[f"{kind}_loss"]])
        steps = [int(row["step"]) / 1000 for row in rows if row[f"{kind}_loss"]]
        held = [row for row in rows if row["held_out_mlm_loss"]]
        at = [int(row["step"]) / 1000 for row in held]
        axes[0].plot(steps, losses, color=colour, lw=0.8)
        axes[0].plot(at, [float(row[f"held_out_{kind}_loss"]) for row in held], "o",
                     color=colour, ms=4)  # fmt: skip
        axes[1].plot(at, [float(row[f"held_out_{kind}_accuracy"]) for row in held], "o-",
                     color=colour, ms=4)  # fmt: skip
    axes[0].axhline(frequency, color=INK, ls=":", lw=1)
    axes[0].text(11, frequency + 0.15, "by frequency alone", ha="center", va="bottom")
    axes[1].axhline(0.5, color=PALETTE[1], ls=":", lw=1)
    for ax in axes:  # the learning rate begins its second cycle
        ax.axvline(22, color=INK, lw=0.6)
    axes[0].text(22.5, 8, "learning rate\nrises again", ha="left", va="top")
    axes[0].set(ylabel="loss (nats)", ylim=(0, 8.5))
    axes[1].set(ylabel="held-out accuracy", ylim=(0, 1), xlabel="thousand steps")
    for y, name, colour in ((2.9, "masked tokens", PALETTE[0]), (1.2, "next sentence", PALETTE[1])):
        axes[0].text(11, y, name, ha="center", va="center", color=colour)
    return figure


def gap(answers: Mapping[str, Any], question: int, share: str) -> str:
    """What the model puts into one of the ten gaps after a share of its training, as HTML."""
    text = html.escape(answers["questions"][question]).replace("[MASK]", "<b>[MASK]</b>")
    bars = "".join(
        f"<tr><td style='padding:.1em .5em'>{html.escape(token)}</td>"
        f"<td style='width:14em;padding:.1em'><div style='background:{PALETTE[0]};height:.9em;"
        f"width:{100 * p:.1f}%'></div></td><td style='padding:.1em .5em'>{p:.2f}</td></tr>"
        for token, p in answers["answers"][share][question]
    )
    return (
        f"<div style='background:{SHEET};color:{INK};padding:.4em .7em'><p>{text}</p>"
        f"<table style='background:none;color:{INK}'>{bars}</table></div>"
    )
