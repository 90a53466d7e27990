"""Architecture diagrams drawn by code: boxes that carry their shapes, joined by arrows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from toolkit.plots import INK, PALETTE, SHEET

FILL = {
    "query": "#cfe3f5",
    "key": "#f9dcc4",
    "value": "#d2ead9",
    "weights": "#e6d9f0",
    "plain": "#eceae4",
    "output": "#f6eeb8",
}


PANEL = "#f1efe8"
FAINT = "#c9c5bb"
SOFT = "#5b6069"

Point = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """A placed box: centre and size in the diagram's units."""

    x: float
    y: float
    width: float
    height: float

    def side(self, where: str) -> tuple[float, float]:
        """The middle of the "left", "right", "top" or "bottom" edge."""
        dx, dy = {"left": (-1, 0), "right": (1, 0), "top": (0, 1), "bottom": (0, -1)}[where]
        return self.x + dx * self.width / 2, self.y + dy * self.height / 2


class Canvas:
    """A drawing surface of `width` by `height` units, one unit being about a centimetre."""

    def __init__(self, width: float, height: float, title: str = "") -> None:
        self.figure, self.ax = plt.subplots(figsize=(width * 0.42, height * 0.42))
        self.ax.set_xlim(0, width)
        self.ax.set_ylim(0, height)
        self.ax.set_aspect("equal")
        self.ax.axis("off")
        if title:
            self.ax.set_title(title, loc="left")
        self.boxes: list[Box] = []

    def box(
        self, x: float, y: float, text: str, kind: str = "plain", *, width: float = 2.6,
        height: float = 1.1, size: float = 9,
    ) -> Box:  # fmt: skip
        """A rounded box with its text, centred at (x, y)."""
        placed = Box(x, y, width, height)
        self.ax.add_patch(
            FancyBboxPatch(
                (x - width / 2 + 0.1, y - height / 2 + 0.1), width - 0.2, height - 0.2,
                boxstyle="round,pad=0.1", facecolor=FILL[kind], edgecolor=INK, linewidth=0.9,
            )
        )  # fmt: skip
        self.ax.text(x, y, text, ha="center", va="center", fontsize=size, linespacing=1.35)
        self.boxes.append(placed)
        return placed

    def matrix(
        self, x: float, y: float, rows: float, columns: float, name: str, shape: str, kind: str
    ) -> Box:
        """A matrix drawn to the given size, its name inside and its shape below."""
        self.ax.add_patch(
            Rectangle(
                (x - columns / 2, y - rows / 2), columns, rows, facecolor=FILL[kind],
                edgecolor=INK, linewidth=0.9,
            )
        )  # fmt: skip
        self.ax.text(x, y, name, ha="center", va="center", fontsize=11)
        self.ax.text(x, y - rows / 2 - 0.18, shape, ha="center", va="top", fontsize=8.5)
        placed = Box(x, y, columns, rows)
        self.boxes.append(placed)
        return placed

    def text(self, x: float, y: float, text: str, size: float = 9, **more: object) -> None:
        """Free text, centred unless `ha` or `va` say otherwise."""
        self.ax.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", **more})

    def arrow(
        self, start: tuple[float, float], end: tuple[float, float], *, text: str = "",
        weight: float = 1.0, color: str = INK, bend: float = 0.0,
    ) -> None:  # fmt: skip
        """An arrow; `weight` in [0, 1] sets its thickness, `bend` its curvature."""
        self.ax.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=9, color=color,
                linewidth=0.5 + 2.6 * weight if weight < 1 else 1.0, alpha=0.25 + 0.75 * weight,
                shrinkA=1, shrinkB=1, connectionstyle=f"arc3,rad={bend}",
            )
        )  # fmt: skip
        if text:
            self.text(
                (start[0] + end[0]) / 2, (start[1] + end[1]) / 2, text, 8,
                bbox={"facecolor": SHEET, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip


class Sheet(Canvas):
    """A canvas whose boxes have names and whose arrows are routed from box to box."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(width, height)
        self.nodes: dict[str, Box] = {}

    def node(
        self, name: str, x: float, y: float, text: str, kind: str = "plain", *,
        width: float = 4.2, height: float = 1.2, size: float = 10.5,
    ) -> Box:  # fmt: skip
        """A box under a name."""
        self.nodes[name] = self.box(x, y, text, kind, width=width, height=height, size=size)
        self.ax.patches[-1].set_gid(name)
        return self.nodes[name]

    def words(
        self, name: str, x: float, y: float, text: str, *, width: float = 3.0, height: float = 0.8,
        size: float = 10.5,
    ) -> Box:  # fmt: skip
        """A node without a frame: what goes in or comes out."""
        self.nodes[name] = Box(x, y, width, height)
        self.text(x, y, text, size, linespacing=1.3)
        return self.nodes[name]

    def plus(self, name: str, x: float, y: float, radius: float = 0.3) -> Box:
        """A sum."""
        self.ax.add_patch(Circle((x, y), radius, facecolor=SHEET, edgecolor=INK, linewidth=1.1))
        self.ax.patches[-1].set_gid(name)
        arm = 0.55 * radius
        for dx, dy in ((arm, 0), (0, arm)):
            self.ax.plot([x - dx, x + dx], [y - dy, y + dy], color=INK, linewidth=1.1)
        self.nodes[name] = Box(x, y, 2 * radius, 2 * radius)
        return self.nodes[name]

    def dot(self, x: float, y: float, color: str = INK) -> None:
        """Where a line divides."""
        self.ax.add_patch(Circle((x, y), 0.09, facecolor=color, edgecolor=color))

    def panel(
        self, left: float, bottom: float, right: float, top: float, color: Any = PANEL
    ) -> None:
        """A sheet behind what belongs together."""
        self.ax.add_patch(
            FancyBboxPatch(
                (left + 0.3, bottom + 0.3), right - left - 0.6, top - bottom - 0.6,
                boxstyle="round,pad=0.3", facecolor=color, edgecolor=FAINT, linewidth=0.9, zorder=0,
            )
        )  # fmt: skip

    def link(
        self, source: str, target: str, part: str = "", *, start: str | Point = "top",
        end: str | Point = "bottom", via: Sequence[Point] = (), color: str = INK,
    ) -> None:  # fmt: skip
        """An arrow from one node to another, around the corners `via`.

        `start` and `end` are sides of the nodes, or points on their edges; `start` may be any point
        on the line that leaves `source`.
        """
        first = self.nodes[source].side(start) if isinstance(start, str) else start
        last = self.nodes[target].side(end) if isinstance(end, str) else end
        self.ax.add_patch(
            FancyArrowPatch(
                path=_rounded([first, *via, last]), arrowstyle="-|>", mutation_scale=9, color=color,
                fill=True, linewidth=1.1, joinstyle="round", gid=f"{source}>{target}:{part}",
            )
        )  # fmt: skip


def _rounded(points: Sequence[Point], radius: float = 0.22) -> Path:
    """A line through the points, its corners rounded."""
    points = [point for point, _ in itertools.groupby(points)]
    vertices, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        near = []
        for other in (before, after):
            length = math.dist(corner, other)
            share = min(radius, length / 2) / length
            near.append(tuple(c + share * (o - c) for c, o in zip(corner, other, strict=True)))
        vertices += [near[0], corner, near[1]]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*vertices, points[-1]], [*codes, Path.LINETO])


def weigh(*modules: Any) -> int:
    """Parameters of the modules together, shared ones counted once."""
    found = {id(p): p.numel() for module in modules for p in module.parameters()}
    return sum(found.values())


def millions(count: int) -> str:
    """A number of parameters as one reads it."""
    for unit, size in (("M", 10**6), ("k", 10**3)):
        value = count / size
        if value >= 0.9995:  # 999 500 is 1 M, not 1000 k
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    return str(count)


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """A colour, with so much of it in white."""
    red, green, blue = (share * part + 1 - share for part in to_rgb(colour))
    return red, green, blue


def heads_and_mixing(heads: int = 8, tokens: int = 10, d_model: int = 512) -> Figure:
    """z_0 ... z_{h-1}, their concatenation, W^O and the result, with shapes.

    Raises:
        ValueError: if the width is not a multiple of the number of heads.
    """
    if d_model % heads:
        raise ValueError(f"width {d_model} is not a multiple of {heads} heads")
    head = d_model // heads
    canvas = Canvas(18.2, 11.6)
    step = 10.4 / heads
    source = canvas.box(1.55, 5.8, f"$X$\n({tokens}, {d_model})", width=2.9, height=1.6)
    join = canvas.box(
        9.6, 5.8, f"concatenate\n({tokens}, {d_model})", "weights", width=2.9, height=10.2
    )
    for index in range(heads):
        y = 5.8 + (heads - 1 - 2 * index) * step / 2
        box = canvas.box(
            5.6, y, f"$z_{{{index}}}$  ({tokens}, {head})", "value", width=3.4,
            height=min(1.1, step * 0.86), size=8.5,
        )  # fmt: skip
        canvas.arrow(source.side("right"), box.side("left"))
        canvas.arrow(box.side("right"), (join.side("left")[0], y))
    mix = canvas.box(13.2, 5.8, f"$W^O$\n({d_model}, {d_model})", "plain", width=2.8, height=1.6)
    out = canvas.box(16.65, 5.8, f"output\n({tokens}, {d_model})", "output", width=2.7, height=1.6)
    canvas.arrow(join.side("right"), mix.side("left"))
    canvas.arrow(mix.side("right"), out.side("left"))
    return canvas.figure


def decoder_contexts(weights: object, source: list[str], target: list[str]) -> Figure:
    """The decoder with one context C for all steps, and with its own context C_i at each step.

    Args:
        weights: (len(target), len(source)) attention weights; arrows are as thick as these.
        source, target: the words.
    """
    from toolkit.plots import array

    alpha = array(weights)
    if alpha.shape != (len(target), len(source)):
        raise ValueError(f"weights have shape {alpha.shape}, not ({len(target)}, {len(source)})")
    step = 2.9
    panel = step * (max(alpha.shape) - 1) + 2.6
    canvas = Canvas(2 * panel + 0.6, 12.4)
    for side, name in enumerate(("one context $c$ for every step", "a context $c_i$ per step")):
        left = side * (panel + 0.6)
        canvas.text(left + panel / 2, 12.0, name, 10.5)
        first = left + panel / 2 - step * (len(source) - 1) / 2
        notes = []
        for j, word in enumerate(source):
            x = first + step * j
            canvas.text(x, 0.5, word, 9)
            notes.append(
                canvas.box(x, 2.2, f"$h_{j + 1}$\n[→ ; ←]", "key", width=1.8, height=1.3, size=8.5)
            )
            canvas.arrow((x, 0.8), notes[-1].side("bottom"))
        for a, b in itertools.pairwise(notes):
            (x0, y), (x1, _) = a.side("right"), b.side("left")
            canvas.arrow((x0, y + 0.3), (x1, y + 0.3))
            canvas.arrow((x1, y - 0.3), (x0, y - 0.3))
        first = left + panel / 2 - step * (len(target) - 1) / 2
        states, contexts = [], []
        for i, word in enumerate(target):
            x = first + step * i
            states.append(canvas.box(x, 8.9, f"$s_{i + 1}$", "query", width=1.8))
            canvas.arrow(states[-1].side("top"), (x, 10.5))
            canvas.text(x, 10.9, word, 9)
            if side:
                contexts.append(canvas.box(x, 6.3, f"$c_{i + 1}$", "output", width=1.8))
        for a, b in itertools.pairwise(states):
            canvas.arrow(a.side("right"), b.side("left"))
        if side:
            for i, context in enumerate(contexts):
                canvas.arrow(context.side("top"), states[i].side("bottom"))
                for j, note in enumerate(notes):
                    share = float(alpha[i, j])
                    canvas.arrow(
                        note.side("top"), context.side("bottom"), weight=min(share, 0.99),
                        color=PALETTE[i % len(PALETTE)],
                    )  # fmt: skip
        else:
            single = canvas.box(left + panel / 2, 6.3, "$c$", "output", width=1.8)
            canvas.arrow(notes[-1].side("top"), single.side("bottom"))
            for state in states:
                canvas.arrow(single.side("top"), state.side("bottom"))
    return canvas.figure


def texts_outside(figure: Figure) -> list[str]:
    """Texts that reach beyond the drawing area: none in a well laid out diagram."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    escaped = []
    for ax in figure.axes:
        frame = _drawing_area(ax)
        for text in ax.texts:
            extent = text.get_window_extent(renderer)
            if (
                extent.x0 < frame.x0 - 1
                or extent.x1 > frame.x1 + 1
                or extent.y0 < frame.y0 - 1
                or extent.y1 > frame.y1 + 1
            ):
                escaped.append(text.get_text())
    return escaped


def _drawing_area(ax: Axes):
    from matplotlib.transforms import Bbox

    (x0, x1), (y0, y1) = ax.get_xlim(), ax.get_ylim()
    return Bbox(ax.transData.transform([(x0, y0), (x1, y1)]))


def through_layers(
    tokens: Sequence[tuple[str, int]], bold: int, first: str, layers: Sequence[str], shape: str, *,
    height: float, narrower: float, size: float,
) -> tuple[Sheet, list[float], float]:  # fmt: skip
    """A sheet with tokens, above them the box of the input and one for each layer.

    Args:
        tokens: at each position, the token and its id.
        bold: the position that is written in bold.
        first: what the box of the input says.
        layers: what the boxes of the layers say, from below; they are named "layer 0", ….
        shape: of what the input hands on.
        height: of the sheet.
        narrower: how much narrower than the input a layer is.
        size: of a layer's text.

    Returns:
        The sheet, the middle of each token, and where the middle of one more layer would be.
    """
    wide, left = 1.36, 0.1
    across = [left + wide * (t + 0.5) for t in range(len(tokens))]
    middle, full = left + wide * len(tokens) / 2, wide * len(tokens) - 0.2
    sheet = Sheet(wide * len(tokens) + 0.2, height)
    for t, (token, number) in enumerate(tokens):
        sheet.text(across[t], 0.95, token, 10.5, weight="bold" if t == bold else "normal")
        sheet.text(across[t], 0.3, str(number), 10.5, color=SOFT)
    sheet.node("input", middle, 2.6, first, "query", width=full, height=1.1, size=13)
    for x in across:
        sheet.arrow((x, 1.3), (x, 2.05))
    below, y = "input", 4.75
    sheet.panel(left - 0.1, y - 0.95, wide * len(tokens) + 0.2, y + 1.5 * (len(layers) - 1) + 0.95)
    for layer, text in enumerate(layers):
        name = f"layer {layer}"
        sheet.node(name, middle, y, text, "weights", width=full - narrower, height=1.0, size=size)
        sheet.link(below, name)
        if layer == 0:
            sheet.text(middle + 0.3, 3.45, shape, 12, ha="left")
        below, y = name, y + 1.5
    return sheet, across, y
