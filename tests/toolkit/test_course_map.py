"""The map of a course: every unit is there, and arrows lead where they should."""

from __future__ import annotations

from matplotlib.figure import Figure

from tests.toolkit.drawings import Drawings, words
from toolkit.course_map import Chapter, Unit, course_map

SMALL = {
    "one": Chapter("First", (Unit("a", ("2 h", "week 1")), Unit("b", needs=("a",)))),
    "two": Chapter(
        "Second",
        (Unit("a"), Unit("b", needs=("a",)), Unit("c", needs=("a",)), Unit("d", needs=("b",))),
        needs=("one",),
    ),
    "three": Chapter("Third", (Unit("self_attention", ("12.5 h, 31 p.",)),), needs=("one", "two")),
}
DRAWINGS = {"map": lambda: course_map(SMALL)}


def arrows(figure: Figure) -> set[str]:
    return {patch.get_gid() for patch in figure.axes[0].patches if ">" in (patch.get_gid() or "")}


class TestDrawings(Drawings):
    drawings = DRAWINGS


def test_units_titles_and_lines_are_there() -> None:
    shown = words(course_map(SMALL))
    assert {"First", "Second", "Third", "2 h", "week 1", "12.5 h, 31 p."} <= set(shown)
    assert shown.count("a") == 2


def test_an_arrow_leads_from_what_is_needed() -> None:
    assert arrows(course_map(SMALL)) == {
        "one/a>one/b:", "two/a>two/b:", "two/a>two/c:", "two/b>two/d:",
        "one/a>two/a:", "one/a>three/self_attention:", "two/a>three/self_attention:",
    }  # fmt: skip


def test_lines_below_a_lane_are_at_their_own_depth() -> None:
    figure = course_map(SMALL)
    figure.canvas.draw()
    lowest = {
        patch.get_gid(): patch.get_window_extent().y0
        for patch in figure.axes[0].patches
        if patch.get_gid()
    }
    assert lowest["two/a>two/c:"] > lowest["two/b>two/d:"] + 2
