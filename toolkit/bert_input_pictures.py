"""The page on BERT's input: one pair of sentences with vectors of four numbers, and its pictures.

The vectors are chosen so that every sum and every normalised number can be checked on paper.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn import functional as F

from toolkit import widgets
from toolkit.bert_pictures import numbers_table
from toolkit.diagrams import FILL, SOFT, Canvas
from toolkit.models import Shipped
from toolkit.plots import INK
from toolkit.position_pictures import table

FIRST, SECOND = ("the", "file", "is", "open"), ("close", "it")
# Of «file» at position 2 and «it» at position 7 in the pair [CLS] the file is open [SEP] close it [SEP].
TOKEN = {"file": (5.0, 0, 1, -4), "it": (4.0, -1, 2, -5)}
POSITION = {2: (1.0, 2, 0, -3), 7: (5.0, 0, 2, -1)}
SEGMENT = ((2.0, 0, -1, 1), (-3.0, 1, -4, 4))


def summed(word: str, position: int, segment: int) -> Tensor:
    """The sum (4,) of the example's three embeddings."""
    rows = (TOKEN[word], POSITION[position], SEGMENT[segment])
    return torch.tensor(rows).sum(0)


def normalised(x: Tensor) -> Tensor:
    """Layer normalisation (4,) with scale 1 and shift 0, as at the start of training."""
    return F.layer_norm(x, x.shape, eps=1e-12)


# --------------------------------------------------------------------------- HTML


def by_hand(word: str, position: int, segment: int) -> str:
    """The three embeddings of one token, their sum and its norm, a row each, as HTML."""
    total = summed(word, position, segment)
    rows = {
        f"token «{word}»": torch.tensor(TOKEN[word]),
        f"+ position {position}": torch.tensor(POSITION[position]),
        f"+ segment {segment}": torch.tensor(SEGMENT[segment]),
        "= sum": total,
    }
    columns = [str(i) for i in range(4)]
    before = table(torch.stack([*rows.values()]), [*rows], columns, "", ".0f")
    after = table(normalised(total)[None], ["norm"], columns, "")
    return widgets.side_by_side(before, after)


def cut_page(
    length: int, build: Callable[..., tuple[list[int], list[int]]],
    words: Sequence[Sequence[str]] = (FIRST, SECOND),
) -> str:  # fmt: skip
    """What is left of the pair if an input may have `length` tokens, as HTML.

    Args:
        build: the chapter's `build_input`.
    """
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words[0], *words[1]]
    first, second = ([names.index(word) for word in part] for part in words)
    ids, segments = build(first, second, length)
    gone = [names[i] for i in (*first, *second) if i not in ids]
    note = f"removed: {', '.join(gone)}" if gone else "nothing is removed"
    return tokens_page([names[i] for i in ids], segments) + f"<p>{html.escape(note)}</p>"


def tokens_page(tokens: Sequence[str], segments: Sequence[int], title: str = "") -> str:
    """Tokens as boxes in a line that wraps, each over its segment, as HTML."""
    colours = (FILL["query"], FILL["value"])
    boxes = "".join(
        f"<span style='display:inline-block;background:{colours[segment]};color:#22252b;"
        "border-radius:4px;padding:.1em .45em;margin:.15em;text-align:center;line-height:1.35'>"
        f"{html.escape(token)}<br><small>{segment}</small></span>"
        for token, segment in zip(tokens, segments, strict=True)
    )
    head = f"<b>{html.escape(title)}</b><br>" if title else ""
    return f"<div style='margin:.5em 0'>{head}{boxes}</div>"


def shipped_sum(shipped: Shipped, ids: Tensor, segments: Tensor, position: int, feature: int) -> str:
    """What is added for one token of the shipped model in one feature, and its norm, as HTML."""
    found = sum_in(shipped, ids, segments, position)
    rows = [[f"{value[feature]:.2f}".replace("-", "−")] for value in found.values()]
    names = ["token", "+ segment", "+ position", "= sum", "norm"]
    return widgets.side_by_side(numbers_table(rows, names, [str(feature)], "feature"))


@torch.no_grad()
def sum_in(shipped: Shipped, ids: Tensor, segments: Tensor, position: int) -> dict[str, Tensor]:
    """Embeddings (D,) of one token of an input (1, T) in the shipped model, their sum and its norm."""
    part = shipped.model.bert.embeddings
    found = {
        "token": part.token.weight[ids[0, position]],
        "segment": part.segment.weight[segments[0, position]],
        "position": part.position.weight[position],
    }
    found["sum"] = found["token"] + found["segment"] + found["position"]
    return found | {"norm": part.norm(found["sum"])}


# --------------------------------------------------------------------------- figures


def input_sum(tokens: Sequence[str], segments: Sequence[int]) -> Figure:
    """A line for each token: its embedding, its segment's and its position's, added.

    Raises:
        ValueError: another number of segments than of tokens.
    """
    if len(tokens) != len(segments):
        raise ValueError(f"{len(segments)} segments do not fit {len(tokens)} tokens")
    tall, columns = 1.05, ((1.6, 2.6), (4.75, 2.3), (7.75, 2.3), (10.6, 1.7))
    canvas = Canvas(11.7, tall * len(tokens) + 0.9)
    top = tall * len(tokens) + 0.35
    for (x, _), title in zip(columns, ("token", "segment", "position", "input"), strict=True):
        canvas.text(x, top + 0.1, title, 12, color=SOFT)
    for t, (token, segment) in enumerate(zip(tokens, segments, strict=True)):
        y = top - 0.75 - tall * t
        kind = ("query", "value")[segment]
        texts = (token, f"{'AB'[segment]} = {segment}", str(t), f"$x_{t}$")
        for (x, wide), text, fill in zip(columns, texts, ("weights", kind, "plain", "output"), strict=True):
            canvas.box(x, y, text, fill, width=wide, height=0.85, size=12)
            canvas.ax.patches[-1].set_gid(f"{t}:{text}")
        for x, sign in ((3.25, "+"), (6.25, "+"), (9.3, "=")):
            canvas.text(x, y, sign, 13)
    return canvas.figure


def one_map_or_three() -> Figure:
    """A matrix times a sum is a matrix of three equal blocks times the three vectors, stacked."""
    figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.5), width_ratios=(1, 1.75))
    for ax, blocks in zip(axes, (1, 3), strict=True):
        for block in range(blocks):
            ax.add_patch(Rectangle((1.5 * block, 0), 1.5, 1.5, facecolor=FILL["weights"], edgecolor=INK))
            ax.text(1.5 * block + 0.75, 0.75, "$W$", ha="center", va="center", fontsize=14)
        start = 1.5 * blocks + 0.35
        parts = (("token", "weights"), ("segment", "value"), ("position", "plain"))
        if blocks == 1:
            ax.add_patch(Rectangle((start, 0), 0.42, 1.5, facecolor=FILL["output"], edgecolor=INK))
            ax.text(start + 0.6, 0.75, "sum", va="center", fontsize=11.5)
        for number, (name, fill) in enumerate(parts if blocks == 3 else ()):
            y = 1.5 - 1.5 * (number + 1) + 1.0
            ax.add_patch(Rectangle((start, y), 0.42, 1.5, facecolor=FILL[fill], edgecolor=INK))
            ax.text(start + 0.6, y + 0.75, name, va="center", fontsize=11.5)
        ax.set(xlim=(-0.1, start + 2.4), ylim=(-2.15, 2.65), aspect="equal")
        ax.set_title("added" if blocks == 1 else "side by side", fontsize=12)
        ax.axis("off")
    return figure


def alike(vectors: Tensor, title: str) -> Figure:
    """The cosine of each two of n vectors (n, D)."""
    unit = F.normalize(vectors.detach(), dim=-1)
    figure, ax = plt.subplots(figsize=(4.4, 3.5))
    image = ax.imshow((unit @ unit.T).numpy(), cmap="RdBu_r", vmin=-1, vmax=1)
    ax.set(xlabel="position", ylabel="position", title=title)
    figure.colorbar(image, ax=ax, label="cosine")
    return figure


def compared(rows: dict[str, Tensor]) -> str:
    """Vectors of four numbers under their names, as HTML."""
    columns = [str(i) for i in range(4)]
    return widgets.side_by_side(table(torch.stack([*rows.values()]), [*rows], columns, ""))
