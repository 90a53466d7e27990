"""Hours, pages and weeks of units, and what builds on what."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.units import workload
from autograder.units.assignment import load
from toolkit.book import contents

CONTENTS = contents()
LOADS = workload.workloads(CONTENTS)
with (paths.BOOK / "paths.csv").open(encoding="utf-8", newline="") as stream:
    ROWS = list(csv.DictReader(stream))
PATHS = list(dict.fromkeys(row["path"] for row in ROWS))


def row(**more: str) -> dict[str, str]:
    return {"path": "p", "week": "1", "units": "", "pages": "", "remark": "", **more}


def test_each_page_of_a_chapter_but_the_first_belongs_to_one_unit() -> None:
    for chapter in paths.CHAPTERS:
        units = [one for unit, one in LOADS.items() if paths.chapter_of(unit) == chapter]
        taken = list(itertools.chain.from_iterable(one.pages for one in units))
        first = paths.first_page(chapter)
        assert [first, *taken] == [page for page in CONTENTS if page.startswith(f"{chapter}/")]


@pytest.mark.parametrize("unit", paths.UNITS)
def test_a_unit_has_the_pages_that_explain_most_of_it(unit: str) -> None:
    pages = [load(unit).page(exercise.section) for exercise in load(unit).exercises]
    own = sum(page in LOADS[unit].pages for page in pages)
    assert own > len(pages) / 2, set(pages) - set(LOADS[unit].pages)


def test_hours_and_points_are_those_of_the_unit_and_its_pages() -> None:
    one = LOADS["attention-self_attention"]
    assert one.pages == ("attention/scaled-dot-product", "attention/masks")
    assert one.reading == sum(map(workload.minutes_of, one.pages))
    assert one.writing == load(one.unit).minutes
    assert one.points == 21  # six of them in words
    assert one.given == ("attention-scores",)


def test_a_page_that_does_not_say_how_long_it_takes_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A\n\n*About 25 minutes, no code.*\n")
    (tmp_path / "b.md").write_text("# B\n\nIt takes 25 minutes.\n")
    assert workload.minutes_of("a", tmp_path) == 25
    with pytest.raises(AssignmentError, match=r"book/b\.md"):
        workload.minutes_of("b", tmp_path)


def test_what_a_chapter_asks_to_know_is_read_from_its_first_page(tmp_path: Path) -> None:
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "index.md").write_text(
        "*20 minutes. You should know [attention](../attention/index.md) and "
        "[masks](../attention/masks.md).*\n\nMore in [BERT](../bert/index.md).\n"
    )
    assert workload.chapters_before("gpt", tmp_path) == ("attention",)
    assert workload.chapters_before("transformer") == (
        "attention",
        "positional_encoding",
        "seq2seq",
    )


def test_what_follows_from_two_others_is_left_out() -> None:
    needs = {"a": (), "b": ("a",), "c": ("a", "b"), "d": ("a", "c", "e"), "e": ()}
    assert workload.direct(needs) == {
        "a": (), "b": ("a",), "c": ("b",), "d": ("c", "e"), "e": (),
    }  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_in_order_and_no_week_is_too_long(path: str) -> None:
    plan = workload.weeks(ROWS, path, CONTENTS)
    units = [unit for week in plan for unit in week.units]
    assert units == sorted(units, key=paths.UNITS.index)
    assert all(week.reading + week.writing <= 7.5 * 60 for week in plan)
    assert all(week.units or week.pages for week in plan)
    if path.isdigit():
        assert [week.number for week in plan] == [str(n) for n in range(int(path) + 1)]


def test_the_longest_path_takes_every_unit_and_reads_every_page_of_the_chapters() -> None:
    plan = workload.weeks(ROWS, "14", CONTENTS)
    read = [page for week in plan for page in week.pages]
    assert {unit for week in plan for unit in week.units} == set(paths.UNITS)
    assert set(read) == {page for page in CONTENTS if "/" in page} | {"before-you-begin"}
    assert len(read) == len(set(read))
    assert sum(week.points for week in plan) == sum(one.points for one in LOADS.values())


def test_a_chapters_first_page_is_read_with_the_first_of_its_units_only() -> None:
    rows = [row(units="gpt-model"), row(week="2", units="gpt-training", pages="before-you-begin")]
    first, second = workload.weeks(rows, "p", CONTENTS)
    assert first.pages[0] == "gpt/index"
    assert second.pages[0] == "before-you-begin"
    assert "gpt/index" not in second.pages
    assert second.reading == sum(map(workload.minutes_of, second.pages))


def test_a_first_page_that_an_earlier_week_has_read_is_not_counted_again() -> None:
    rows = [row(pages="gpt/index"), row(week="2", units="gpt-model")]
    first, second = workload.weeks(rows, "p", CONTENTS)
    assert first.pages == ("gpt/index",)
    assert second.pages == LOADS["gpt-model"].pages


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([row(units="gpt-modell")], "gpt-modell"),
        ([row(units="gpt-model"), row(units="gpt-model")], "twice"),
        ([row(pages="gpt/nowhere")], "gpt/nowhere"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(wrong: list[dict[str, str]], said: str) -> None:
    with pytest.raises(AssignmentError, match=said):
        workload.weeks(wrong, "p", CONTENTS)
