"""Pictures of the page on training one's own BERT: losses, and what it answers on the way.

The text is that which lies beside the shipped model, so that the page needs no other.
"""

from __future__ import annotations

import html
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import own_models
from toolkit.corpora import docstrings
from toolkit.plots import INK, PALETTE
from toolkit.pretrain import bert

NO_CHOICE = 0.6931  # ln 2, the loss of a coin toss

# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme takes the background from every table.
_SHEET = (
    "<style>.answers{background:#fbfaf7!important;color:#22252b!important;padding:.4em .7em;"
    "margin:.3em 0;max-width:100%;width:min(30em,84vw);box-sizing:border-box;font-size:14px;"
    "line-height:1.6}.answers table{border-collapse:collapse;width:100%!important;margin:.2em 0;"
    "background:none!important}.answers :is(td,th,p){padding:.1em .5em .1em 0;border:0!important;"
    "text-align:left;font-weight:normal;color:#22252b!important;background:none!important;"
    "margin:0}.answers td:last-child{width:60%}.answers td div{background:#1f6fb2;height:.9em}"
    "</style>"
)


def frequencies(shipped: own_models.ShippedWeights) -> tuple[float, dict[str, float]]:
    """What a model can do that knows how frequent each piece is, and nothing else.

    Returns:
        Its loss on a masked piece of the text beside the shipped model, in nats; and the shares of
        the five most frequent pieces.
    """
    documents = bert.encode(shipped.held_out(), shipped.tokenizer)
    ids = [i for d in documents for s in d for i in s if i >= docstrings.SPECIAL]
    share = torch.bincount(torch.tensor(ids)).double() / len(ids)
    top = share.topk(5)
    names = shipped.tokenizer.names
    found = {names[i]: p for i, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)}
    return -torch.special.xlogy(share, share).sum().item(), found


def learn(
    parts: Any, shipped: own_models.ShippedWeights, mask_tokens: Callable[..., Any], steps: int
) -> list[float]:
    """The page's training, with a `mask_tokens` of one's choice: the loss of every step.

    Args:
        parts: with `BertForPreTraining`, `next_sentence_pairs` and `pretraining_loss`.
    """
    torch.manual_seed(0)
    random.seed(0)
    words = shipped.sizes["vocab_size"]
    model: nn.Module = parts.BertForPreTraining(
        words, d_model=64, num_layers=2, num_heads=4, d_ff=256, dropout=0.0
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = own_models.sentence_pairs(shipped, parts.next_sentence_pairs, size=8)
    losses = []
    for _, (ids, token_type_ids, mask, is_random) in zip(range(steps), batches, strict=False):
        corrupted, labels = mask_tokens(ids, words)
        loss: Tensor = parts.pretraining_loss(
            *model(corrupted, token_type_ids, mask), labels, is_random
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def smooth(losses: Sequence[float], width: int = 5) -> tuple[list[float], list[float]]:
    """Means of neighbouring steps, and the steps in the middle of them."""
    starts = range(0, len(losses) - width + 1, width)
    means = [sum(losses[s : s + width]) / width for s in starts]
    return [s + (width + 1) / 2 for s in starts], means


def live_losses(curves: Mapping[str, Sequence[float]], frequency: float) -> Figure:
    """Losses of the first steps of trainings, both parts together.

    Args:
        curves: loss of each step by name.
        frequency: loss of a masked piece by frequency alone.
    """
    figure, ax = plt.subplots(figsize=(5.8, 3.2))
    for (name, losses), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(*smooth(losses), color=colour, label=name)
    floor = frequency + NO_CHOICE
    ax.axhline(floor, color=INK, lw=1, ls=":")
    steps = max(map(len, curves.values()))
    ax.text(steps, floor - 0.15, f"frequency alone, a coin toss: {floor:.2f}", ha="right", va="top",
            fontsize=10.5)  # fmt: skip
    ax.set(xlabel="step", ylabel="loss (sum of both)", ylim=(0, 9.2))
    if len(curves) > 1:
        ax.legend(fontsize=10.5, loc="lower right" if len(curves) > 2 else "best")
    return figure


def course(curves: Sequence[Mapping[str, str]], frequency: float) -> Figure:
    """The whole training of the shipped model on held-out text, with marks at 1, 10 and 100 %.

    Args:
        curves: rows of `training.csv`.
        frequency: loss of a masked piece by frequency alone.
    """
    rows = [row for row in curves if row["held_out_mlm_loss"]]
    steps = [int(row["step"]) for row in rows]
    first = [(int(row["step"]), float(row["mlm_loss"])) for row in curves
             if row["mlm_loss"] and int(row["step"]) < steps[0]]  # fmt: skip
    figure, axes = plt.subplots(2, 1, figsize=(5.8, 4.6), sharex=True)
    columns = [float(row["held_out_mlm_loss"]) for row in rows]
    axes[0].plot(*zip(*first, strict=True), color=PALETTE[0], lw=0.9, alpha=0.6)
    axes[0].plot(steps, columns, color=PALETTE[0], marker="o", ms=3)
    axes[0].axhline(frequency, color=INK, lw=1, ls=":")
    axes[0].text(55, frequency - 0.2, "frequency alone", va="top", fontsize=10.5)
    axes[0].set(title="loss of masked tokens", ylim=(3, 8.3))
    for (title, name), colour in zip(
        (("masked tokens", "mlm"), ("next sentence", "nsp")), PALETTE, strict=False
    ):
        share = [100 * float(row[f"held_out_{name}_accuracy"]) for row in rows]
        axes[1].plot(steps, share, color=colour, marker="o", ms=3, label=title)
    axes[1].axhline(50, color=PALETTE[1], lw=1, ls=":")
    axes[1].set(title="right, in percent", ylim=(0, 100), xlabel="step", xscale="log")
    axes[1].legend(fontsize=10.5, loc="upper left")
    for ax in axes:
        for step in (330, 3300, 33_000):
            ax.axvline(step, color="#a9a498", lw=1)
    axes[1].set_xticks([100, 330, 1000, 3300, 10_000, 33_000],
                       ["100", "330\n1 %", "1,000", "3,300\n10 %", "10,000", "33,000\n100 %"],
                       fontsize=9.5)  # fmt: skip
    axes[1].minorticks_off()
    return figure


def answers_page(question: str, answers: Sequence[tuple[str, float]]) -> str:
    """A sentence with its [MASK] and the best pieces for it, with a bar for each probability."""
    lines = "".join(
        f"<tr><th scope=row>{html.escape(piece)}</th><td>{share:.3f}</td>"
        f"<td><div style='width:{100 * share:.1f}%'></div></td></tr>"
        for piece, share in answers
    )
    return (
        f"{_SHEET}<div class=answers><p><i>{html.escape(question)}</i></p>"
        f"<table>{lines}</table></div>"
    )
