"""The attention chapter's small example and its pictures.

One sentence goes through the chapter: seven tokens, four features a token, and matrices that are
chosen so that every number can be checked on paper.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots

SENTENCE = ("the", "cat", "sat", "because", "it", "was", "tired")
FEATURES = ("thing", "living", "action", "function")
VECTORS = {
    "the": (0.0, 0, 0, 1),
    "cat": (1.0, 1, 0, 0),
    "sat": (0.0, 0, 2, 0),
    "because": (0.0, 0, 1, 1),
    "it": (1.0, 0, 0, 1),
    "was": (0.0, 0, 1, 0),
    "tired": (0.0, 1, 0, 0),
    "[PAD]": (1.0, 2, 0, 0),  # a vector like any other: nothing but a mask keeps it out
}


@dataclass(frozen=True)
class Projections:
    """What one head of the example asks for, is found by, and hands over."""

    query: Tensor  # (4, 4)
    key: Tensor  # (4, 4)
    value: Tensor  # (4, 2)
    holds: tuple[str, str]  # names of the two entries of a value


# A thing asks for something living, a function word for a thing, an action for who does it.
WHO = Projections(
    query=torch.tensor([[0.0, 2, 0, 0], [0, 0, 2, 0], [2, 2, 0, 0], [2, 0, 0, 0]]),
    key=torch.eye(4),
    value=torch.tensor([[0.0, 0], [2, 0], [0, 0], [0, 2]]),
    holds=("living", "function"),
)
# A thing asks for what it does.
DOES_WHAT = Projections(
    query=torch.tensor([[0.0, 0, 2, 0], [0, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]]),
    key=torch.eye(4),
    value=torch.tensor([[0.0, 1], [0, 0], [1, 0], [0, 0]]),
    holds=("action", "thing"),
)


@dataclass(frozen=True)
class Example:
    """Every step of scaled dot-product attention for T tokens of the sentence.

    vectors, query, key: (T, 4). value, output: (T, 2). scores, weights: (T, T); masked scores
    are -inf.
    """

    tokens: tuple[str, ...]
    vectors: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    scores: Tensor
    weights: Tensor
    output: Tensor


def example(
    tokens: Sequence[str] = SENTENCE, head: Projections = WHO, mask: Tensor | None = None
) -> Example:
    """The chapter's example for some tokens of the sentence.

    Args:
        tokens: words of `VECTORS`.
        head: the projections.
        mask: (T, T) bool, True = may attend; every row has a True.

    Raises:
        ValueError: a word is not in the sentence.
    """
    unknown = set(tokens) - set(VECTORS)
    if unknown:
        raise ValueError(f"not in the sentence: {', '.join(sorted(unknown))}")
    vectors = torch.tensor([VECTORS[token] for token in tokens])  # (T, 4)
    query, key, value = (vectors @ w for w in (head.query, head.key, head.value))
    scores = query @ key.T / math.sqrt(key.shape[-1])  # (T, T)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    return Example(tuple(tokens), vectors, query, key, value, scores, weights, weights @ value)


# --------------------------------------------------------------------------- what is measured


def softmax_derivative(weights: Tensor) -> Tensor:
    """Frobenius norm of the derivative of a softmax by its scores: (..., keys) -> (...)."""
    diagonal = torch.diag_embed(weights)  # (..., keys, keys)
    return (diagonal - weights[..., :, None] * weights[..., None, :]).flatten(-2).norm(dim=-1)


def copied_digits(
    written: Sequence[str], source: Sequence[str], weights: Tensor
) -> list[tuple[bool, float]]:
    """Whether a translator looks at the digit that it copies.

    Args:
        written: T tokens of the translation. source: S tokens. weights: (T, S).

    Returns:
        For each digit that occurs as often in the translation as in the source (the 3 of a month
        that was written «March» is no copy): whether its largest weight lies on that digit, and
        how often a source token chosen at random would be that digit.
    """
    found = []
    for token, row in zip(written, weights, strict=True):
        if token.isdigit() and list(written).count(token) == list(source).count(token):
            looked_at = source[int(row.argmax())]
            found.append((looked_at == token, list(source).count(token) / len(source)))
    return found


# --------------------------------------------------------------------------- HTML

# The page's own colours; the fallbacks are for a notebook.
_BARS = (
    "<style>table.bars{width:auto!important;border-collapse:collapse;margin:.4em 0}"
    "table.bars :is(td,th,tr,caption){border:0!important;padding:.1em .5em;"
    "background:none!important;color:inherit;font-weight:normal;text-align:left;line-height:1.4}"
    "table.bars caption{caption-side:top}"
    "table.bars .n{text-align:right;font-variant-numeric:tabular-nums}"
    "table.bars .t{width:min(15em,34vw)}"
    "table.bars .t div{height:.85em;border-radius:2px;"
    "background:var(--pst-color-primary,#1a5f99)}</style>"
)


def bars(
    labels: Sequence[str], weights: Tensor, notes: Sequence[str] = (), caption: str = ""
) -> str:
    """Weights (T,) as bars, a row each, as an HTML table.

    Args:
        labels: T names. notes: T remarks beside the names, or none.
    """
    rows = []
    for label, note, weight in zip(labels, notes or [""] * len(labels), weights, strict=True):
        share = float(weight)
        rows.append(
            f"<tr><th scope=row>{html.escape(label)}</th><td class=n>{html.escape(note)}</td>"
            f"<td class=t><div style='width:{100 * min(max(share, 0.0), 1.0):.1f}%'></div></td>"
            f"<td class=n>{share:.2f}</td></tr>"
        )
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"{_BARS}<table class=bars>{title}{''.join(rows)}</table>"


def look_from(found: Example, token: str, holds: Sequence[str]) -> str:
    """Where one token of the example looks, and its new vector, as HTML."""
    row = found.tokens.index(token)
    notes = ["hidden" if s == -math.inf else f"score {s:.1f}" for s in found.scores[row].tolist()]
    new = ", ".join(
        f"{name} <b>{float(entry):.2f}</b>"
        for name, entry in zip(holds, found.output[row], strict=True)
    )
    return (
        bars(found.tokens, found.weights[row], notes, f"«{token}» looks at")
        + f"<p>the new vector of <i>{html.escape(token)}</i>: {new}</p>"
    )


# --------------------------------------------------------------------------- figures


def paths() -> Figure:
    """How far *it* is from *cat*: through every state between them, or by one look."""
    figure, ax = plt.subplots(figsize=(5.8, 2.6))
    positions = [0.0, 1.0, 2.0, 3.2, 4.4, 5.4, 6.4]
    for x, token in zip(positions, SENTENCE, strict=True):
        strong = token in ("cat", "it")
        box = {"boxstyle": "round,pad=0.35", "fc": "#dfeaf5" if strong else "#f1efe9", "ec": "none"}
        ax.text(
            x, 0, token, ha="center", va="center", fontsize=12, bbox=box,
            weight="bold" if strong else "normal",
        )  # fmt: skip
    for left, right in itertools.pairwise(positions[1:5]):
        ax.annotate(
            "", (right, 0.35), (left, 0.35),
            arrowprops={"arrowstyle": "->", "color": plots.PALETTE[1], "lw": 1.8,
                        "connectionstyle": "arc3,rad=-0.5"},
        )  # fmt: skip
    ax.text(2.7, 1.15, "recurrent: 3 steps, each overwrites a little", ha="center",
            color="#a84c10", fontsize=11)  # fmt: skip
    ax.annotate(
        "", (1.0, -0.35), (4.4, -0.35),
        arrowprops={"arrowstyle": "->", "color": plots.PALETTE[0], "lw": 2.6,
                    "connectionstyle": "arc3,rad=-0.22"},
    )  # fmt: skip
    ax.text(2.7, -1.35, "attention: 1 step", ha="center", color="#1a5f99", fontsize=11)
    ax.set(xlim=(-0.5, 7.0), ylim=(-1.65, 1.5))
    ax.axis("off")
    return figure


def matrix(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
    form: str = ".0f", high: float | None = None,
) -> Figure:  # fmt: skip
    """One matrix with its numbers."""
    figure, ax = plt.subplots(figsize=(1.6 + 0.55 * len(columns), 1.1 + 0.4 * len(rows)))
    top = float(values.max()) if high is None else high
    plots.attention_map(
        ax, values, rows, columns, title=title, numbers=form, limits=(0, 1.6 * top or 1),
        row_label="", column_label="",
    )  # fmt: skip
    ax.set_aspect("auto")
    ax.tick_params(labelsize=10.5)
    return figure


def roles(found: Example, token: str, holds: Sequence[str]) -> Figure:
    """The query of one token, and the keys and values of all."""
    figure, axes = plt.subplots(
        1, 3, figsize=(5.6, 3.5), width_ratios=(4, 4, 2.4), gridspec_kw={"wspace": 0.05}
    )
    row = found.tokens.index(token)
    asked = torch.full_like(found.query, math.nan)
    asked[row] = found.query[row]
    parts = (
        (asked, FEATURES, f"query of «{token}»"),
        (found.key, FEATURES, "keys"),
        (found.value, holds, "values"),
    )
    for ax, (values, columns, title) in zip(axes, parts, strict=True):
        plots.attention_map(
            ax, torch.nan_to_num(values), found.tokens, columns, title=title, limits=(0, 6),
            row_label="", column_label="",
        )  # fmt: skip
        ax.set_aspect("auto")
        ax.tick_params(labelsize=10)
        for i, line in enumerate(values.tolist()):
            for j, value in enumerate(line):
                if not math.isnan(value):
                    ax.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=9.5)
        if ax is not axes[0]:
            ax.set_yticks([])
    return figure


def mixing(found: Example, token: str, holds: Sequence[str]) -> Figure:
    """Weights times values, and their sum, for one query."""
    row = found.tokens.index(token)
    weights = found.weights[row][:, None]  # (T, 1)
    parts = weights * found.value  # (T, 2)
    table = torch.cat([weights, found.value, parts], 1)  # (T, 5)
    summed = torch.cat([weights.sum()[None], torch.full((2,), math.nan), parts.sum(0)])
    table = torch.cat([table, summed[None]])  # (T + 1, 5)
    columns = ["weight", *holds, *(f"weight ×\n{name}" for name in holds)]
    figure, ax = plt.subplots(figsize=(5.2, 1.4 + 0.36 * len(table)))
    shown = torch.nan_to_num(table)
    shown[:, 1:3] = 0  # values are given; what counts is the shares and the products
    plots.attention_map(
        ax, shown, [*found.tokens, "sum"], columns, limits=(0, 3.6), row_label="", column_label=""
    )
    ax.set_aspect("auto")
    ax.set_xticks(range(5), columns, rotation=0, ha="center")
    ax.xaxis.tick_top()
    ax.tick_params(labelsize=10)
    for i, line in enumerate(table.tolist()):
        for j, value in enumerate(line):
            if not math.isnan(value):
                ax.text(
                    j, i, format(value, ".0f" if j in (1, 2) else ".2f"), ha="center", va="center",
                    fontsize=9.5, weight="bold" if i == len(table) - 1 else "normal",
                )  # fmt: skip
    ax.axhline(len(table) - 1.5, color=plots.INK, lw=1)
    return figure


def maps(
    matrices: Mapping[str, Tensor], rows: Sequence[str], columns: Sequence[str] | None = None, *,
    form: str = ".2f", limits: tuple[float, float] = (0.0, 1.5), across: int = 4,
    size: float = 0.62, row_label: str = "", column_label: str = "",
) -> Figure:  # fmt: skip
    """Matrices of one shape beside each other, with numbers; NaN is drawn hatched."""
    columns = rows if columns is None else columns
    across = min(across, len(matrices))
    down = -(-len(matrices) // across)
    width, height = 0.75 + size * len(columns), 0.95 + size * 0.8 * len(rows)
    figure, axes = plt.subplots(
        down, across, figsize=(across * width, down * height), squeeze=False
    )
    for ax in axes.flat[len(matrices) :]:
        ax.set_visible(False)
    for ax, (title, values) in zip(axes.flat, matrices.items(), strict=False):
        plots.attention_map(
            ax, values, rows, columns, title=title, numbers=form if form else False,
            limits=limits, row_label=row_label, column_label=column_label,
        )  # fmt: skip
        ax.set_aspect("auto")
        for text in ax.texts:
            i, j = round(text.get_position()[1]), round(text.get_position()[0])
            if values[i, j].isnan():
                text.set_text("NaN")
            elif not text.get_text().strip("−0."):
                text.set_text(text.get_text().removeprefix("−"))
            text.set_fontsize(10)
    return figure


def steps(found: Example, holds: Sequence[str]) -> Figure:
    """Scores, weights and output of the example beside each other."""
    count = len(found.tokens)
    figure, axes = plt.subplots(
        1, 3, figsize=(2.2 + 1.1 * count, 1.0 + 0.42 * count), width_ratios=(count, count, 2)
    )
    parts = (
        (found.scores, found.tokens, "scores", ".0f", 4.0),
        (found.weights, found.tokens, "weights", ".2f", 1.5),
        (found.output, holds, "output", ".2f", 6.0),
    )
    for ax, (values, columns, title, form, high) in zip(axes, parts, strict=True):
        plots.attention_map(
            ax, values, found.tokens, columns, title=title, numbers=form, limits=(0, high),
            row_label="", column_label="",
        )  # fmt: skip
        ax.set_aspect("auto")
        ax.tick_params(labelsize=10.5)
        for text in ax.texts:
            text.set_fontsize(10)
        if ax is not axes[0]:
            ax.set_yticks([])
    return figure


# --------------------------------------------------------------------------- translators

# What the tokens of the chapter's translations mean, for readers who don't read Chinese
MEANINGS = {
    "年": "year", "月": "month", "日": "day", "和": "and", "天": "days", "周": "weeks",
    "后": "after", "<eos>": "(end)",
}  # fmt: skip


def glossed(tokens: Sequence[str]) -> list[str]:
    """Chinese tokens with their meaning behind them; digits as they are."""
    return [f"{token} {MEANINGS[token]}" if token in MEANINGS else token for token in tokens]


def meanings(tokens: Sequence[str]) -> list[str]:
    """The meanings of Chinese tokens alone; digits as they are."""
    return [MEANINGS.get(token, token) for token in tokens]


# --------------------------------------------------------------------------- layouts


def row_orders() -> Figure:
    """Which rows of a stacked projection belong to q, k and v of two heads, in two layouts."""
    stacked = [f"{name} of head {head}" for name in "qkv" for head in (0, 1)]
    interleaved = [f"{name} of head {head}" for head in (0, 1) for name in "qkv"]
    figure, ax = plt.subplots(figsize=(5.2, 3.2))
    for column, (title, blocks) in enumerate(
        (("PyTorch: stacked", stacked), ("fused: interleaved", interleaved))
    ):
        for row, block in enumerate(blocks):
            colour = plots.PALETTE["qkv".index(block[0])]
            strong = block.endswith("0")
            ax.add_patch(
                plt.Rectangle(
                    (1.3 * column, -row), 1.0, -0.88, fc=colour, alpha=0.32 if strong else 0.14,
                    ec=colour, lw=1.4,
                )
            )  # fmt: skip
            ax.text(1.3 * column + 0.5, -row - 0.45, block, ha="center", va="center", fontsize=10.5)
        ax.text(1.3 * column + 0.5, 0.25, title, ha="center", fontsize=11)
    for row, block in enumerate(stacked):
        ax.plot(
            (1.02, 1.28), (-row - 0.44, -interleaved.index(block) - 0.44), color="#8a857a", lw=1
        )
    ax.set(xlim=(-0.05, 2.35), ylim=(-6.0, 0.6))
    ax.axis("off")
    return figure
