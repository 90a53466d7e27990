"""Pictures of the page on the [MASK] token: what the head says where, and the stored experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import training
from toolkit.bert.attention_heads import held_out_rows
from toolkit.bert.masking_experiments import NONE, Found
from toolkit.corpora.docstrings import IGNORE, MASK, SPECIAL
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE

FATES = ("[MASK]", "random", "kept", "not chosen")
Results = Mapping[tuple[str, str], Found]


@torch.no_grad()
def by_fate(shipped: Shipped, count: int = 80, seed: int = 0) -> dict[str, Tensor]:
    """What the shipped model says at held-out positions, by what became of the token there.

    Returns:
        For each of `FATES` (n, 3): the probability of the right token, whether it is the most
        probable, and the probability of the token that is read.
    """
    rows = held_out_rows(shipped, count, seed)
    with training.seeded(seed + 1):
        read, labels = shipped.module.mask_tokens(rows.ids, len(shipped.tokenizer))
    hidden, _ = shipped.model.bert(read, rows.token_type_ids, rows.mask)
    chosen, usual = labels != IGNORE, rows.ids >= SPECIAL
    found = {}
    for name, at in zip(
        FATES,
        (chosen & (read == MASK), chosen & (read != MASK) & (read != rows.ids),
         chosen & (read == rows.ids), usual & ~chosen),
        strict=True,
    ):  # fmt: skip
        shares = shipped.model.mlm(hidden[at]).softmax(-1)  # (n, V)
        right = rows.ids[at]
        each = torch.arange(len(right))
        found[name] = torch.stack(
            [shares[each, right], (shares.argmax(-1) == right).float(), shares[each, read[at]]], 1
        )
    return found


def fates(found: Mapping[str, Tensor]) -> Figure:
    """How often the most probable token is the right one, by what became of the token."""
    figure, ax = plt.subplots(figsize=(5.8, 2.5))
    for y, (name, each) in enumerate(found.items()):
        right = 100 * each[:, 1].mean().item()
        ax.barh(y, right, color=PALETTE[0] if name != "not chosen" else PALETTE[2], height=0.62)
        ax.text(right + 1.5, y, f"{right:.0f} %", va="center")
    ax.set_yticks(range(len(found)), list(found))
    ax.invert_yaxis()
    ax.set(xlim=(0, 112), xlabel="predicted correctly (%)")
    return figure


def compared(
    results: Results, names: Mapping[str, str], references: Mapping[str, float],
    stages: Sequence[str] = ("fine-tuned", "frozen"),
) -> Figure:  # fmt: skip
    """Accuracy of each contestant after either stage: a dot a seed, and a line at the mean.

    Args:
        names: what to write for each contestant.
        references: accuracies to mark by a dotted line, by what they are.
    """
    figure, axes = plt.subplots(
        1, len(stages), figsize=(6.0, 0.9 + 0.5 * len(names)), sharey=True, sharex=True
    )
    for ax, stage in zip(axes, stages, strict=True):
        for y, name in enumerate(names):
            test = 100 * results[name, stage].test
            colour = PALETTE[5] if name == NONE else PALETTE[0]
            ax.plot(test, torch.full_like(test, y), "o", color=colour, ms=5, alpha=0.55, mew=0)
            ax.plot([test.mean()] * 2, [y - 0.3, y + 0.3], color=INK, lw=2)
        for value in references.values():
            ax.axvline(100 * value, color=INK, lw=0.9, ls=":")
        ax.set(title=stage, xlabel="accuracy (%)")
        ax.set_yticks(range(len(names)), list(names.values()))
    axes[0].invert_yaxis()
    return figure
