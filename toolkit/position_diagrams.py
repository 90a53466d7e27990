"""Pictures of the chapter on tokens and positions: diagrams on a Canvas, and frames of widgets.

The diagrams are matplotlib figures. The frames are small pieces of HTML, with a picture or an SVG
drawing inside, made for `toolkit.widgets.frames`: they move on a page without a kernel, are as wide
as the screen allows, and stand on a sheet of their own, so that they read the same on a light and
on a dark page.
"""

from __future__ import annotations

import base64
import html
import itertools
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from toolkit.diagrams import Box, Canvas
from toolkit.plots import INK, PALETTE, array

SIGNED = "RdBu_r"  # minus blue, plus red, nothing nearly white


# --------------------------------------------------------------------------- diagrams


def embedding_plus_position(words: Sequence[str], embeddings: Any, positions: Any) -> Figure:
    """One line a word: its embedding, times the root of the width, plus its position, their sum.

    Args:
        words: T tokens.
        embeddings: (T, D), as they stand in the table, not scaled.
        positions: (T, D).

    Raises:
        ValueError: if the shapes do not fit.
    """
    table, places = array(embeddings), array(positions)
    if table.shape != places.shape or len(table) != len(words):
        raise ValueError(
            f"{len(words)} words, embeddings {table.shape} and positions {places.shape} do not fit"
        )
    width = table.shape[1]
    scaled = table * math.sqrt(width)
    top = len(words) * 1.5
    canvas = Canvas(27, top + 2.6)
    columns = {4.9: table, 12.4: scaled, 18.4: places, 24.4: scaled + places}
    heads = {
        4.9: "embedding $E_w$",
        12.4: f"$E_w\\,\\sqrt{{{width}}}$",
        18.4: "code $\\mathrm{PE}_p$",
        24.4: "input $x_p$",
    }
    limit = max(float(np.abs(scaled + places).max()), float(np.abs(scaled).max()))
    for x, text in heads.items():
        canvas.text(x, top + 1.6, text, 10)
    for line, word in enumerate(words):
        y = top - 1.5 * line
        canvas.text(1.0, y, word, 10)
        for x, values in columns.items():
            _strip(canvas, x, y, 4.2, 0.8, values[line], limit)
        for x, sign in ((8.65, f"× $\\sqrt{{{width}}}$ ="), (15.4, "+"), (21.4, "=")):
            canvas.text(x, y, sign, 10)
        canvas.text(18.4, y - 0.72, f"p = {line}", 7.5)
    canvas.text(
        14.0, 0.35, f"each strip: {width} numbers; blue negative, red positive, one scale", 8.5
    )
    return canvas.figure


def merge_tree(word: str, merges: Sequence[tuple[int, int]]) -> Figure:
    """How byte-pair encoding builds the tokens of one word: bytes below, each merge above its pair.

    Args:
        word: encoded as UTF-8; at least one byte.
        merges: in the order in which they were learned.

    Raises:
        ValueError: if the word is empty.
    """
    if not word:
        raise ValueError("the word is empty; give at least one character")
    rank = {tuple(pair): number for number, pair in enumerate(merges)}
    pieces = [bytes([value]) for value in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    step = 1.75
    leaves = list(word.encode("utf-8"))
    # Each node: id, horizontal place, height, and the box once it is drawn.
    row = [(value, index * step + 1.2, 0) for index, value in enumerate(leaves)]
    planned: list[tuple[int, float, int, tuple[Any, ...]]] = [(*node, ()) for node in row]
    while True:
        pairs = [
            (rank[pair], place)
            for place, pair in enumerate(itertools.pairwise(node[0] for node in row))
            if pair in rank
        ]
        if not pairs:
            break
        number, place = min(pairs)
        left, right = row[place : place + 2]
        node = (256 + number, (left[1] + right[1]) / 2, max(left[2], right[2]) + 1)
        planned.append((*node, (left, right)))
        row[place : place + 2] = [node]
    height = max(node[2] for node in row)
    canvas = Canvas(len(leaves) * step + 0.8, height * 2.0 + 2.6)
    boxes: dict[tuple[int, float, int], Box] = {}
    for value, x, level, children in planned:
        last = (value, x, level) in row
        text = _visible(pieces[value])
        width = max(1.4, 0.36 * len(text) + 0.7)
        box = canvas.box(
            x, 1.4 + 2.0 * level, text, "output" if last else "plain", width=width, height=0.95
        )
        boxes[value, x, level] = box
        if children:
            canvas.text(x, 1.4 + 2.0 * level - 0.72, f"merge {value - 256}", 6.5, color="#5b6069")
            for child in children:
                start, end = boxes[child].side("top"), box.side("bottom")
                canvas.ax.plot(
                    [start[0], end[0]], [start[1], end[1] - 0.42], color=INK, linewidth=0.8
                )
    ids = ", ".join(str(node[0]) for node in row)
    canvas.text((len(leaves) * step + 0.8) / 2, 0.35, f"ids {ids}", 8.5)
    return canvas.figure


def _strip(
    canvas: Canvas, x: float, y: float, width: float, height: float, values: Any, limit: float
) -> None:
    """A row of coloured cells for a vector, centred at (x, y)."""
    canvas.ax.imshow(
        np.asarray(values)[None], cmap=SIGNED, vmin=-limit, vmax=limit, aspect="auto",
        interpolation="nearest",
        extent=(x - width / 2, x + width / 2, y - height / 2, y + height / 2),
    )  # fmt: skip
    canvas.ax.add_patch(
        Rectangle(
            (x - width / 2, y - height / 2), width, height, fill=False, edgecolor=INK, linewidth=0.8
        )
    )
    # imshow sets the limits to its own picture
    canvas.ax.set_xlim(0, canvas.ax.figure.get_figwidth() / 0.42)
    canvas.ax.set_ylim(0, canvas.ax.figure.get_figheight() / 0.42)
    canvas.ax.set_aspect("equal")


def _visible(piece: bytes) -> str:
    """A piece as it can be read: a space as a low box, bytes that are no text as hex."""
    try:
        return piece.decode("utf-8").replace(" ", "␣").replace("\n", "⏎")
    except UnicodeDecodeError:
        return " ".join(f"{byte:02x}" for byte in piece)


# --------------------------------------------------------------------------- frames of widgets


def table_frame(table: Any, caption: str, notes: Sequence[str] = ()) -> str:
    """A position table as a picture, one pixel an entry, for `widgets.frames`.

    Args:
        table: (positions, columns) of numbers in [-1, 1]; positions down, columns across.
        caption: above the picture, also its alternative text.
        notes: lines below it.
    """
    values = array(table)
    colours = plt.get_cmap(SIGNED)((np.clip(values, -1, 1) + 1) / 2)[..., :3]
    picture = base64.b64encode(_png((colours * 255).round().astype(np.uint8))).decode()
    lines = "".join(f"<div>{html.escape(note)}</div>" for note in notes)
    return (
        f"<div style='{_FRAME}'><div>{html.escape(caption)}</div>"
        f"<img alt='{html.escape(caption, quote=True)}' src='data:image/png;base64,{picture}' "
        "style='width:26em;max-width:100%;height:13em;object-fit:fill;image-rendering:pixelated;"
        "display:block;background:none;border-radius:0'>"
        f"{lines}</div>"
    )


def pair_frame(frequency: float, position: int, offset: int, length: int = 48) -> str:
    """One sine-cosine pair: its waves with p and p + delta marked, and the turn of its clock hand.

    Args:
        frequency: omega of the pair, in radians a position.
        position: p, where the first hand stands.
        offset: delta, how far the second one is ahead; may be negative.
        length: positions on the horizontal axis.
    """
    width, height, left = 300.0, 90.0, 8.0
    across = lambda p: left + (width - 2 * left) * p / length  # noqa: E731
    waves = ""
    for function, colour in ((math.sin, PALETTE[0]), (math.cos, PALETTE[1])):
        points = " ".join(
            f"{across(p / 2):.0f},{45 - 36 * function(frequency * p / 2):.0f}"
            for p in range(2 * length + 1)
        )
        waves += f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
    marks = ""
    for place, colour in ((position, PALETTE[2]), (position + offset, PALETTE[3])):
        marks += (
            f"<line x1='{across(place):.1f}' x2='{across(place):.1f}' y1='4' y2='86' "
            f"stroke='{colour}' stroke-width='2'/>"
        )
    hands = "<circle cx='345' cy='45' r='36' fill='none' stroke='#8a8f98'/>"
    for place, colour in ((position, PALETTE[2]), (position + offset, PALETTE[3])):
        angle = frequency * place  # sine up, cosine to the right
        hands += (
            f"<line x1='345' y1='45' x2='{345 + 34 * math.cos(angle):.1f}' "
            f"y2='{45 - 34 * math.sin(angle):.1f}' stroke='{colour}' stroke-width='2.5'/>"
        )
    turn = frequency * offset
    first, second = (
        f"({math.sin(frequency * p):+.2f}, {math.cos(frequency * p):+.2f})"
        for p in (position, position + offset)
    )
    matrix = (
        f"[[{math.cos(turn):+.2f}, {math.sin(turn):+.2f}], "
        f"[{-math.sin(turn):+.2f}, {math.cos(turn):+.2f}]]"
    )
    label = f"Pair of frequency {frequency:.4g}, positions {position} and {position + offset}"
    return (
        f"<div style='{_FRAME}'><svg viewBox='0 0 390 {height:.0f}' role='img' "
        f"aria-label='{label}' style='width:34em;max-width:100%;display:block'>"
        f"{waves}{marks}{hands}</svg>"
        f"<div>ω = {frequency:.4g}, wavelength {2 * math.pi / frequency:.4g}; the hand "
        f"turns by ωδ = {turn:.3g}</div>"
        f"<div>p = {position}: {first} · p + δ = {position + offset}: {second}</div>"
        f"<div>matrix {matrix}, the same for every p</div></div>"
    )


_FRAME = (
    "background:#fbfaf7;color:#22252b;padding:.5em .7em;margin:.3em 0;max-width:100%;"
    "font-size:12px;line-height:1.6;box-sizing:border-box;overflow-wrap:anywhere"
)


def _png(pixels: np.ndarray) -> bytes:
    """A PNG file of (rows, columns, 3) bytes; matplotlib's own carries some kilobytes of header."""
    rows, columns, _ = pixels.shape
    lines = b"".join(b"\0" + pixels[row].tobytes() for row in range(rows))

    def part(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    size = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", size)
        + part(b"IDAT", zlib.compress(lines, 9))
        + part(b"IEND", b"")
    )
