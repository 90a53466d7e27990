"""Diagrams of the chapter on BERT.

What can be read from a model, from ids or from masks is read from them. Boxes and arrows carry
names as `gid`, so that what is drawn can be read back: an arrow from a to b is called `a>b:part`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from toolkit.diagrams import FAINT, FILL, SOFT, Canvas, Point, Sheet, millions, weigh
from toolkit.plots import INK, PALETTE, SHEET, array, mask_map

ROUTE = PALETTE[1]
SEGMENTS = ("query", "value")  # the colours of segments A and B


# --------------------------------------------------------------------------- what goes in


def input_sum(tokens: Sequence[str], segments: Sequence[int]) -> Figure:
    """What BERT reads at each place: a token's row, a segment's row and a position's row, added.

    Args:
        tokens: T pieces, special ones included.
        segments: T numbers, 0 for the first segment and 1 for the second.

    Raises:
        ValueError: no tokens, another number of segments, or a segment other than 0 and 1.
    """
    if not tokens or len(tokens) != len(segments):
        raise ValueError(f"{len(segments)} segments do not fit {len(tokens)} tokens")
    if set(segments) - {0, 1}:
        raise ValueError("segments are 0 or 1")
    wide, label = max(1.9, 0.26 * max(map(len, tokens)) + 0.5), 3.3
    rows = (
        ("token", "weights", [f"$E_\\mathrm{{tok}}$\n{_plain(token)}" for token in tokens]),
        ("segment", None, [f"$E_{{{'AB'[segment]}}}$" for segment in segments]),
        ("position", "plain", [f"$E_{{{place}}}$" for place in range(len(tokens))]),
        ("sum", "output", [f"$x_{{{place}}}$" for place in range(len(tokens))]),
    )
    tops = (6.6, 4.6, 2.9, 0.9)
    canvas = Canvas(label + wide * len(tokens) + 0.2, 8.9)
    for (name, kind, texts), y in zip(rows, tops, strict=True):
        canvas.text(label - 0.3, y, name, 10.5, ha="right")
        for place, text in enumerate(texts):
            x = label + wide * (place + 0.5)
            canvas.box(
                x, y, text, kind or SEGMENTS[segments[place]], width=wide - 0.15,
                height=1.5 if name == "token" else 1.0, size=9.5,
            )  # fmt: skip
            canvas.ax.patches[-1].set_gid(f"{name}:{place}")
    for place, token in enumerate(tokens):
        canvas.text(label + wide * (place + 0.5), 8.3, token, 10)
    for between, sign in ((5.5, "+"), (3.75, "+"), (1.9, "=")):
        for place in range(len(tokens)):
            canvas.text(label + wide * (place + 0.5), between, sign, 12)
    canvas.text(label - 0.3, 8.3, "input", 10.5, ha="right", color=SOFT)
    return canvas.figure


def _plain(text: str) -> str:
    """A text in which no sign is taken for mathematics."""
    return text.replace("$", r"\$")


def masking_outcomes(chosen: int = 15, random: float = 1.5, kept: float = 1.5) -> Figure:
    """Of a hundred ordinary tokens: how many are chosen, and what becomes of those.

    Args:
        chosen: tokens of a hundred that are to be predicted.
        random, kept: how many of the hundred become another token, or stay as they are.

    Raises:
        ValueError: if these are not parts of the chosen, and the chosen of a hundred.
    """
    masked = chosen - random - kept
    if not 0 < chosen <= 100 or min(masked, random, kept) < 0:
        raise ValueError("chosen must be at most 100, and random and kept a part of it")
    canvas = Canvas(23.6, 7.6)
    side = 0.56
    # The chosen ones stand together; in a text they stand anywhere.
    for number in range(100):
        row, column = divmod(number, 10)
        picked = number < chosen
        canvas.ax.add_patch(
            Rectangle(
                (0.4 + column * side, 6.2 - row * side), side - 0.07, side - 0.07,
                facecolor=PALETTE[0] if picked else FILL["plain"], edgecolor="none",
                gid=f"{'chosen' if picked else 'left'}:{number}",
            )
        )  # fmt: skip
    canvas.text(3.2, 7.2, "100 ordinary tokens", 10.5)
    canvas.text(3.2, 0.65, f"{chosen} chosen, {100 - chosen} not", 10.5, color=SOFT)
    fates = (
        (5.9, masked, "becomes [MASK]", "weights", "the task: read it from both sides"),
        (3.8, random, "becomes another token", "key", "so no token can be trusted blindly"),
        (1.7, kept, "stays as it is", "value", "so it has to be represented as itself"),
    )
    for y, share, what, kind, why in fates:
        box = canvas.box(
            10.9, y, f"{share:g} of 100\n{what}", kind, width=5.0, height=1.4, size=10
        )  # fmt: skip
        canvas.ax.patches[-1].set_gid(f"fate:{share:g}")
        canvas.arrow((6.3, 3.8), box.side("left"), weight=0.15 + 0.8 * share / chosen)
        canvas.text(13.7, y, why, 9.5, ha="left", color=SOFT)
    return canvas.figure


# --------------------------------------------------------------------------- who sees whom


def connectivity(tokens: int = 5) -> Figure:
    """BERT, GPT and ELMo as graphs: which places a vector is computed from.

    Two layers each: blocks of attention in BERT and GPT; in ELMo a chain from the left and a chain
    from the right that never meet before their states are put side by side.

    Raises:
        ValueError: fewer than 2 tokens.
    """
    if tokens < 2:
        raise ValueError("give at least 2 tokens")
    step, radius, rise = 6.4 / (tokens - 1), 0.3, 2.2
    width = 8.4
    canvas = Canvas(3 * width, 8.3)
    places = range(tokens)
    both = [((level, s), (level + 1, t)) for level in (0, 1) for s in places for t in places]
    panels = (
        ("BERT: every place, both sides", both, 3),
        ("GPT: itself and what is left", [(a, b) for a, b in both if a[1] <= b[1]], 3),
        ("ELMo: two chains, joined at the end", _two_chains(tokens), 4),
    )
    for number, (name, edges, levels) in enumerate(panels):
        height = rise * 2 / (levels - 1)
        middle = tokens // 2
        goal = (levels - 1, middle)
        on_way = _behind(edges, goal)

        def at(node: tuple[int, int], number: int = number, height: float = height) -> Point:
            return number * width + 1.0 + node[1] * step, 1.6 + node[0] * height

        model = name.split(":")[0]
        canvas.text(number * width + 4.2, 7.6, name, 11)
        for edge in sorted(edges, key=lambda edge: edge[1] in on_way | {goal}):
            first, last = map(at, edge)
            bold = edge[1] in on_way | {goal} and edge[0] in on_way
            length = math.dist(first, last)
            if length == 0:
                continue
            dx, dy = (radius * (b - a) / length for a, b in zip(first, last, strict=True))
            canvas.ax.add_patch(
                FancyArrowPatch(
                    (first[0] + dx, first[1] + dy), (last[0] - dx, last[1] - dy),
                    arrowstyle="-|>", mutation_scale=8 if bold else 5,
                    color=ROUTE if bold else FAINT, linewidth=1.3 if bold else 0.7,
                    shrinkA=0, shrinkB=0, gid=f"{model}:{edge[0]}>{edge[1]}",
                )
            )  # fmt: skip
        for node in itertools.product(range(levels), places):
            seen = node in on_way or node == goal
            canvas.ax.add_patch(
                Circle(
                    at(node), radius, facecolor=FILL["key"] if seen else FILL["plain"],
                    edgecolor=ROUTE if seen else INK, linewidth=1.5 if seen else 0.9, zorder=3,
                )
            )  # fmt: skip
            if not node[0]:
                x, y = at(node)
                canvas.text(x, y - 0.75, f"$x_{{{node[1] + 1}}}$", 10.5)
        if levels == 4:
            for level, text in ((1, "→"), (2, "←")):
                x, y = at((level, tokens - 1))
                canvas.text(x + 0.75, y, text, 12, color=SOFT)
        # What the marked vector is computed from, counted in the drawing itself.
        count = sum(node[0] == 0 for node in on_way)
        canvas.text(
            number * width + 4.2, 0.3, f"the marked vector sees {count} of {tokens} tokens", 9.5,
            color=SOFT,
        )  # fmt: skip
    return canvas.figure


def _two_chains(tokens: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Edges of a one-layer ELMo: level 1 reads from the left, 2 from the right, 3 has both."""
    edges = []
    for place in range(tokens):
        edges += [((0, place), (1, place)), ((0, place), (2, place))]
        edges += [((1, place), (3, place)), ((2, place), (3, place))]
        if place:
            edges += [((1, place - 1), (1, place)), ((2, place), (2, place - 1))]
    return edges


def _behind(
    edges: Iterable[tuple[tuple[int, int], tuple[int, int]]], goal: tuple[int, int]
) -> set[tuple[int, int]]:
    """The nodes from which the goal can be reached."""
    before: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for source, target in edges:
        before.setdefault(target, []).append(source)
    found: set[tuple[int, int]] = set()
    left = [goal]
    while left:
        for node in before.get(left.pop(), ()):
            if node not in found:
                found.add(node)
                left.append(node)
    return found


def connectivity_masks(tokens: int = 5) -> Figure:
    """Which places each model may read at each place: BERT, GPT, and the two chains of ELMo."""
    full = np.ones((tokens, tokens), bool)
    masks = {
        "BERT": full,
        "GPT": np.tril(full),
        "ELMo, left to right": np.tril(full),
        "ELMo, right to left": np.triu(full),
    }
    figure, axes = plt.subplots(1, 4, figsize=(11.5, 3.1), sharey=True)
    for ax, (name, mask) in zip(axes, masks.items(), strict=True):
        mask_map(ax, mask, title=name, row_label="place", column_label="place that is read")
        ax.set_xticks(range(tokens), range(1, tokens + 1))
        ax.set_yticks(range(tokens), range(1, tokens + 1))
        if ax is not axes[0]:
            ax.set_ylabel("")
    return figure


# --------------------------------------------------------------------------- the model


def encoder(model: Any) -> Figure:
    """BERT from ids to heads, with the sizes of the model that is given.

    Args:
        model: a `BertForPreTraining` of the chapter (with the parts `bert`, `mlm` and `nsp`), or a
            `BertModel` alone, which is then drawn without heads.
    """
    heads = hasattr(model, "bert")
    bert = model.bert if heads else model
    vocabulary, width = bert.embeddings.token.weight.shape
    places = len(bert.embeddings.position.weight)
    inner = len(bert.layers[0].w_1.weight)
    sheet = Sheet(16.6, 19.2 if heads else 15.6)
    x, skip = 5.6, 2.6
    for name, across, text in (
        ("token", 1.9, f"token\n{vocabulary} × {width}"),
        ("segment", x, f"segment\n{len(bert.embeddings.segment.weight)} × {width}"),
        ("position", 9.3, f"position\n{places} × {width}"),
    ):
        sheet.words(f"{name}.ids", across, 0.5, "ids" if name == "token" else f"{name}s"
                    if name == "segment" else "0, 1, 2, …", height=0.7)  # fmt: skip
        sheet.node(name, across, 1.9, text, "query", width=3.2)
        sheet.link(f"{name}.ids", name)
    sheet.plus("sum", x, 3.5)
    sheet.link("token", "sum", start="top", via=((1.9, 3.5),), end="left")
    sheet.link("segment", "sum")
    sheet.link("position", "sum", start="top", via=((9.3, 3.5),), end="right")
    sheet.node("norm", x, 4.7, "norm", "output", height=0.75)
    sheet.link("sum", "norm")
    low = 6.1
    last, y = "norm", 5.1
    sheet.panel(x - 3.4, low - 0.5, x + 2.6, low + 8.1)
    count = len(bert.layers)
    sheet.text(x + 3.3, low + 3.8, f"{count} ×", 13)
    number = bert.layers[0].attention.num_heads
    parts = (
        ("attention", f"self-attention, unmasked\n{number} heads of {width // number}",
         "weights"),
        ("feed_forward", f"feed-forward, GELU\n{width} → {inner} → {width}", "value"),
    )  # fmt: skip
    for index, (name, text, kind) in enumerate(parts):
        base = low + 4.0 * index
        sheet.node(name, x, base + 0.9, text, kind, width=4.8)
        sheet.link(last, name)
        sheet.plus(f"add{index}", x, base + 2.1)
        sheet.link(name, f"add{index}")
        begin = (x, base - 0.15)
        sheet.link(
            last, f"add{index}", "skip", start=begin, via=((skip, begin[1]), (skip, base + 2.1)),
            end="left", color=PALETTE[0],
        )  # fmt: skip
        sheet.dot(*begin, PALETTE[0])
        sheet.node(f"norm{index}", x, base + 3.05, "norm", "output", height=0.75)
        sheet.link(f"add{index}", f"norm{index}")
        last, y = f"norm{index}", base + 3.425
    sheet.words("hidden", x, y + 1.6, f"hidden (B, T, {width})", width=4.6, height=0.7)
    sheet.link(last, "hidden")
    y += 1.6
    side = 12.9
    sheet.node(
        "pooler", side, y - 1.6, f"pooler: tanh, place 0\n{width} → {width}", "key", width=4.8
    )
    sheet.link("hidden", "pooler", start="right", via=((side, y),), end="top")
    if heads:
        table = model.mlm.token.weight is bert.embeddings.token.weight
        out = len(model.mlm.bias)
        sheet.node(
            "mlm", x, y + 1.9,
            f"masked-language head, {'tied' if table else 'own table'}\n"
            f"{width} → {width} → {out}",
            "plain", width=6.4,
        )  # fmt: skip
        sheet.link("hidden", "mlm")
        sheet.words("tokens", x, y + 3.6, f"scores (B, T, {out})", height=0.7, width=4.6)
        sheet.link("mlm", "tokens")
        sheet.node("nsp", side, y - 3.8, f"next sentence\n{width} → 2", "plain")
        sheet.link("pooler", "nsp", start="bottom", end="top")
        sheet.words("next", side, y - 5.5, "scores (B, 2)", height=0.7)
        sheet.link("nsp", "next", start="bottom", end="top")
    sheet.text(side, 0.9, f"post-norm\n{millions(weigh(model))} parameters", 10.5, linespacing=1.6)
    return sheet.figure


def four_tasks() -> Figure:
    """Four ways to put a head on BERT: where the answer is read, and what is normalised."""
    canvas = Canvas(25.4, 17.0)
    panels = (
        ("sentence pair", ("[CLS]", "A", "A", "[SEP]", "B", "B", "[SEP]"),
         (0,), "label of the pair", "softmax over labels"),
        ("single sentence", ("[CLS]", "A", "A", "A", "A", "A", "[SEP]"),
         (0,), "label of the sentence", "softmax over labels"),
        ("span in a passage", ("[CLS]", "Q", "Q", "[SEP]", "P", "P", "[SEP]"),
         (4, 5), "start and end", "softmax over places"),
        ("tagging", ("[CLS]", "w", "w", "w", "w", "w", "[SEP]"),
         (1, 2, 3, 4, 5), "a tag for each word", "softmax over labels"),
    )  # fmt: skip
    wide = 1.62
    for number, (name, tokens, read, answer, axis) in enumerate(panels):
        left = 0.6 + (number % 2) * 12.9
        low = 9.1 if number < 2 else 0.4
        canvas.text(left, low + 7.3, name, 12, ha="left")
        canvas.text(left + wide * 7, low + 7.3, axis, 9.5, ha="right", color=SOFT)
        segment = 0
        for place, token in enumerate(tokens):
            x = left + wide * (place + 0.5)
            special = token.startswith("[")
            canvas.box(
                x, low + 0.6, token, "plain" if special else SEGMENTS[segment],
                width=wide - 0.12, height=1.0, size=9.5,
            )  # fmt: skip
            canvas.arrow((x, low + 1.15), (x, low + 2.0))
            canvas.arrow((x, low + 3.2), (x, low + 4.0))
            canvas.box(
                x, low + 4.5, f"$h_{place}$", "output" if place in read else "plain",
                width=wide - 0.12, height=0.9, size=10,
            )  # fmt: skip
            canvas.ax.patches[-1].set_gid(f"{name}:{place}:{'read' if place in read else 'free'}")
            if place in read:
                canvas.arrow((x, low + 5.0), (x, low + 5.8), color=ROUTE)
            segment += token == "[SEP]" and number % 2 == 0 and not segment
        canvas.box(left + wide * 3.5, low + 2.6, "BERT", "weights", width=wide * 7 - 0.1)
        first, last = (left + wide * (place + 0.5) for place in (read[0], read[-1]))
        # An answer from one place has its text beside the arrow's head, not over the edge.
        wordy = max(last - first + wide, 0.34 * len(answer) + 0.6)
        middle = max((first + last) / 2, left + wordy / 2)
        canvas.box(middle, low + 6.3, answer, "key", width=wordy, height=0.9, size=10)
    return canvas.figure


# --------------------------------------------------------------------------- relatives


def permutation(order: Sequence[int]) -> Figure:
    """XLNet's two masks for one order of prediction, and how the order runs over fixed places.

    Args:
        order: a permutation of 0 .. T - 1; `order[k]` is the place that is predicted k-th.

    Raises:
        ValueError: if it is not a permutation.
    """
    order = [int(place) for place in order]
    count = len(order)
    if not count or sorted(order) != list(range(count)):
        raise ValueError("order must be a permutation of 0 .. T - 1")
    rank = np.argsort(order)
    query = rank[None, :] < rank[:, None]
    figure, axes = plt.subplots(
        1, 3, figsize=(11.5, 3.6), gridspec_kw={"width_ratios": (1.35, 1, 1)}
    )
    ax = axes[0]
    ax.axis("off")
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_ylim(-1.5, 2.2)
    ax.set_title("places stay, only the order moves")
    for place in range(count):
        ax.add_patch(
            Rectangle((place - 0.38, -0.35), 0.76, 0.7, facecolor=FILL["query"], edgecolor=INK)
        )
        ax.text(place, 0, f"$x_{{{place}}}$", ha="center", va="center", fontsize=11)
        ax.text(
            place, -0.8, f"{rank[place] + 1}.", ha="center", va="center", fontsize=9.5, color=SOFT
        )
    ax.text(
        (count - 1) / 2, -1.3, "predicted as number", ha="center", va="center", fontsize=9.5,
        color=SOFT,
    )  # fmt: skip
    for before, after in itertools.pairwise(order):
        ax.add_patch(
            FancyArrowPatch(
                (before, 0.4), (after, 0.4), arrowstyle="-|>", mutation_scale=9, color=ROUTE,
                connectionstyle=f"arc3,rad={-0.45 if after > before else 0.45}",
                gid=f"{before}>{after}:next",
            )
        )  # fmt: skip
    for ax, mask, title in (
        (axes[1], query | np.eye(count, dtype=bool), "content: itself too"),
        (axes[2], query, "query: what came before"),
    ):
        mask_map(ax, mask, title=title, row_label="place", column_label="place that is read")
        ax.set_xticks(range(count))
        ax.set_yticks(range(count))
    return figure


def segments_with_memory(segment: int = 4, memory: int = 4, layers: int = 2) -> Figure:
    """Transformer-XL: the states of the segment before are read along with one's own.

    Arrows lead to the last place of the segment; the marked places are what it depends on.

    Raises:
        ValueError: if a number is below 1, or the memory is longer than a segment.
    """
    if min(segment, memory, layers) < 1 or memory > segment:
        raise ValueError("give numbers of 1 or more, and a memory no longer than the segment")
    step, rise, radius = 1.7, 2.0, 0.32
    total = 2 * segment
    canvas = Canvas(total * step + 3.6, rise * layers + 4.2)
    edges = []
    for level in range(layers):
        for place in range(total):
            begin = 0 if place < segment else segment - memory
            edges += [((level, s), (level + 1, place)) for s in range(begin, place + 1)]
    goal = (layers, total - 1)
    behind = _behind(edges, goal) | {goal}

    def at(node: tuple[int, int]) -> Point:
        return 2.2 + node[1] * step + (0.7 if node[1] >= segment else 0.0), 1.7 + node[0] * rise

    for edge in edges:
        if edge[1] not in behind:
            continue
        first, last = map(at, edge)
        length = math.dist(first, last)
        dx, dy = (radius * (b - a) / length for a, b in zip(first, last, strict=True))
        crossing = edge[0][1] < segment <= edge[1][1]
        canvas.ax.add_patch(
            FancyArrowPatch(
                (first[0] + dx, first[1] + dy), (last[0] - dx, last[1] - dy), arrowstyle="-|>",
                mutation_scale=6, color=ROUTE if crossing else FAINT, linewidth=0.9,
                linestyle=(0, (3, 2)) if crossing else "-", shrinkA=0, shrinkB=0,
                gid=f"{edge[0]}>{edge[1]}:{'memory' if crossing else 'own'}",
            )
        )  # fmt: skip
    for node in itertools.product(range(layers + 1), range(total)):
        seen = node in behind
        canvas.ax.add_patch(
            Circle(
                at(node), radius, facecolor=FILL["key"] if seen else FILL["plain"],
                edgecolor=ROUTE if seen else FAINT, linewidth=1.2, zorder=3,
                gid=f"{'seen' if seen else 'free'}:{node[0]}:{node[1]}",
            )
        )  # fmt: skip
    middle = [
        (at((0, a))[0] + at((0, b))[0]) / 2 for a, b in ((0, segment - 1), (segment, total - 1))
    ]
    top = 1.7 + layers * rise
    canvas.text(middle[0], top + 1.1, "segment before: kept, no gradient", 10.5, color=SOFT)
    canvas.text(middle[1], top + 1.1, "this segment: trained", 10.5)
    for level in range(layers + 1):
        name = "input" if not level else f"layer {level}"
        canvas.text(1.5, 1.7 + level * rise, name, 10, ha="right", color=SOFT)
    count = sum(node[0] == 0 for node in behind)
    canvas.text(
        at((0, 0))[0] - radius, 0.6,
        f"dashed: memory, joined along the length. The last place depends on {count} inputs.",
        9.5, ha="left", color=SOFT,
    )  # fmt: skip
    return canvas.figure


def lattice(
    scores: Any,
    labels: Sequence[str],
    tokens: Sequence[str],
    path: Sequence[int],
    transitions: Any = None,
) -> Figure:
    """All tag sequences of a sentence as paths from left to right, and one of them marked.

    Args:
        scores: (T, L) emissions, written into the nodes.
        labels: L names.
        tokens: T words.
        path: T tags, the marked sequence.
        transitions: (L, L) from row to column; written at the edges of the path if given.

    Raises:
        ValueError: if the shapes do not fit.
    """
    values = array(scores)
    if values.shape != (len(tokens), len(labels)) or len(path) != len(tokens):
        raise ValueError(
            f"scores {values.shape} do not fit {len(tokens)} tokens, {len(labels)} labels and a "
            f"path of {len(path)}"
        )
    moves = None if transitions is None else array(transitions)
    wide, rise, label = 3.4, 1.7, 2.4
    canvas = Canvas(label + wide * len(tokens), rise * len(labels) + 2.3)

    def at(place: int, tag: int) -> Point:
        return label + wide * (place + 0.4), 1.5 + rise * (len(labels) - 1 - tag)

    half = 0.75
    for place in range(len(tokens) - 1):
        for a, b in itertools.product(range(len(labels)), repeat=2):
            bold = (a, b) == (path[place], path[place + 1])
            (x0, y0), (x1, y1) = at(place, a), at(place + 1, b)
            canvas.ax.add_patch(
                FancyArrowPatch(
                    (x0 + half, y0), (x1 - half, y1), arrowstyle="-|>",
                    mutation_scale=10 if bold else 5, color=ROUTE if bold else FAINT,
                    linewidth=2.0 if bold else 0.7, shrinkA=0, shrinkB=0, zorder=2 if bold else 1,
                    gid=f"{place}:{a}>{b}:{'path' if bold else 'other'}",
                )
            )  # fmt: skip
            if bold and moves is not None:
                canvas.text(
                    (x0 + x1) / 2, (y0 + y1) / 2, f"{moves[a, b]:+.1f}".replace("-", "−"), 9,
                    color=ROUTE, zorder=4,
                    bbox={"facecolor": SHEET, "edgecolor": "none", "pad": 1.0},
                )  # fmt: skip
    for place, tag in itertools.product(range(len(tokens)), range(len(labels))):
        chosen = path[place] == tag
        x, y = at(place, tag)
        canvas.box(
            x, y, f"{values[place, tag]:.1f}".replace("-", "−"), "key" if chosen else "plain",
            width=2 * half, height=0.9, size=10,
        )  # fmt: skip
    for tag, name in enumerate(labels):
        canvas.text(label - 0.1, at(0, tag)[1], name, 10.5, ha="right")
    for place, token in enumerate(tokens):
        canvas.text(at(place, 0)[0], 0.5, token, 10.5)
    canvas.text(label - 0.1, 0.5, "word", 9.5, ha="right", color=SOFT)
    return canvas.figure


def electra(
    tokens: Sequence[str] = ("returns", "the", "absolute", "value"),
    masked: Sequence[int] = (1, 2),
    drawn: Sequence[str] = ("the", "default"),
) -> Figure:
    """ELECTRA: a small generator fills the masks, and every place is asked whether it was changed.

    Args:
        tokens: the words as they were written.
        masked: places that are masked.
        drawn: what the generator puts there; a word that is right counts as not replaced.

    Raises:
        ValueError: if masked and drawn have different lengths.
    """
    if len(masked) != len(drawn):
        raise ValueError(f"{len(drawn)} words for {len(masked)} masked places")
    filled = list(tokens)
    for place, word in zip(masked, drawn, strict=True):
        filled[place] = word
    holed = ["[MASK]" if place in masked else token for place, token in enumerate(tokens)]
    said = ["replaced" if a != b else "original" for a, b in zip(tokens, filled, strict=True)]
    wide, gap, rise = 2.7, 3.9, 1.5
    tall = rise * len(tokens)
    canvas = Canvas(3 * wide + 2 * gap + 2.6, tall + 1.7)
    lefts = (1.5, wide + 2.3, 2 * wide + gap + 1.8, 3 * wide + 2 * gap + 1.0)
    columns = (
        ("written", tokens, "plain"), ("masked", holed, "query"),
        ("filled in", filled, "value"), ("answer", said, "output"),
    )  # fmt: skip
    for left, (title, words, kind) in zip(lefts, columns, strict=True):
        canvas.text(left + 0.0, tall + 1.0, title, 11)
        for place, word in enumerate(words):
            changed = (word != tokens[place] and kind != "output") or word == "replaced"
            canvas.box(
                left, tall - rise * (place + 0.5) + 0.3, word, "key" if changed else kind,
                width=wide - 0.2, height=1.0, size=9.5,
            )  # fmt: skip
            canvas.ax.patches[-1].set_gid(f"{title}:{place}:{word}")
    for index, (name, note) in enumerate((("generator", "small"), ("discriminator", "kept"))):
        x = (lefts[1 + index] + lefts[2 + index]) / 2
        canvas.box(
            x, tall / 2 + 0.3, f"{name}\n({note})", "weights", width=2.9, height=tall - 0.8,
            size=9.5,
        )  # fmt: skip
    canvas.text(
        lefts[2] - 1.2, 0.25,
        f"generator: {len(masked)} of {len(tokens)} places give a loss; discriminator: all "
        f"{len(tokens)}",
        9.5, color=SOFT,
    )  # fmt: skip
    return canvas.figure
