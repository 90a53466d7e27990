"""Pictures of the page on [MASK]: what the head predicts where, and the stored experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import training
from toolkit.bert.attention_heads import PAIRS, held_out_rows
from toolkit.bert.masking_experiments import NONE, Found
from toolkit.corpora.docstrings import IGNORE, MASK, SPECIAL
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE

FATES = ("[MASK]", "random", "kept", "not chosen")
BATCH = 50
Results = Mapping[tuple[str, str], Found]


@torch.no_grad()
def by_fate(shipped: Shipped, count: int = PAIRS, seed: int = 0) -> dict[str, Tensor]:
    """What the shipped model predicts at held-out positions, by what became of the token there.

    Args:
        count: pairs of held-out text at most.

    Returns:
        For each of `FATES` (n, 3): whether the right token is the most probable, whether the token
        that is read is, and the probability of the latter.
    """
    rows = held_out_rows(shipped, count, seed)
    with training.seeded(seed + 1):
        read, labels = shipped.module.mask_tokens(rows.ids, len(shipped.tokenizer))
    found: dict[str, list[Tensor]] = {name: [] for name in FATES}
    for first in range(0, len(read), BATCH):
        some = slice(first, first + BATCH)
        longest = int(rows.mask[some].sum(1).max())
        ids, shown, label, segments, mask = (
            each[some, :longest]
            for each in (rows.ids, read, labels, rows.token_type_ids, rows.mask)
        )
        hidden, _ = shipped.model.bert(shown, segments, mask)
        chosen = label != IGNORE
        for name, at in zip(
            FATES,
            (chosen & (shown == MASK), chosen & (shown != MASK) & (shown != ids),
             chosen & (shown == ids), (ids >= SPECIAL) & ~chosen),
            strict=True,
        ):  # fmt: skip
            logits = shipped.model.mlm(hidden[at])  # (n, V)
            best, seen = logits.argmax(-1), shown[at]  # (n,) both
            share = (logits.gather(1, seen[:, None])[:, 0] - logits.logsumexp(-1)).exp()
            found[name].append(
                torch.stack([(best == ids[at]) * 1.0, (best == seen) * 1.0, share], 1)
            )
    return {name: torch.cat(parts) for name, parts in found.items()}


def fates(found: Mapping[str, Tensor]) -> Figure:
    """Whether the most probable token is the right one, the wrong one that is read, or another."""
    figure, ax = plt.subplots(figsize=(5.2, 2.7))
    kinds = ("the right token", "the wrong token it reads", "another")
    for y, each in enumerate(found.values()):
        right = each[:, 0].mean().item()
        repeats = ((each[:, 1] == 1) & (each[:, 0] == 0)).float().mean().item()
        left = 0.0
        for share, kind, colour, ink in zip(
            (right, repeats, 1 - right - repeats), kinds, (PALETTE[0], PALETTE[1], "#d9d6cf"),
            ("white", "white", INK), strict=True,
        ):  # fmt: skip
            ax.barh(y, 100 * share, left=left, color=colour, height=0.62,
                    label=kind if y == 0 else None)  # fmt: skip
            if share > 0.04:
                ax.text(left + 50 * share, y, f"{100 * share:.0f}", va="center", ha="center",
                        color=ink)  # fmt: skip
            left += 100 * share
    ax.set_yticks(range(len(found)), list(found))
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="its most probable token is … (%)")
    figure.legend(loc="outside upper center", ncols=3, fontsize=10.5, handlelength=1,
                  columnspacing=1.0)  # fmt: skip
    return figure


def compared(
    results: Results, names: Mapping[str, str], references: Mapping[str, float],
    stages: Sequence[str] = ("fine-tuned", "frozen"),
) -> Figure:  # fmt: skip
    """Accuracy of each contestant after either stage: a dot a seed, and a line at the mean.

    Args:
        names: what to write for each contestant.
        references: accuracies to mark by a dotted line, by what to write above it.
    """
    figure, axes = plt.subplots(
        1, len(stages), figsize=(5.4, 1.1 + 0.42 * len(names)), sharey=True, sharex=True
    )
    for ax, stage in zip(axes, stages, strict=True):
        for y, name in enumerate(names):
            test = 100 * results[name, stage].test
            colour = PALETTE[5] if name == NONE else PALETTE[0]
            ax.plot(test, torch.full_like(test, y), "o", color=colour, ms=5, alpha=0.55, mew=0)
            ax.plot([test.mean()] * 2, [y - 0.3, y + 0.3], color=INK, lw=2)
        for name, value in references.items():
            ax.axvline(100 * value, color=INK, lw=0.9, ls=":")
            ax.text(100 * value, 1.01, name, transform=ax.get_xaxis_transform(), ha="center",
                    fontsize=10)  # fmt: skip
        ax.set_title(stage, pad=20)
        ax.set(xlabel="accuracy (%)", xlim=(30, 103))
        ax.set_yticks(range(len(names)), list(names.values()))
    axes[0].invert_yaxis()
    return figure
