"""Pictures of the page on next sentence prediction: all pairs of two documents, and accuracies."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import models
from toolkit.bert.next_sentence_experiments import KINDS, bert_logits
from toolkit.plots import INK, MAP, PALETTE

NAMES = ("1a", "1b", "1c", "1d", "2a", "2b", "2c", "2d")
# As the figure's labels say it: where the wrong second sentence comes from.
WHERE = {
    "another module": "another\nmodule",
    "same module": "same\nmodule",
    "same document": "same\ndocument",
    "swapped": "the two\nswapped",
}
_LIST = (
    "<style>table.said{width:auto!important;border-collapse:collapse}"
    "table.said :is(td,th){border:0!important;padding:.1em .6em;background:none!important;"
    "color:inherit;font-weight:normal;text-align:left;vertical-align:top}"
    "table.said tr.n td,table.said tr.n th{padding-top:.7em}</style>"
)


def is_next(shipped: models.Shipped, sentences: Sequence[str]) -> Tensor:
    """The probability of «is next» for each first (rows) and second sentence: (N, N)."""
    parts = [shipped.tokenizer.encode(text) for text in sentences]
    pairs = [(first, second) for first in parts for second in parts]
    return bert_logits(shipped, pairs).sigmoid().unflatten(0, (len(parts), len(parts)))


def listed(sentences: Sequence[str]) -> str:
    """The eight sentences with their names, as HTML."""
    rows = "".join(
        f"<tr{' class=n' if name == '2a' else ''}><th scope=row>{name}</th>"
        f"<td>{html.escape(text)}</td></tr>"
        for name, text in zip(NAMES, sentences, strict=True)
    )
    return f"{_LIST}<table class=said>{rows}</table>"


def every_pair(shares: Tensor) -> Figure:
    """Probabilities (8, 8) of «is next»; true next sentences have a frame."""
    figure, ax = plt.subplots(figsize=(5.4, 4.7))
    ax.imshow(shares, cmap=MAP, vmin=0, vmax=1.25)
    for row, line in enumerate(shares.tolist()):
        for column, share in enumerate(line):
            ax.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=11,
                    color="white" if share > 0.8 else INK)  # fmt: skip
    for row in (0, 1, 2, 4, 5, 6):
        ax.add_patch(plt.Rectangle((row + 0.54, row - 0.46), 0.92, 0.92, fill=False,
                                   ec=PALETTE[1], lw=2.4, gid=f"next:{row}"))  # fmt: skip
    ax.set_xticks(range(8), NAMES, fontsize=11.5)
    ax.set_yticks(range(8), NAMES, fontsize=11.5)
    ax.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.set_xlabel("second sentence", fontsize=11.5)
    ax.xaxis.set_label_position("top")
    ax.set_ylabel("first sentence", fontsize=11.5)
    ax.spines[:].set_visible(False)
    return figure


def by_kind(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Accuracy of both judges for each kind of wrong second sentence, with intervals.

    Args:
        rows: of one form and subset, as `next_sentence_experiments.read` gives them.
    """
    figure, ax = plt.subplots(figsize=(5.6, 3.3))
    looks = {"BERT": ("o", PALETTE[0], -0.1), "shared words": ("s", PALETTE[1], 0.1)}
    for judge, (marker, colour, shift) in looks.items():
        found = {row["kind"]: row for row in rows if row["judge"] == judge}
        middle = torch.tensor([100 * float(found[kind]["accuracy"]) for kind in KINDS])
        low, high = (
            torch.tensor([100 * float(found[kind][f"accuracy_{end}"]) for kind in KINDS])
            for end in ("low", "high")
        )
        x = torch.arange(len(KINDS)) + shift
        label = "BERT, as shipped" if judge == "BERT" else "shared words only"
        ax.errorbar(x, middle, torch.stack([middle - low, high - middle]), fmt=marker,
                    color=colour, ms=7, capsize=4, lw=1.6, label=label)  # fmt: skip
        for n, value in enumerate(middle.tolist()):
            right = judge != "BERT"
            ax.text(n + (0.2 if right else -0.2), value, f"{value:.0f}", color=colour,
                    ha="left" if right else "right",
                    va="bottom" if value < 52 else "center", fontsize=11)  # fmt: skip
    ax.axhline(50, color=INK, lw=0.9, ls=":")
    ax.text(-0.55, 50.6, "chance", fontsize=10.5, va="bottom")
    ax.set_xticks(range(len(KINDS)), [WHERE[kind] for kind in KINDS], fontsize=11)
    ax.set(xlim=(-0.6, len(KINDS) - 0.4), ylim=(44, 88), ylabel="accuracy (%)")
    ax.legend(loc="upper right", fontsize=11)
    return figure
