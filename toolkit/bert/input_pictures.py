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
from toolkit.diagrams import FILL, SOFT, Canvas
from toolkit.models import Shipped
from toolkit.plots import INK
from toolkit.positional_encoding.example_pictures import table

FIRST, SECOND = ("the", "file", "is", "open"), ("close", "it")
# Of «file» at position 2 and «it» at position 7 in [CLS] the file is open [SEP] close it [SEP].
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
        "norm": normalised(total),
    }
    columns = [str(i) for i in range(4)]
    return widgets.side_by_side(table(torch.stack([*rows.values()]), [*rows], columns, "", ".3g"))


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


def tokens_page(
    tokens: Sequence[str], segments: Sequence[int], title: str = "",
    ids: Sequence[int] | None = None,
) -> str:  # fmt: skip
    """Tokens as boxes in a line that wraps, each over its segment, as HTML.

    Args:
        ids: with these, each box shows token, id, segment and position.
    """
    colours = (FILL["query"], FILL["value"])
    boxes = []
    for position, (token, segment) in enumerate(zip(tokens, segments, strict=True)):
        numbers = [segment] if ids is None else [ids[position], segment, position]
        lines = "".join(f"<br><small>{number}</small>" for number in numbers)
        boxes.append(
            f"<span style='display:inline-block;background:{colours[segment]};color:#22252b;"
            "border-radius:4px;padding:.1em .45em;margin:.15em;text-align:center;line-height:1.35'>"
            f"{html.escape(token)}{lines}</span>"
        )
    head = f"<b>{html.escape(title)}</b><br>" if title else ""
    return f"<div style='margin:.5em 0'>{head}{''.join(boxes)}</div>"


@torch.no_grad()
def sum_in(shipped: Shipped, ids: Tensor, segments: Tensor, position: int) -> dict[str, Tensor]:
    """Embeddings (D,) of one token of an input (1, T) in the shipped model, their sum, its norm."""
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
        for (x, wide), text, fill in zip(
            columns, texts, ("weights", kind, "plain", "output"), strict=True
        ):
            canvas.box(x, y, text, fill, width=wide, height=0.85, size=12)
            canvas.ax.patches[-1].set_gid(f"{t}:{text}")
        for x, sign in ((3.25, "+"), (6.25, "+"), (9.3, "=")):
            canvas.text(x, y, sign, 13)
    return canvas.figure


def one_map_or_three() -> Figure:
    """A matrix times a sum is a matrix of three equal blocks times the three vectors, stacked."""
    figure, axes = plt.subplots(1, 2, figsize=(5.0, 2.4), width_ratios=(1, 2.1))
    for ax, blocks in zip(axes, (1, 3), strict=True):
        for block in range(blocks):
            ax.add_patch(Rectangle((1.2 * block, 0), 1.2, 1.2, fc=FILL["weights"], ec=INK))
            ax.text(1.2 * block + 0.6, 0.6, "$W$", ha="center", va="center", fontsize=15)
        start = 1.2 * blocks + 0.25
        stacked = (("token", "weights"), ("segment", "value"), ("position", "plain"))
        for number, (name, fill) in enumerate(stacked if blocks == 3 else (("sum", "output"),)):
            y = (1.2 if blocks == 3 else 0.0) - 1.2 * number
            ax.add_patch(Rectangle((start, y), 0.4, 1.2, fc=FILL[fill], ec=INK))
            ax.text(start + 0.55, y + 0.6, name, va="center", fontsize=13)
        ax.set(
            xlim=(-0.05, start + (2.2 if blocks == 3 else 1.5)), ylim=(-1.3, 2.5), aspect="equal"
        )
        ax.set_title("added" if blocks == 1 else "side by side", fontsize=13)
        ax.axis("off")
    return figure


def compared(rows: dict[str, Tensor]) -> str:
    """Vectors of four numbers under their names, as HTML."""
    columns = [str(i) for i in range(4)]
    return widgets.side_by_side(table(torch.stack([*rows.values()]), [*rows], columns, ""))
