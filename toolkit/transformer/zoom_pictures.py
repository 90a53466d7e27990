"""The Transformer step by step, from one box to one layer: small pictures of a followed sentence.

The first three have the same frame, in which one box after the other is opened: source tokens at
the lower left, target tokens at the lower right, the translation at the upper right. The last two
show one layer each. Coloured cells are some features of a token's vector, blue above 0, orange
below. Sums and norms are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from toolkit.diagrams import FILL, Sheet, tint
from toolkit.plots import INK, PALETTE
from toolkit.transformer.index_pictures import FEATURES, Followed

MEMORY, LOOP = PALETTE[1], PALETTE[2]
# The frame of the first three pictures: where the columns of encoder and decoder are, and the box.
_SIDE, _LEFT, _RIGHT = 8.0, 1.95, 5.4
_LOW, _HIGH, _EDGE = 1.45, 6.55, 7.2


def _vector(
    sheet: Sheet, x: float, y: float, values: Tensor, most: float, *, width: float, height: float,
    numbers: bool = False,
) -> None:  # fmt: skip
    """A token's vector as a column of cells around (x, y), coloured by value up to `most`."""
    top = y + height * len(values) / 2
    for row, value in enumerate(values.tolist()):
        bottom = top - height * (row + 1)
        share = 0.62 * min(abs(value) / most, 1.0) ** 0.5
        sheet.ax.add_patch(
            Rectangle(
                (x - width / 2, bottom), width, height, linewidth=0.7, edgecolor=INK,
                facecolor=tint(PALETTE[0 if value > 0 else 1], share), gid="cell",
            )
        )  # fmt: skip
        if numbers:
            text = f"{value:.2f}".replace("-", "−")
            sheet.text(x, bottom + height / 2 - 0.03, text, 10)


def _frame(sheet: Sheet) -> None:
    """The translator, into which one looks."""
    sheet.panel(0.1, _LOW, _EDGE, _HIGH)


def _open(sheet: Sheet, kind: str, left: float, bottom: float, right: float, top: float) -> None:
    """A box that is open: paler, behind what is in it."""
    sheet.panel(left, bottom, right, top, color=tint(FILL[kind], 0.45))
    sheet.ax.patches[-1].set_zorder(0.5)


# --------------------------------------------------------------------------- from outside


def box(found: Followed) -> Figure:
    """The translator as one box: words in, words out."""
    sheet = Sheet(_SIDE, _SIDE)
    sheet.words("source", _LEFT, 0.6, " ".join(found.source), size=13)
    sheet.words("said", _RIGHT, 7.5, " ".join(found.said[:-1]), size=13)
    low, high = _LOW, _HIGH
    sheet.node(
        "translator", (0.1 + _EDGE) / 2, (low + high) / 2, "translator", "plain",
        width=_EDGE - 0.1, height=high - low, size=16,
    )  # fmt: skip
    sheet.link("source", "translator", end=(_LEFT, low))
    sheet.link("translator", "said", start=(_RIGHT, high))
    return sheet.figure


def _outside(sheet: Sheet, found: Followed) -> None:
    """What goes into the frame and out of it, and the way of each written token back in."""
    sheet.words("source", _LEFT, 0.6, " ".join(found.source), size=11.5)
    sheet.words("read", _RIGHT, 0.6, " ".join(found.read), width=3.9, size=11.5)
    sheet.words("said", _RIGHT, 7.5, " ".join(found.said), width=3.9, size=11.5)
    _frame(sheet)
    turn = _SIDE - 0.2
    sheet.link(
        "said", "read", "again", start="right", via=((turn, 7.5), (turn, 0.6)), end="right",
        color=LOOP,
    )  # fmt: skip


def _memory(sheet: Sheet, found: Followed, y: float, features: Sequence[int]) -> None:
    """The memory, a small vector for each source token."""
    sheet.node("memory", _LEFT, y, "", "key", width=3.0, height=1.85)
    sheet.text(_LEFT, y + 0.62, "memory", 11)
    values = found.memory[:, list(features)]
    most = float(values.abs().max())
    for token, vector in enumerate(values):
        across = _LEFT + 0.8 * (token - (len(values) - 1) / 2)
        _vector(sheet, across, y - 0.25, vector, most, width=0.5, height=0.24)


def halves(found: Followed, features: Sequence[int] = FEATURES) -> Figure:
    """Inside: an encoder, the memory, and a decoder that reads again what it has written."""
    sheet = Sheet(_SIDE, _SIDE)
    _outside(sheet, found)
    sheet.node("encoder", _LEFT, 2.75, "encoder", "query", width=3.0, height=1.7, size=13)
    _memory(sheet, found, 5.3, features)
    sheet.node("decoder", _RIGHT, 4.0, "decoder", "value", width=2.7, height=4.2, size=13)
    sheet.link("source", "encoder")
    sheet.link("encoder", "memory")
    sheet.link("memory", "decoder", start="right", end=(_RIGHT - 1.35, 5.3), color=MEMORY)
    sheet.link("read", "decoder")
    sheet.link("decoder", "said")
    return sheet.figure


def layers(found: Followed) -> Figure:
    """Inside both halves: a stack of layers; the memory goes to every layer of the decoder."""
    sheet = Sheet(_SIDE, _SIDE)
    _outside(sheet, found)
    count = len(found.weights.encoder)
    for side, x, high, wide, kind in (
        ("encoder", _LEFT, 4.6, 3.0, "query"), ("decoder", _RIGHT, 6.1, 2.7, "value"),
    ):  # fmt: skip
        last = "source" if side == "encoder" else "read"
        _open(sheet, kind, x - wide / 2, 1.9, x + wide / 2, high)
        outer = x + (wide / 2 - 0.24) * (-1 if side == "encoder" else 1)
        sheet.text(outer, (1.9 + high) / 2, side, 11, rotation=90)
        step = (high - 1.9) / count
        for layer in range(count):
            name = f"{side} {layer}"
            sheet.node(
                name, x, 1.9 + step * (layer + 0.5), f"layer {layer}", kind, width=1.7,
                height=0.75, size=11,
            )  # fmt: skip
            sheet.link(last, name)
            last = name
        if side == "encoder":
            sheet.node("memory", x, 5.6, "memory", "key", width=3.0, height=0.8, size=11)
        sheet.link(last, "memory" if side == "encoder" else "said")
    bus = 3.8
    for name in (f"decoder {layer}" for layer in range(count)):
        via = ((bus, 5.6), (bus, sheet.nodes[name].y))
        sheet.link("memory", name, "KV", start="right", via=via, end="left", color=MEMORY)
    return sheet.figure


# --------------------------------------------------------------------------- one layer

_TALL = 9.4


def _row(
    sheet: Sheet, across: Sequence[float], y: float, values: Tensor, most: float, cell: float,
    numbered: int | None = None,
) -> None:  # fmt: skip
    """The vectors of all tokens; the numbers of one of them, if any."""
    width = 1.0 if numbered is None else 1.5
    for token, (x, vector) in enumerate(zip(across, values, strict=True)):
        _vector(
            sheet, x, y, vector, most, width=width, height=cell, numbers=token == numbered
        )  # fmt: skip


def _words(sheet: Sheet, across: Sequence[float], words: Sequence[str], bold: int) -> None:
    for token, (x, word) in enumerate(zip(across, words, strict=True)):
        sheet.text(x, 0.35, word, 12.5, weight="bold" if token == bold else "normal")


def _attention(
    sheet: Sheet, across: Sequence[float], y: float, text: str, bold: int, *, causal: bool = False
) -> None:  # fmt: skip
    """A self-attention as wide as all tokens.

    A line leads from each token to each that may look at it; those to one token are coloured.
    """
    step = across[1] - across[0]
    left, right = across[0] - step / 2 + 0.2, across[-1] + step / 2 - 0.2
    sheet.node(text, (left + right) / 2, y, "", "weights", width=right - left, height=1.9)
    sheet.text((left + right) / 2, y + 0.6, text, 11.5)
    low, high = y - 0.85, y + 0.28
    for query, end in enumerate(across):
        chosen = query == bold
        for key, start in enumerate(across[: query + 1] if causal else across):
            sheet.ax.plot(
                [start, end], [low, high], color=PALETTE[3] if chosen else "#a9a0b3",
                linewidth=2.2 if chosen else 1.0, zorder=3 if chosen else 2, gid=f"{key}>{query}",
            )  # fmt: skip


def _feed_forward(
    sheet: Sheet, across: Sequence[float], y: float, text: str, width: float, height: float
) -> None:
    """The network, once for each token."""
    for token, x in enumerate(across):
        name = f"feed-forward {token}"
        sheet.node(name, x, y, text, "value", width=width, height=height, size=11)


def _rise(sheet: Sheet, across: Sequence[float], low: float, high: float) -> None:
    for x in across:
        sheet.arrow((x, low), (x, high))


def encoder_layer(
    found: Followed, token: int, layer: int = 0, features: Sequence[int] = FEATURES
) -> Figure:
    """One layer of the encoder: attention across all tokens, then a network for each by itself.

    Args:
        token: whose vector is shown in numbers, and whose lines are coloured.
    """
    chosen, parts = list(features), list(found.parts.values())
    before = sum(parts[: 2 + 2 * layer])[:, chosen]  # (S, features)
    after = sum(parts[: 4 + 2 * layer])[:, chosen]
    most = float(before.abs().maximum(after.abs()).max())
    across = [2.0 + 4.0 * t for t in range(len(found.source))]
    sheet = Sheet(across[-1] + 2.0, _TALL)
    _open(sheet, "query", 0.02, 2.85, across[-1] + 1.98, 6.98)
    _words(sheet, across, found.source, token)
    _row(sheet, across, 1.65, before, most, 0.43, token)
    _rise(sheet, across, 2.52, 3.1)
    _attention(sheet, across, 4.05, "self-attention", token)
    _rise(sheet, across, 5.0, 5.6)
    _feed_forward(sheet, across, 6.15, "feed-forward", 3.2, 1.1)
    _rise(sheet, across, 6.7, 7.3)
    _row(sheet, across, 8.18, after, most, 0.43, token)
    return sheet.figure


def decoder_layer(
    found: Followed, token: int, layer: int = 0, features: Sequence[int] = FEATURES
) -> Figure:
    """One layer of the decoder: masked attention, attention to the memory, then the network.

    Args:
        token: the position in the target whose lines are coloured.
    """
    chosen = list(features)
    before, after = found.states[layer][:, chosen], found.states[layer + 1][:, chosen]
    most = float(before.abs().maximum(after.abs()).max())
    across = [4.12 + 2.2 * t for t in range(len(found.read))]
    left, right = across[0] - 0.95, across[-1] + 0.95
    sheet = Sheet(right + 0.3, _TALL)
    middle, wide = (left + right) / 2, right - left
    _open(sheet, "value", left - 0.2, 2.3, right + 0.2, 7.82)
    _words(sheet, across, found.read, token)
    _row(sheet, across, 1.4, before, most, 0.3)
    _rise(sheet, across, 2.02, 2.55)
    _attention(sheet, across, 3.5, "masked self-attention", token, causal=True)
    _rise(sheet, across, 4.45, 5.0)
    name = "cross-attention"
    sheet.node(name, middle, 5.45, name, "weights", width=wide, height=0.9, size=11.5)
    _rise(sheet, across, 5.9, 6.45)
    _feed_forward(sheet, across, 7.0, "feed-\nforward", 1.9, 1.1)
    _rise(sheet, across, 7.55, 8.1)
    _row(sheet, across, 8.72, after, most, 0.3)

    memory = found.memory[:, chosen]
    sheet.node("memory", 1.25, 5.45, "", "key", width=2.4, height=2.5)
    sheet.text(1.25, 6.33, "memory", 11)
    for t, vector in enumerate(memory):
        x = 1.25 + 0.68 * (t - (len(memory) - 1) / 2)
        _vector(sheet, x, 5.2, vector, float(memory.abs().max()), width=0.5, height=0.36)
    sheet.link("memory", name, start="right", end=(left, 5.45), color=MEMORY)
    return sheet.figure
