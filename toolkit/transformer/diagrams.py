"""Diagrams of the Transformer chapter, drawn from the model itself.

How many layers and heads there are, how wide they are, what they weigh and on which side of the sum
the norm stands is read from the model that is given, so a drawing says what the code does. Every
box and every arrow carries its name as `gid`: an arrow from a to b that plays the part r is called
`a>b:r`. What is drawn can thus be read back as a graph.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch

from toolkit.diagrams import FAINT, FILL, Canvas, Point, Sheet, millions, weigh
from toolkit.plots import INK, PALETTE

SKIP, MEMORY, PATH = PALETTE[0], PALETTE[1], PALETTE[1]


# --------------------------------------------------------------------------- what a model says


def _widths(layer: Any) -> tuple[int, int]:
    """D and F of a layer."""
    inner, outer = layer.feed_forward.w_1.weight.shape
    return outer, inner


def _norm_first(layer: Any) -> bool:
    orders = {bool(part.norm_first) for part in layer.sublayer}
    if len(orders) != 1:
        raise ValueError("the sub-layers of this layer have different norm orders")
    return orders.pop()


def _sublayers(layer: Any) -> list[tuple[str, str, str]]:
    """Name, text and colour of each sub-layer, from the first to the last."""
    width, inner = _widths(layer)
    decodes = hasattr(layer, "src_attn")

    def heads(attention: Any) -> str:
        count = attention.num_heads
        return f"{count} head{'s' if count > 1 else ''} of {width // count}"

    found = [
        (
            "self_attn",
            f"{'masked self-attention' if decodes else 'self-attention'}\n{heads(layer.self_attn)}",
            "weights",
        )
    ]
    if decodes:
        found.append(("src_attn", f"cross-attention\n{heads(layer.src_attn)}", "weights"))
    found.append(("feed_forward", f"feed-forward\n{width} → {inner} → {width}", "value"))
    if len(found) != len(layer.sublayer):
        raise ValueError(f"{len(found)} sub-layers, but {len(layer.sublayer)} connections")
    return found


# How high a sub-layer is with its sum and norm, post-norm and pre-norm
_HEIGHT = {False: 4.225, True: 4.2}


def _draw_layer(
    sheet: Sheet, layer: Any, x: float, y: float, last: str, *, prefix: str, skip: float
) -> tuple[str, float]:  # fmt: skip
    """Draw the sub-layers of one layer, upwards from height y.

    Args:
        last: the node whose output comes in.
        prefix: of the names of the nodes.
        skip: where, across, the line runs that goes around a sub-layer.

    Returns:
        The last node and its height.
    """
    pre = _norm_first(layer)
    width = 4.2
    for index, (kind, text, colour) in enumerate(_sublayers(layer)):
        sub, add, norm = (f"{prefix}{name}" for name in (kind, f"add{index}", f"norm{index}"))
        begin = (x, y + 0.3)
        if pre:
            sheet.node(norm, x, y + 1.05, "norm", "output", width=width, height=0.75)
            sheet.link(last, norm)
            feed, parting = norm, y + 1.7
        else:
            feed, parting = last, y + 0.65
        low = parting + 0.45  # below it the input of a self-attention divides in three
        sheet.node(sub, x, low + 0.6, text, colour, width=width)
        if kind == "self_attn":
            for dx, part in ((-0.3, "Q"), (0.0, "K"), (0.3, "V")):
                at = x + dx * width
                start, via = ("top", ()) if not dx else ((x, parting), ((at, parting),))
                sheet.link(feed, sub, part, start=start, via=via, end=(at, low))
        else:
            sheet.link(feed, sub, "Q" if kind == "src_attn" else "")
        sheet.plus(add, x, low + 1.75)
        sheet.link(sub, add)
        inwards = "left" if skip < x else "right"
        sheet.link(
            last, add, "skip", start=begin, via=((skip, begin[1]), (skip, low + 1.75)),
            end=inwards, color=SKIP,
        )  # fmt: skip
        sheet.dot(*begin, SKIP)
        last, y = add, low + 2.05
        if not pre:
            sheet.node(norm, x, y + 0.7, "norm", "output", width=width, height=0.75)
            sheet.link(add, norm)
            last, y = norm, y + 1.075
    return last, y


# --------------------------------------------------------------------------- the model


def architecture(model: Any) -> Figure:
    """The whole model: both inputs, both stacks with what is inside a layer, and the output.

    Args:
        model: an encoder-decoder with the parts `src_embed`, `tgt_embed`, `encoder`, `decoder` and
            `generator` of the chapter.
    """
    encoder, decoder = model.encoder, model.decoder
    width, _ = _widths(encoder.layers[0])
    pre = _norm_first(encoder.layers[0])
    low = 5.0
    top = low - 0.4 + 3 * _HEIGHT[pre] + (1.575 if pre else 0.0)
    sheet = Sheet(15.2, top + 4.1)
    left, right, bus = 4.5, 10.7, 7.6

    ends = {}
    for name, stack, table, x, outside, read in (
        ("encoder", encoder, model.src_embed, left, -1, "source ids\n(B, S)"),
        ("decoder", decoder, model.tgt_embed, right, 1, "target ids, shifted right\n(B, U)"),
    ):
        words, size = table.lut.weight.shape
        sheet.words(f"{name}.ids", x, 0.55, read, width=4.2, height=1.0)
        sheet.node(
            f"{name}.embed", x, 2.2, f"embedding × $\\sqrt{{{size}}}$\n{words} × {size}", "query"
        )
        sheet.plus(f"{name}.sum", x, 3.6)
        sheet.node(
            f"{name}.position", x + outside * 3.05, 3.6, "positions", "query", width=2.3, height=0.8
        )
        sheet.link(f"{name}.ids", f"{name}.embed")
        sheet.link(f"{name}.embed", f"{name}.sum")
        side = ("right", "left") if outside < 0 else ("left", "right")
        sheet.link(f"{name}.position", f"{name}.sum", start=side[0], end=side[1])
        last, y = _draw_layer(
            sheet, stack.layers[0], x, low - 0.4, f"{name}.sum", prefix=f"{name}.",
            skip=x + outside * 2.6,
        )  # fmt: skip
        frame = sorted((x - outside * 2.4, x + outside * 3.0))
        sheet.panel(frame[0], low - 0.45, frame[1], y + 0.3)
        count = len(stack.layers)
        sheet.text(x + outside * 3.6, (low + y) / 2, f"{count} ×", 13)
        if getattr(stack, "norm", None) is not None:
            sheet.node(f"{name}.norm", x, y + 1.2, "norm", "output", height=0.75)
            sheet.link(last, f"{name}.norm")
            last, y = f"{name}.norm", y + 1.575
        ends[name] = (last, y)

    last, y = ends["encoder"]
    sheet.node("memory", left, y + 1.3, f"memory\n(B, S, {width})", "key")
    sheet.link(last, "memory")
    _memory_arrows(sheet, "decoder.src_attn", bus)

    last, y = ends["decoder"]
    out, vocabulary = model.generator.proj.weight.shape[::-1]
    sheet.node(
        "linear", right, y + 1.4, f"linear, log-softmax\n{out} → {vocabulary}", "plain"
    )  # fmt: skip
    sheet.link(last, "linear")
    sheet.words("output", right, y + 3.2, f"log-probabilities\n(B, U, {vocabulary})", height=1.0)
    sheet.link("linear", "output")

    tables = {
        id(table)
        for table in (
            model.src_embed.lut.weight, model.tgt_embed.lut.weight, model.generator.proj.weight
        )
    }  # fmt: skip
    facts = [
        "pre-norm: norm inside the branch" if pre else "post-norm: norm after the sum",
        f"{millions(weigh(model))} parameters",
    ]  # fmt: skip
    if len(tables) == 1:
        facts.append("one matrix for embeddings and output")
    sheet.text(0.6, top + 3.9, "\n".join(facts), 10.5, ha="left", va="top", linespacing=1.6)
    return sheet.figure


def _memory_arrows(sheet: Sheet, target: str, bus: float) -> None:
    """Keys and values for one cross-attention, down the line at `bus` from the memory."""
    memory, box = sheet.nodes["memory"], sheet.nodes[target]
    edge = box.side("left")[0]
    for part, dy in (("K", 0.3), ("V", -0.3)):
        sheet.link(
            "memory", target, part, start="right", via=((bus, memory.y), (bus, box.y + dy)),
            end=(edge, box.y + dy), color=MEMORY,
        )  # fmt: skip
        sheet.text((bus + edge) / 2 - 0.1, box.y + dy + math.copysign(0.3, dy), part, 9.5)


def stacks(model: Any) -> Figure:
    """Both stacks, layer by layer: the memory goes to every layer of the decoder.

    Each layer carries the number of its own parameters.
    """
    encoder, decoder = model.encoder, model.decoder
    width, _ = _widths(encoder.layers[0])
    tallest = max(len(encoder.layers), len(decoder.layers))
    step, low, left, right, bus = 1.55, 3.1, 3.4, 11.2, 7.4
    final = getattr(encoder, "norm", None) is not None
    top = low + step * tallest
    sheet = Sheet(14.6, top + (2.4 if final else 1.2))
    for name, stack, x, read in (
        ("encoder", encoder, left, "source vectors"),
        ("decoder", decoder, right, "target vectors"),
    ):
        weight = millions(weigh(stack))
        sheet.text(x, 0.5, f"{name}: {weight} parameters", 10.5)
        last = f"{name}.input"
        sheet.words(last, x, 1.6, read, height=0.7)
        for index, layer in enumerate(stack.layers):
            at = f"{name}.{index}"
            sheet.node(
                at, x, low + step * index, f"layer {index + 1}   {millions(weigh(layer))}",
                "query" if name == "encoder" else "value", width=4.4, height=0.9,
            )  # fmt: skip
            sheet.link(last, at)
            last = at
        y = low + step * (len(stack.layers) - 1) + 0.45
        if getattr(stack, "norm", None) is not None:
            sheet.node(f"{name}.norm", x, y + 0.9, "norm", "output", width=4.4, height=0.7)
            sheet.link(last, f"{name}.norm")
            last, y = f"{name}.norm", y + 1.25
        if name == "encoder":
            sheet.node("memory", x, y + 1.1, f"memory  (B, S, {width})", "key", width=4.4)
            sheet.link(last, "memory")
        else:
            sheet.words("output", x, y + 1.3, f"to the output  (B, U, {width})", height=0.7)
            sheet.link(last, "output")
    memory = sheet.nodes["memory"]
    for index in range(len(decoder.layers)):
        box = sheet.nodes[f"decoder.{index}"]
        sheet.link(
            "memory", f"decoder.{index}", "KV", start="right",
            via=((bus, memory.y), (bus, box.y)), end="left", color=MEMORY,
        )  # fmt: skip
        sheet.text((bus + box.side("left")[0]) / 2 - 0.1, box.y + 0.3, "K, V", 9.5)
    return sheet.figure


# --------------------------------------------------------------------------- paths


def connectivity(tokens: int = 7, kernel: int = 3, causal: bool = True) -> Figure:
    """How the first token reaches the last: step by step, layer by layer, or at once.

    The recurrent network reads from the left. The convolution has as many layers as the first token
    needs. In self-attention every token sees every token. The length of the path is that of the
    shortest one in the picture.

    Args:
        tokens: length of the sequence.
        kernel: how many tokens a convolution sees.
        causal: whether these are a token and those before it, or as many before as after it.

    Raises:
        ValueError: for fewer than 2 tokens, a kernel narrower than 2, or an even one that ought to
            be centred.
    """
    if tokens < 2 or kernel < 2:
        raise ValueError("give at least 2 tokens and a kernel of at least 2")
    if not causal and kernel % 2 == 0:
        raise ValueError(f"a kernel of {kernel} has no middle")
    back, ahead = (kernel - 1, 0) if causal else (kernel // 2, kernel // 2)
    depth = math.ceil((tokens - 1) / back)
    places = range(tokens)
    first, last = (0, 0), (0, tokens - 1)
    panels = [
        ("recurrent", 1, [((0, t), (0, t + 1)) for t in places[:-1]], last),
        (
            f"{'causal ' if causal else ''}convolution, kernel {kernel}",
            depth + 1,
            [
                ((level, s), (level + 1, t))
                for level in range(depth)
                for t in places
                for s in range(max(t - back, 0), min(t + ahead, tokens - 1) + 1)
            ],
            (depth, tokens - 1),
        ),
        ("self-attention", 2, [((0, s), (1, t)) for s in places for t in places],
         (1, tokens - 1)),
    ]  # fmt: skip
    step = 12.2 / (tokens - 1)
    radius = min(0.33, step / 4)
    rises = [3.0 if levels == 2 else 1.75 for _, levels, _, _ in panels]
    heights = [
        (levels - 1) * rise + 2.7 for (_, levels, _, _), rise in zip(panels, rises, strict=True)
    ]
    canvas = Canvas(15.0, sum(heights) + 0.2)
    floor = sum(heights) + 0.2
    for (name, levels, edges, goal), rise, height in zip(panels, rises, heights, strict=True):
        floor -= height
        path = _shortest(edges, first, goal)
        steps = len(path) - 1
        on_path = set(itertools.pairwise(path))

        def at(node: tuple[int, int], floor: float = floor, rise: float = rise) -> Point:
            return 1.4 + node[1] * step, floor + 0.95 + node[0] * rise

        canvas.text(
            0.7, floor + height - 0.75,
            f"{name}: {steps} step{'s' if steps > 1 else ''} from $x_1$ to $x_{{{tokens}}}$", 11.5,
            ha="left",
        )  # fmt: skip
        for edge in sorted(edges, key=lambda edge: edge in on_path):
            (x0, y0), (x1, y1) = map(at, edge)
            length = math.dist((x0, y0), (x1, y1))
            dx, dy = (radius * (x1 - x0) / length, radius * (y1 - y0) / length)
            bold = edge in on_path
            canvas.ax.add_patch(
                FancyArrowPatch(
                    (x0 + dx, y0 + dy), (x1 - dx, y1 - dy), arrowstyle="-|>" if bold else "-",
                    mutation_scale=12, color=PATH if bold else FAINT,
                    linewidth=2.4 if bold else 0.8, shrinkA=0, shrinkB=0,
                    gid=f"{name}:{'path' if bold else 'edge'}",
                )
            )  # fmt: skip
        for node in itertools.product(range(levels), places):
            x, y = at(node)
            canvas.ax.add_patch(
                Circle(
                    (x, y), radius, edgecolor=PATH if node in path else INK,
                    facecolor=FILL["key"] if node in path else FILL["plain"],
                    linewidth=1.8 if node in path else 0.9, zorder=3,
                )
            )  # fmt: skip
            if not node[0]:
                canvas.text(x, y - radius - 0.3, f"$x_{{{node[1] + 1}}}$", 10.5)
    return canvas.figure


def _shortest(
    edges: Iterable[tuple[tuple[int, int], tuple[int, int]]],
    start: tuple[int, int],
    goal: tuple[int, int],
) -> list[tuple[int, int]]:
    """The nodes of a shortest path, found in breadth."""
    after: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for source, target in edges:
        after.setdefault(source, []).append(target)
    paths = [[start]]
    seen = {start}
    for path in paths:
        if path[-1] == goal:
            return path
        for node in sorted(after.get(path[-1], ()), reverse=True):
            if node not in seen:
                seen.add(node)
                paths.append([*path, node])
    raise ValueError("the goal cannot be reached")
