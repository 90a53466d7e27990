"""The map of a course: chapters below each other, their units, and what builds on what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from toolkit.diagrams import FILL, SOFT, Sheet
from toolkit.plots import PALETTE

MARGIN, WIDTH, GAP = 1.6, 3.15, 0.42  # of the chapters' arrows; of a unit; between units
HIGH, LANE = 2.0, 3.6  # of a unit; from chapter to chapter


@dataclass(frozen=True)
class Unit:
    """A box of the map: its name, lines below it, and the earlier units of its lane it needs."""

    name: str
    lines: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A lane of the map: its title, its units from left to right, and the chapters it needs."""

    title: str
    units: tuple[Unit, ...]
    needs: tuple[str, ...] = field(default=())


def course_map(chapters: Mapping[str, Chapter]) -> Figure:
    """Draw the chapters in their order.

    Solid arrows lead from a unit to those that come with its answers, dashed ones from a chapter
    to those that ask their reader to know it.
    """
    most = max(len(chapter.units) for chapter in chapters.values())
    sheet = Sheet(MARGIN + most * (WIDTH + GAP), LANE * len(chapters) + 0.1)
    middles = {name: LANE * (len(chapters) - n) - 0.9 - HIGH / 2 for n, name in enumerate(chapters)}
    for (name, chapter), kind in zip(chapters.items(), _kinds(len(chapters)), strict=True):
        _lane(sheet, name, chapter, middles[name], kind)
    _knowledge(sheet, chapters, middles)
    return sheet.figure


def _kinds(count: int) -> list[str]:
    """A fill for each lane."""
    kinds = list(FILL)
    return [kinds[n % len(kinds)] for n in range(count)]


def _lane(sheet: Sheet, name: str, chapter: Chapter, y: float, kind: str) -> None:
    """A chapter's title, its units, and the arrows between them."""
    sheet.text(MARGIN, y + HIGH / 2 + 0.4, chapter.title, 13, ha="left")
    for n, unit in enumerate(chapter.units):
        x = MARGIN + n * (WIDTH + GAP) + WIDTH / 2
        sheet.node(f"{name}/{unit.name}", x, y, "", kind, width=WIDTH, height=HIGH)
        sheet.text(x, y + 0.55, unit.name, 12)
        for k, line in enumerate(unit.lines):
            sheet.text(x, y - 0.05 - 0.58 * k, line, 11, color=SOFT)
    order = [unit.name for unit in chapter.units]
    depths: dict[str, float] = {}  # of the lines below the lane, one for each unit they leave
    for n, unit in enumerate(chapter.units):
        for needed in unit.needs:
            source, target = f"{name}/{needed}", f"{name}/{unit.name}"
            if order.index(needed) == n - 1:
                sheet.link(source, target, start="right", end="left")
                continue
            low = depths.setdefault(needed, 0.35 + 0.25 * len(depths))
            (x0, y0), (x1, y1) = (sheet.nodes[one].side("bottom") for one in (source, target))
            sheet.link(
                source, target, start=(x0, y0), end=(x1, y1), via=[(x0, y0 - low), (x1, y1 - low)]
            )


def _knowledge(sheet: Sheet, chapters: Mapping[str, Chapter], middles: Mapping[str, float]) -> None:
    """Dashed arrows along the left margin; the longer, the further out."""
    order = list(chapters)
    pairs: Iterable[tuple[str, str]] = (
        (before, name) for name, chapter in chapters.items() for before in chapter.needs
    )
    spans: list[tuple[int, str, str]] = sorted(
        (order.index(name) - order.index(before), before, name) for before, name in pairs
    )
    taken: list[tuple[float, float, int]] = []
    for _, before, name in spans:
        start, end = middles[before] - 0.45, middles[name] + 0.45
        track = 0
        while any(t == track and end < top and low < start for top, low, t in taken):
            track += 1
        taken.append((start, end, track))
        x = MARGIN - 0.6 - 0.5 * track
        sheet.link(
            f"{before}/{chapters[before].units[0].name}",
            f"{name}/{chapters[name].units[0].name}",
            start=(MARGIN, start), end=(MARGIN, end), via=[(x, start), (x, end)], color=PALETTE[1],
        )  # fmt: skip
        sheet.ax.patches[-1].set_linestyle((0, (4, 2)))
