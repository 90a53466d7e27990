"""Pictures and counts of the page on a GPT's KV cache: what is computed, kept and multiplied."""

from __future__ import annotations

import html
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from toolkit.plots import PALETTE
from toolkit.transformer.decoding_pictures import KEPT, NEW
from toolkit.widgets import side_by_side


def step_page(
    tokens: Sequence[str], prompt: int, layers: int, step: int, cached: bool, after: str
) -> str:
    """One step of writing as an HTML table: a row for each position, a column for each layer.

    Args:
        tokens: all that are read up to the last step.
        prompt: how many of them are given; step 1 reads these, each further step one more.
        after: the token that this step writes.
    """
    length = prompt + step - 1
    first = length - 1 if cached and step > 1 else 0  # the first position that is computed
    if cached and step == 1:
        first = 0
    lines = []
    for position, token in enumerate(tokens[:length]):
        new = position >= first
        cell = f"<td style=--c:{NEW if new else KEPT}>{'q k v' if new else 'k v'}</td>"
        made = f"<td style=--c:{NEW}>logits</td>" if new else "<td></td>"
        lines.append(
            f"<tr><th scope=row>{position}</th><th scope=row>{html.escape(token)}</th>"
            f"{cell * layers}{made}</tr>"
        )
    head = "".join(f"<th scope=col>layer {n}</th>" for n in range(layers))
    computed = length - first
    table = (
        f"<table class=heat style=font-size:13px><caption>step {step}: writes "
        f"«{html.escape(after)}»</caption><tr><td></td><td></td>{head}<th scope=col>head</th></tr>"
        f"{''.join(lines)}</table>"
    )
    return side_by_side(table) + (
        f"<p>Orange is computed in this step, blue is kept. Positions through the layers: "
        f"<b>{computed}</b>; keys made: <b>{computed * layers}</b>, read from the cache: "
        f"<b>{first * layers}</b></p>"
    )


def cache_bytes(num_layers: int, d_model: int, positions: int, size: int = 2) -> int:
    """Bytes of the keys and values of one text; size: bytes of a number."""
    return 2 * num_layers * d_model * positions * size


def multiplications(
    prompt: int, written: int, num_layers: int, d_model: int, vocab_size: int, cached: bool
) -> int:
    """Multiplications of matrices while a GPT writes, its biases, norms and softmaxes left out.

    A position costs 12 D² in each layer and V D in the head, a pair of query and key 2 D in each
    layer. Without a cache all pairs are computed, and then masked.
    """
    position = 12 * num_layers * d_model**2 + vocab_size * d_model
    pair = 2 * num_layers * d_model
    total = 0
    for step in range(written):
        length = prompt + step
        new = length if not cached or step == 0 else 1
        total += position * new + pair * new * length
    return total


def work(lengths: Sequence[int], without: Sequence[float], kept: Sequence[float]) -> Figure:
    """Multiplications of a whole text against its length, in millions, on logarithmic axes."""
    figure, ax = plt.subplots(figsize=(5.0, 3.0))
    for colour, name, values in (
        (PALETTE[1], "without", without),
        (PALETTE[0], "with a cache", kept),
    ):
        ax.plot(lengths, values, "o-", color=colour)
        ax.text(
            lengths[-1] * 1.12, values[-1], f"{values[-1]:,.0f}\n{name}", color=colour,
            va="center", fontsize=11,
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(list(lengths), [str(n) for n in lengths])
    ax.minorticks_off()
    ax.set(
        xlabel="tokens written after START", ylabel="million multiplications",
        xlim=(None, lengths[-1] * 4),
    )  # fmt: skip
    return figure
