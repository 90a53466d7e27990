"""Where BERT's parameters are, number by number and to scale, and what length costs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import nn

from toolkit import plots
from toolkit.diagrams import millions

KINDS = ("embeddings", "attention", "feed-forward", "pooler")
COLOURS = dict(zip(KINDS, plots.PALETTE, strict=False))
# Of the page's tiny model: V = 10, D = 4, N = 1, F = 8, 6 positions, 2 segments
TINY = {"vocab_size": 10, "d_model": 4, "num_layers": 1, "d_ff": 8, "max_length": 6}
# kind: name, rows, columns of each of its matrices and vectors
SHAPES = {
    "embeddings": (("token", 10, 4), ("position", 6, 4), ("segment", 2, 4), ("norm", 2, 4)),
    "attention": (("q_proj", 5, 4), ("k_proj", 5, 4), ("v_proj", 5, 4), ("out_proj", 5, 4),
                  ("norm", 2, 4)),
    "feed-forward": (("w_1", 5, 8), ("w_2", 9, 4), ("norm", 2, 4)),
    "pooler": (("pooler", 5, 4),),
}  # fmt: skip


def by_part(
    vocab_size: int = 30_522, d_model: int = 768, num_layers: int = 12, d_ff: int | None = None,
    max_length: int = 512, type_vocab_size: int = 2,
) -> dict[str, int]:  # fmt: skip
    """Parameters of a BERT by part, each norm with the part that it follows.

    Args:
        d_ff: 4 d_model if not given.
    """
    width, inner = d_model, 4 * d_model if d_ff is None else d_ff
    norm, square = 2 * width, width * width + width
    return {
        "embeddings": (vocab_size + max_length + type_vocab_size) * width + norm,
        "attention": num_layers * (4 * square + norm),
        "feed-forward": num_layers * (2 * width * inner + inner + width + norm),
        "pooler": square,
    }


# --------------------------------------------------------------------------- figures


def every_number() -> Figure:
    """The tiny model with a small square for each of its parameters, a bias as the last row."""
    figure, ax = plt.subplots(figsize=(6.2, 4.6))
    rows = (("embeddings",), ("attention",), ("feed-forward", "pooler"))
    y = 0.0
    for row in rows:
        x = 0.0
        tall = max(height for kind in row for _, height, _ in SHAPES[kind])
        for kind in row:
            ax.text(x, y + 0.55, f"{kind}: {_numbers(kind)}", fontsize=11.5, color=COLOURS[kind],
                    fontweight="bold")  # fmt: skip
            for name, height, width in SHAPES[kind]:
                cells = [
                    Rectangle((x + column + 0.06, y - line - 0.94), 0.88, 0.88)
                    for line in range(height) for column in range(width)
                ]  # fmt: skip
                ax.add_collection(
                    PatchCollection(cells, facecolor=COLOURS[kind], edgecolor="none", gid=name)
                )
                ax.text(x + width / 2, y - height - 0.3, name, fontsize=10.5, ha="center", va="top")
                x += width + 1.6
            x += 1.2
        y -= tall + 3.9
    ax.set(xlim=(-0.2, 27.5), ylim=(y + 1.6, 2.0), aspect="equal")
    ax.axis("off")
    return figure


def _numbers(kind: str) -> int:
    return sum(height * width for _, height, width in SHAPES[kind])


def to_scale(models: Mapping[str, Mapping[str, int]]) -> Figure:
    """Models as squares D x D, all to one scale: a column a layer, then the embeddings.

    Args:
        models: name -> vocab_size, d_model, num_layers and max_length; the inner width is 4 D.
    """
    unit = max(sizes["d_model"] for sizes in models.values())
    figure, ax = plt.subplots(figsize=(5.4, 3.6))
    left, top = 0.0, 12.0
    for name, sizes in models.items():
        side = sizes["d_model"] / unit
        right = _draw(ax, sizes, left, side)
        total = millions(sum(by_part(**sizes).values()))
        ax.text((left + right) / 2, 12 * side + 0.3, f"{name}\n{total}", ha="center", va="bottom",
                fontsize=11)  # fmt: skip
        left = right + max(1.4, 2.2 - (right - left) / 2)
    for x, kind in zip((0.0, 13.5, 24.5, 39.0), KINDS, strict=True):
        ax.add_patch(Rectangle((x, -2.3), 0.9, 0.9, facecolor=COLOURS[kind], edgecolor="none"))
        ax.text(x + 1.3, -1.85, kind, va="center", fontsize=10.5)
    ax.set(xlim=(-1.4, left - 0.6), ylim=(-2.8, top + 2.6), aspect="equal")
    ax.axis("off")
    return figure


def _draw(ax: Axes, sizes: Mapping[str, int], left: float, side: float) -> float:
    """One model from x = left on; returns where it ends."""
    x = left
    for _ in range(sizes["num_layers"]):
        for level in range(12):
            kind = "attention" if level < 4 else "feed-forward"
            _square(ax, x, level * side, side, side, kind)
        x += side
    x += 0.5 * side
    rest = (sizes["vocab_size"] + sizes["max_length"] + 2) / sizes["d_model"]
    while rest > 1e-9:
        for level in range(12):
            share = min(1.0, rest)
            if share > 1e-9:
                _square(ax, x, level * side, side, side * share, "embeddings")
            rest -= share
        x += side
    x += 0.5 * side
    _square(ax, x, 0.0, side, side, "pooler")
    return x + side


def _square(ax: Axes, x: float, y: float, wide: float, high: float, kind: str) -> None:
    ax.add_patch(
        Rectangle((x, y), wide, high, facecolor=COLOURS[kind], edgecolor=plots.SHEET,
                  linewidth=0.5 if wide > 0.3 else 0.15)
    )  # fmt: skip


def shares(vocab_size: int, num_layers: int, d_model: int) -> str:
    """Number and share of each part as an HTML table with bars."""
    parts = by_part(vocab_size, d_model, num_layers)
    total = sum(parts.values())
    rows = "".join(
        f"<tr><th scope=row style='text-align:left'>{kind}</th><td>{millions(count)}</td>"
        f"<td>{count / total:.0%}</td><td style='width:9em;text-align:left'>"
        f"<span style='display:inline-block;height:.8em;width:{max(0.1, 9 * count / total):.1f}em;"
        f"background:{COLOURS[kind]}'></span></td></tr>"
        for kind, count in parts.items()
    )
    return (
        "<style>table.shares{width:auto!important;margin:.3em 0;border-collapse:collapse}"
        "table.shares :is(td,th){border:0!important;padding:.15em .6em;text-align:right;"
        "background:none!important;color:inherit;font-weight:normal}</style>"
        f"<table class=shares>{rows}</table><p>together <b>{millions(total)}</b></p>"
    )


# --------------------------------------------------------------------------- length


def seconds(model: nn.Module, lengths: Sequence[int], repeats: int = 3) -> list[float]:
    """Processor time of one forward pass at each length, the least of several."""
    found = []
    with torch.no_grad():
        for length in lengths:
            ids = torch.randint(5, 100, (1, length))
            times = []
            for _ in range(repeats):
                begin = time.process_time()
                model(ids)
                times.append(time.process_time() - begin)
            found.append(min(times))
    return found


def exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """p of values ~ length ** p between the last two lengths."""
    return math.log(values[-1] / values[-2]) / math.log(lengths[-1] / lengths[-2])


def by_length(lengths: Sequence[int], times: Sequence[float], work: Sequence[int]) -> Figure:
    """Time and operations of one pass as multiples of the shortest, beside a straight line."""
    figure, ax = plt.subplots(figsize=(5.4, 3.2))
    linear = [n / lengths[0] for n in lengths]
    for values, label, line, colour in (
        ([t / times[0] for t in times], "time, measured", "o-", plots.PALETTE[0]),
        ([w / work[0] for w in work], "operations, counted", "s--", plots.PALETTE[1]),
        (linear, "if it grew with the length", ":", plots.PALETTE[5]),
    ):
        ax.plot(lengths, values, line, label=label, color=colour)
    ax.set(xlabel="tokens", ylabel=f"times the pass of {lengths[0]}", xscale="log", yscale="log")
    ax.set_xticks(lengths, [str(n) for n in lengths])
    ticks = [1, 3, 10, 30]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.minorticks_off()
    ax.legend(fontsize=10.5)
    return figure
