"""Diagrams of the sequence-to-sequence chapter: the unrolled model, task families, cells, padding,
and the tree that a search walks through."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from toolkit.diagrams import FILL, Box, Canvas
from toolkit.plots import INK, PALETTE, array

FED_BACK, BEST = PALETTE[1], PALETTE[2]
CONTEXT = PALETTE[5]
FADED = "#9a958a"


def unrolled(source: Sequence[str], target: Sequence[str]) -> Figure:
    """Encoder and decoder, one box per step: the state handed over, and the outputs fed back.

    The encoder's last state is the decoder's first one, and an input of each of its steps.

    Args:
        source: the words read, without special tokens.
        target: the words written, without special tokens; the start token goes in before them and
            the stop token comes out after them.

    Raises:
        ValueError: if one of them is empty.
    """
    if not source or not target:
        raise ValueError("the unrolled model needs at least one source word and one target word")
    step, low, cell, high = 3.0, 0.7, 3.2, 5.8
    inputs, outputs = ["<bos>", *target], [*target, "<eos>"]
    hand_over = 3.2 + step * len(source)
    first = hand_over + 3.4
    canvas = Canvas(first + step * len(outputs) - 1.2, 8.0)

    zero = canvas.box(1.0, cell, "$h_0=0$", width=1.7)
    states = [zero]
    for t, word in enumerate(source):
        x = 3.4 + step * t
        canvas.text(x, low, word, 9.5)
        states.append(canvas.box(x, cell, f"$h_{{{t + 1}}}$", "key", width=1.7, height=1.4))
        canvas.arrow((x, low + 0.35), states[-1].side("bottom"))
    for a, b in itertools.pairwise(states):
        canvas.arrow(a.side("right"), b.side("left"))
    code = canvas.box(hand_over + 0.4, cell, "$C=h_T$", "output", width=2.0, height=1.4)
    canvas.arrow(states[-1].side("right"), code.side("left"))

    written: list[Box] = []
    for t, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        x = first + step * t
        canvas.text(x, low, given, 9.5)
        written.append(canvas.box(x, cell, f"$s_{{{t + 1}}}$", "query", width=1.7, height=1.4))
        canvas.arrow((x, low + 0.35), written[-1].side("bottom"))
        canvas.arrow(written[-1].side("top"), (x, high - 0.35))
        canvas.text(x, high, made, 9.5)
    for a, b in itertools.pairwise([code, *written]):
        canvas.arrow(a.side("right"), b.side("left"))
    for t in range(len(target)):  # what was written is what is read next
        x, middle = first + step * t, first + step * (t + 0.5)
        canvas.ax.plot(
            [x + 0.95, middle, middle, middle + 0.35], [high, high, low, low], "--",
            color=FED_BACK, linewidth=1.1,
        )  # fmt: skip
        canvas.arrow((middle + 0.2, low), (middle + 0.62, low), color=FED_BACK)

    bus = 4.55  # the context is an input of every step as well
    canvas.ax.plot(
        [code.x, code.x, written[-1].x - 0.5], [code.side("top")[1], bus, bus], color=CONTEXT,
        linewidth=1.1,
    )  # fmt: skip
    for box in written:
        canvas.arrow((box.x - 0.5, bus), (box.x - 0.5, box.side("top")[1]), color=CONTEXT)

    canvas.text((3.4 + hand_over - step) / 2, 7.4, "encoder: reads, starts from zeros", 10)
    canvas.text(first + step * len(target) / 2, 7.4, "decoder: writes, starts from $s_0=C$", 10)
    return canvas.figure


def task_families() -> Figure:
    """N tokens to N labels, N tokens to one label, N tokens to N' tokens."""
    canvas = Canvas(27, 8.4)
    words = ["I", "saw", "Rome"]
    panels = [
        ("N to N: one label a token", ["PRON", "VERB", "NAME"]),
        ("N to 1: one label a sentence", ["travel"]),
        ("N to N′: as many tokens as it takes", ["ich", "sah", "Rom", "<eos>"]),
    ]
    for number, (title, made) in enumerate(panels):
        left = 0.4 + 8.4 * number
        canvas.text(left + (4.3 if number == 2 else 3.3), 8.0, title, 10)
        seen = []
        for t, word in enumerate(words):
            x = left + 1.2 + 2.1 * t
            canvas.text(x, 0.5, word, 9)
            seen.append(canvas.box(x, 2.2, f"$h_{t + 1}$", "key", width=1.4))
            canvas.arrow((x, 0.85), seen[-1].side("bottom"))
        for a, b in itertools.pairwise(seen):
            canvas.arrow(a.side("right"), b.side("left"))
        if number == 0:
            for box, label in zip(seen, made, strict=True):
                canvas.arrow(box.side("top"), (box.x, 5.9))
                canvas.text(box.x, 6.25, label, 8.5)
            canvas.text(seen[1].x, 7.1, "logits (B, N, labels)", 8.5)
        elif number == 1:
            head = canvas.box(seen[-1].x, 4.3, "head", "output", width=1.7)
            canvas.arrow(seen[-1].side("top"), head.side("bottom"))
            canvas.arrow(head.side("top"), (head.x, 5.9))
            canvas.text(head.x, 6.25, made[0], 8.5)
            canvas.text(seen[1].x, 7.1, "logits (B, labels)", 8.5)
        else:
            left_of = seen[0].x
            boxes = [
                canvas.box(left_of + 2.1 * t, 4.3, f"$s_{t + 1}$", "query", width=1.4)
                for t in range(len(made))
            ]
            canvas.arrow(seen[-1].side("top"), boxes[0].side("bottom"))
            for a, b in itertools.pairwise(boxes):
                canvas.arrow(a.side("right"), b.side("left"))
            for box, token in zip(boxes, made, strict=True):
                canvas.arrow(box.side("top"), (box.x, 5.9))
                canvas.text(box.x, 6.25, token, 8.5)
            canvas.text(left_of + 3.1, 7.1, "logits (B, N′, vocabulary)", 8.5)
    return canvas.figure


def cells() -> Figure:
    """What happens inside the three recurrent cells, from the inputs below to the state above."""
    canvas = Canvas(29, 12.2)
    old, new = "{t-1}", "{t}"

    canvas.text(3.4, 11.7, "RNN", 11)
    x, h = (canvas.box(at, 0.9, f"${name}$", kind, width=1.5) for at, name, kind in (
        (2.2, "x_t", "plain"), (4.6, f"h_{old}", "key")))  # fmt: skip
    mix = canvas.box(3.4, 4.9, "tanh", "query", width=2.6)
    out = canvas.box(3.4, 10.2, f"$h_{new}$", "output", width=1.7)
    for part in (x, h):
        canvas.arrow(part.side("top"), mix.side("bottom"))
    canvas.arrow(mix.side("top"), out.side("bottom"))

    canvas.text(11.2, 11.7, "GRU", 11)
    x, h = (canvas.box(at, 0.9, f"${name}$", kind, width=1.5) for at, name, kind in (
        (9.5, "x_t", "plain"), (11.5, f"h_{old}", "key")))  # fmt: skip
    r = canvas.box(7.9, 3.6, "reset $r$\n$\\sigma$", "weights", width=2.4, height=1.5)
    n = canvas.box(10.5, 6.6, "new $n$\ntanh", "query", width=2.4, height=1.5)
    z = canvas.box(13.1, 3.6, "update $z$\n$\\sigma$", "weights", width=2.4, height=1.5)
    out = canvas.box(11.6, 10.2, f"$h_{new}=(1-z)\\odot n+z\\odot h_{old}$", "output", width=7.4)
    for gate in (r, z):
        for part in (x, h):
            canvas.arrow(part.side("top"), gate.side("bottom"))
    canvas.arrow(x.side("top"), (n.x - 0.2, n.side("bottom")[1]))
    canvas.arrow(r.side("top"), (n.x - 0.8, n.side("bottom")[1]))
    canvas.arrow(h.side("top"), (n.x + 0.6, n.side("bottom")[1]))
    canvas.arrow(n.side("top"), (n.x, out.side("bottom")[1]))
    canvas.arrow(z.side("top"), (z.x, out.side("bottom")[1]))
    canvas.ax.plot([h.side("right")[0], 14.8, 14.8], [h.y, h.y, 9.0], color=BEST, linewidth=1.0)
    canvas.arrow((14.8, 9.0), (14.8, out.side("bottom")[1]), color=BEST)

    canvas.text(22.4, 11.7, "LSTM", 11)
    placed = ((19.6, "x_t", "plain"), (22.4, f"h_{old}", "key"), (27.6, f"c_{old}", "value"))
    x, h, c = (canvas.box(at, 0.9, f"${name}$", kind, width=1.5) for at, name, kind in placed)
    named = (
        (17.8, "output $o$\n$\\sigma$", "weights"), (20.5, "cell $g$\ntanh", "query"),
        (23.1, "input $i$\n$\\sigma$", "weights"), (25.7, "forget $f$\n$\\sigma$", "weights"),
    )  # fmt: skip
    gates = [canvas.box(at, 3.6, name, kind, width=2.3, height=1.5) for at, name, kind in named]
    o, g, i, f = gates
    for gate in gates:
        for part in (x, h):
            canvas.arrow(part.side("top"), gate.side("bottom"))
    memory = canvas.box(24.6, 7.0, f"$c_{new}=f\\odot c_{old}+i\\odot g$", "value", width=5.6)
    out = canvas.box(20.6, 10.2, f"$h_{new}=o\\odot\\tanh c_{new}$", "output", width=5.0)
    for gate in (g, i, f):
        canvas.arrow(gate.side("top"), (max(gate.x, 22.2), memory.side("bottom")[1]))
    canvas.arrow((c.x, c.side("top")[1]), (27.1, memory.side("bottom")[1]), color=BEST)
    canvas.arrow(o.side("top"), (18.8, out.side("bottom")[1]))
    canvas.arrow((22.6, memory.side("top")[1]), (21.8, out.side("bottom")[1]))
    canvas.text(27.4, 10.2, f"$c_{new}$", 10)
    canvas.arrow((26.6, memory.side("top")[1]), (27.3, 9.8), color=BEST)
    return canvas.figure


def padding_grids(panels: Mapping[str, Any], words: Sequence[Sequence[str]]) -> Figure:
    """Strategies side by side: real tokens filled, padding hatched, one row a sequence.

    Args:
        panels: what each strategy made, by name: pairs (ids, mask), both (rows, length), where
            `ids` are the numbers of the words in `words` counted through, or anything else at
            padding. The share of padding is written below.
        words: the sequences before; the word of each id is taken from them.

    Raises:
        ValueError: if a mask has another shape than its ids.
    """
    named = [word for sentence in words for word in sentence]
    sizes = {}
    for name, (ids, mask) in panels.items():
        if array(ids).shape != array(mask).shape:
            raise ValueError(f"the mask of {name!r} has another shape than its ids")
        sizes[name] = array(ids).shape
    side, gap = 1.0, 1.6
    width = sum(side * columns for _, columns in sizes.values()) + gap * (len(sizes) + 1)
    height = max(rows for rows, _ in sizes.values()) * side + 2.6
    canvas = Canvas(width, height)
    left = gap
    for name, (ids, mask) in panels.items():
        numbers, real = array(ids).astype(int), array(mask).astype(bool)
        rows, columns = sizes[name]
        canvas.text(left + columns * side / 2, height - 0.5, name, 9.5)
        for row, column in itertools.product(range(rows), range(columns)):
            x, y = left + column * side, height - 1.2 - (row + 1) * side
            kept = real[row, column]
            canvas.ax.add_patch(
                Rectangle(
                    (x, y), side, side, edgecolor=INK, linewidth=0.7,
                    facecolor=FILL["key"] if kept else "#f4f2ec", hatch=None if kept else "////",
                )
            )  # fmt: skip
            if kept:
                canvas.text(x + side / 2, y + side / 2, named[numbers[row, column]], 8.5)
        waste = 1 - real.mean()
        canvas.text(
            left + columns * side / 2, height - 1.2 - rows * side - 0.5,
            f"{rows} × {columns}, {waste:.0%} padding", 8.5,
        )  # fmt: skip
        left += columns * side + gap
    return canvas.figure


def search_tree(
    levels: Sequence[Mapping[tuple[str, ...], float]],
    kept: Sequence[set[tuple[str, ...]]],
    winner: tuple[str, ...],
) -> Figure:
    """The prefixes a search has looked at, level by level, with their probabilities.

    Args:
        levels: for each length the probability of every prefix that was looked at.
        kept: for each length the prefixes that survived; the others are drawn faded.
        winner: the sequence returned; the path to it is drawn in colour.

    Raises:
        ValueError: if `levels` and `kept` have different lengths or a prefix has no parent.
    """
    if len(levels) != len(kept):
        raise ValueError(f"{len(levels)} levels with {len(kept)} sets of survivors")
    tallest = max(len(level) for level in levels)
    column, line = 5.4, 1.55
    canvas = Canvas(column * (len(levels) + 1), max(4.0, line * tallest + 1.2))
    middle = canvas.ax.get_ylim()[1] / 2
    places = {(): canvas.box(1.7, middle, "<bos>", width=2.2)}
    for depth, (level, survivors) in enumerate(zip(levels, kept, strict=True), 1):
        top = middle + line * (len(level) - 1) / 2
        for prefix in level:
            if prefix[:-1] not in places:
                raise ValueError(f"{' '.join(prefix)!r} has no parent in the tree")
        # In the order of their parents, so that no two arrows cross
        ordered = sorted(level.items(), key=lambda item: -places[item[0][:-1]].y)
        for index, (prefix, chance) in enumerate(ordered):
            alive, won = prefix in survivors, prefix == winner[: len(prefix)]
            x, y = 1.7 + column * depth, top - line * index
            places[prefix] = canvas.box(
                x, y, f"{prefix[-1]}   {chance:.2f}",
                "value" if won else "query" if alive else "plain", width=3.0,
            )  # fmt: skip
            parent = places[prefix[:-1]]
            canvas.arrow(
                parent.side("right"), places[prefix].side("left"),
                color=BEST if won else INK if alive else FADED,
            )  # fmt: skip
    return canvas.figure
