"""The picture at a unit's top: each exercise a box, with arrows from what it uses.

An SVG in an `img` of its own cell: JupyterLab shows no attachment that is an SVG. Everything is
placed by whole numbers and fractions of them, so that the same exercises give the same bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from itertools import pairwise

from autograder.units.assignment import Exercise

WIDTH = 700
MARGIN = 10
BOX, HEIGHT = 156, 56
GAP, LANE = 16, 12  # between boxes; beside an arrow that passes them
LEVEL = 44  # from one row to the next
LETTERS = 17  # of a name in one line
SWEEPS = 12
INK, PALE, PAPER = "#1f2937", "#6b7280", "#ffffff"
EXERCISE, GIVEN, EDGE = "#e8f0fb", "#f6f6f4", "#3b6ea5"
NAMES = "ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace"
WORDS = "system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"


@dataclass
class _Node:
    """A box, or a place where an arrow passes a row."""

    key: str
    exercise: Exercise | None = None
    number: int = 0
    passes: bool = False
    row: int = 0
    centre: Fraction = Fraction(0)
    above: list[_Node] = field(default_factory=list)
    below: list[_Node] = field(default_factory=list)

    @property
    def half(self) -> Fraction:
        """Half of the width."""
        return Fraction(0 if self.passes else BOX, 2)


def markdown(exercises: Sequence[Exercise], uses: Mapping[str, Sequence[str]]) -> str:
    """The picture as a cell of markdown.

    Args:
        exercises: those of the unit.
        uses: what each exercise and each given part uses, by its name.
    """
    data = base64.b64encode(svg(exercises, uses).encode()).decode()
    words = escape(description(exercises, uses))
    return f'<img alt="{words}" src="data:image/svg+xml;base64,{data}">'


def description(exercises: Sequence[Exercise], uses: Mapping[str, Sequence[str]]) -> str:
    """What the picture shows, in words."""
    said = []
    for node in _nodes(exercises, uses):
        if node.above:
            *most, last = [part.key for part in node.above]
            listed = f"{', '.join(most)} and {last}" if most else last
            said.append(f"{node.key} uses {listed}")
    return f"The parts of this unit. {'; '.join(said) or 'Each stands by itself'}."


def svg(exercises: Sequence[Exercise], uses: Mapping[str, Sequence[str]]) -> str:
    """The picture: boxes in rows, each below what it uses."""
    for most in (4, 3, 2):  # boxes in a row
        rows = _rows(_nodes(exercises, uses), most)
        if all(map(_fits, rows)):
            break
    _order(rows)
    _place(rows)
    height = 2 * MARGIN + len(rows) * HEIGHT + (len(rows) - 1) * LEVEL
    boxes = [node for row in rows for node in row if not node.passes]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="{EDGE}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
        f'<g fill="none" stroke="{EDGE}" stroke-width="1.5">',
        *(_arrow(start, first) for start in boxes for first in start.below),
        "</g>",
        *map(_box, boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


# Which box stands in which row.


def _nodes(exercises: Sequence[Exercise], uses: Mapping[str, Sequence[str]]) -> list[_Node]:
    """The boxes, linked to what they use, each in a row below that.

    Of the given parts those that an exercise uses, itself or in another given part.
    """
    boxes = {
        exercise.name: _Node(exercise.name, exercise, number)
        for number, exercise in enumerate(exercises, 1)
    }
    waiting = list(boxes)
    while waiting:
        user = boxes[waiting.pop(0)]
        for name in uses.get(user.key, ()):
            if name not in boxes:
                boxes[name] = _Node(name)
                waiting.append(name)
            boxes[name].below.append(user)
            user.above.append(boxes[name])
    nodes = list(boxes.values())
    for _ in nodes:
        for node in nodes:
            node.row = max((part.row + 1 for part in node.above), default=0)
    for _ in nodes:  # As near as can be to what uses it.
        for node in nodes:
            if node.below:
                node.row = min(user.row for user in node.below) - 1
    return nodes


def _rows(nodes: list[_Node], most: int) -> list[list[_Node]]:
    """Rows of at most `most` boxes, with the places where arrows pass; who is alone comes last."""
    linked = [node for node in nodes if node.above or node.below]
    alone = [node for node in nodes if not (node.above or node.below)]
    rows: list[list[_Node]] = []
    for level in sorted({node.row for node in linked}):
        here = [node for node in linked if node.row == level]
        # Who uses something of the row above stands in the upper of two rows.
        here.sort(key=lambda node: (not node.above, node.number or 1000))
        rows += _shared_out(here, most)
    for number, row in enumerate(rows):
        for node in row:
            node.row = number
    for node in linked:
        for user in list(node.below):
            _lead(node, user, rows)
    if alone:
        rows += _shared_out(alone, most)
    for number, row in enumerate(rows):
        for node in row:
            node.row = number
    return rows


def _shared_out(nodes: list[_Node], most: int) -> list[list[_Node]]:
    """Nodes in as few rows as they need, about as many in each."""
    size = -(-len(nodes) // -(-len(nodes) // most))
    return [nodes[start : start + size] for start in range(0, len(nodes), size)]


def _lead(node: _Node, user: _Node, rows: list[list[_Node]]) -> None:
    """Lead an arrow through the rows between two boxes."""
    last = node
    for row in range(node.row + 1, user.row):
        place = _Node(f"{node.key} {user.key}", passes=True, row=row)
        rows[row].append(place)
        last.below[last.below.index(user)] = place
        place.above, place.below = [last], [user]
        last = place
    if last is not node:
        user.above[user.above.index(node)] = last


def _fits(row: list[_Node]) -> bool:
    """Whether there is room for a row."""
    return _offsets(row)[-1] + row[0].half + row[-1].half <= WIDTH - 2 * MARGIN


def _offsets(row: list[_Node]) -> list[Fraction]:
    """How far the centres of a row's nodes are from the first one at least."""
    offsets = [Fraction(0)]
    for left, right in pairwise(row):
        gap = LANE if left.passes or right.passes else GAP
        offsets.append(offsets[-1] + left.half + gap + right.half)
    return offsets


# Where in its row.


def _order(rows: list[list[_Node]]) -> None:
    """Order each row such that few arrows cross."""
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            places = {id(node): place for other in rows for place, node in enumerate(other)}

            def wanted(node: _Node, down: bool = down, places: dict[int, int] = places) -> Fraction:
                linked = node.above if down else node.below
                if not linked:
                    return Fraction(places[id(node)])
                return Fraction(sum(places[id(one)] for one in linked), len(linked))

            row.sort(key=wanted)
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    for row, found in zip(rows, best, strict=True):
        row[:] = found


def _crossings(rows: list[list[_Node]]) -> int:
    """How often two arrows cross between one row and the next."""
    count = 0
    for upper, lower in pairwise(rows):
        places = {id(node): place for place, node in enumerate(lower)}
        ends = [(x, places[id(user)]) for x, node in enumerate(upper) for user in node.below]
        count += sum((a - c) * (b - d) < 0 for i, (a, b) in enumerate(ends) for c, d in ends[:i])
    return count


def _place(rows: list[list[_Node]]) -> None:
    """Give each node its centre: near those that it is linked to, without touching another."""
    for row in rows:
        _spread(row, [Fraction(WIDTH, 2)] * len(row))
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 else rows[::-1]:
            wanted = []
            for node in row:
                linked = node.above + node.below
                total = sum((one.centre for one in linked), Fraction(0))
                wanted.append(total / len(linked) if linked else node.centre)
            _spread(row, wanted)
    linked = [node for row in rows for node in row if node.above or node.below]
    if linked:  # The whole of it in the middle.
        left = min(node.centre - node.half for node in linked)
        right = max(node.centre + node.half for node in linked)
        for node in linked:
            node.centre += (WIDTH - left - right) / 2
    for row in rows:
        for node in row:
            node.centre = Fraction(round(node.centre))


def _spread(row: list[_Node], wanted: list[Fraction]) -> None:
    """Place a row's nodes as near as can be to where they are `wanted`, in their order.

    That is a regression with an order to keep: neighbours that would overlap are moved together.
    """
    offsets = _offsets(row)
    groups: list[tuple[Fraction, int]] = []  # mean and size
    for place, offset in zip(wanted, offsets, strict=True):
        groups.append((place - offset, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (one, few), (other, more) = groups.pop(-2), groups.pop()
            groups.append(((one * few + other * more) / (few + more), few + more))
    low = MARGIN + row[0].half
    high = WIDTH - MARGIN - row[-1].half - offsets[-1]
    places = [mean for mean, size in groups for _ in range(size)]
    for node, place, offset in zip(row, places, offsets, strict=True):
        node.centre = max(low, min(place, high)) + offset


# What it looks like.


def _arrow(start: _Node, first: _Node) -> str:
    """An arrow from a box, through the places where it passes rows, to the box that uses it."""
    x, y = _port(start, first, start.below), _top(start) + HEIGHT
    path = [f"M{x} {y}"]
    node, last = first, start
    while True:
        end = _top(node)
        to = _port(node, last, node.above)
        bend = (end - y) // 2
        path.append(f"C{x} {y + bend} {to} {end - bend} {to} {end}")
        if not node.passes:
            return f'<path marker-end="url(#tip)" d="{" ".join(path)}"/>'
        x, y = to, end + HEIGHT
        path.append(f"V{y}")
        last, node = node, node.below[0]


def _port(node: _Node, other: _Node, others: list[_Node]) -> int:
    """Where at its edge a node is left or met by the arrow from or to `other`."""
    if node.passes:
        return int(node.centre)
    ordered = sorted(others, key=lambda one: one.centre)
    step = Fraction(BOX - 30, max(len(ordered), 3))
    place = next(place for place, one in enumerate(ordered) if one is other)
    return round(node.centre + (place - Fraction(len(ordered) - 1, 2)) * step)


def _top(node: _Node) -> int:
    return MARGIN + node.row * (HEIGHT + LEVEL)


def _box(node: _Node) -> str:
    left, top = int(node.centre - node.half), _top(node)
    given = node.exercise is None
    look = f'fill="{GIVEN}" stroke="{PALE}" stroke-dasharray="5 4"'
    if not given:
        look = f'fill="{EXERCISE}" stroke="{EDGE}"'
    parts = [f'<rect x="{left}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="6" {look}/>']
    begin = left + (10 if given else 30)
    if not given:
        parts.append(
            f'<text x="{left + 15}" y="{top + 34}" text-anchor="middle" font-family="{WORDS}" '
            f'font-size="16" font-weight="700" fill="{EDGE}">{node.number}</text>'
        )
    lines = _lines(node.key, LETTERS + 2 * given)
    small = "given"
    if node.exercise is not None:
        points = node.exercise.points
        small = f"{points:g} point{'s' * (points != 1)}"
    y = top + (22 if len(lines) == 1 else 17)
    for line in lines:
        parts.append(
            f'<text x="{begin}" y="{y}" font-family="{NAMES}" font-size="11.5" '
            f'fill="{INK}">{escape(line)}</text>'
        )
        y += 14
    parts.append(
        f'<text x="{begin}" y="{y + 3}" font-family="{WORDS}" font-size="11" '
        f'fill="{PALE}">{small}</text>'
    )
    return "".join(parts)


def _lines(name: str, most: int) -> list[str]:
    """A name in one line, or in two that are about as long, cut between words."""
    if len(name) <= most:
        return [name]
    cuts = [match.end() for match in re.finditer(r"_+|[a-z0-9](?=[A-Z])", name)]
    cut = min(cuts or [len(name) // 2], key=lambda place: max(place, len(name) - place))
    return [name[:cut], name[cut:]]
