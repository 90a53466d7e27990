"""The course edition: what it leaves out, and that it gives no exercise away."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import pytest

from autograder.common import paths
from tests.book.given_away import code_of, defined, given_away, regions, shares
from tests.book.test_site import ids, soup
from toolkit.book import contents, left_out_of

pytestmark = [pytest.mark.book]

CHAPTERS = {page.partition("/")[0] for page in contents(edition="course")} & paths.CHAPTERS.keys()
UNITS = [unit for unit in paths.units() if paths.chapter_of(unit) in CHAPTERS]
LONG = '''class Both:
    """One line.

    And more of it.
    """

    def forward(self, x):
        """Look.

        Args:
            x: (B, T, D).
        """
        text = """not a
        docstring"""
        return x, text

    def short(self):
        """Stays."""
'''
BRIEF = '''class Both:
    """One line."""

    def forward(self, x):
        """Look."""
        text = """not a
        docstring"""
        return x, text

    def short(self):
        """Stays."""'''
MASKED = """
def attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1).nan_to_num(0)
    return weights @ value, weights
"""


def test_no_page_of_the_course_edition_gives_an_exercise_away(course_site: Path) -> None:
    found = {
        f"{page.relative_to(course_site)}: {exercise}": sorted(code)
        for page in sorted(course_site.rglob("*.html"))
        for exercise, code in given_away(code_of(page.read_text("utf-8")), UNITS).items()
    }
    assert found == {}


def test_nothing_that_a_page_of_the_course_edition_defines_earns_much(course_site: Path) -> None:
    for page in sorted(course_site.rglob("*.html")):
        definitions = defined(code_of(page.read_text("utf-8")))
        chapter = page.relative_to(course_site).parts[0]
        for unit in [u for u in UNITS if paths.chapter_of(u) == chapter] or UNITS:
            earned = {pair: share for pair, share in shares(definitions, unit).items() if share}
            assert all(share <= 0.25 for share in earned.values()), earned


def test_what_gives_an_exercise_away_is_found_under_other_names() -> None:
    (solution,) = regions("attention-self_attention")["scaled_dot_product_attention"]
    renamed = re.sub(r"\b(scores|d_k|attn_weights)\b", r"my_\1", ast.unparse(solution))
    assert "scaled_dot_product_attention" in given_away([renamed], UNITS)
    assert set(given_away(["print('mixed', a @ b)"], UNITS)) == {"context_vector"}


def test_a_definition_that_earns_much_under_an_exercises_name_is_found() -> None:
    earned = shares(defined([MASKED]), "attention-self_attention")
    assert earned["attention", "scaled_dot_product_attention"] > 0.25
    assert earned["attention", "causal_mask"] == 0


def test_the_course_edition_holds_no_source_and_no_download(course_site: Path) -> None:
    files = [Path(name) for _, _, names in os.walk(course_site) for name in names]
    assert not [file for file in files if file.suffix in {".md", ".ipynb", ".py", ".zip"}]


def test_the_course_edition_has_the_pages_that_are_done_and_says_what_it_lacks(
    course_site: Path,
) -> None:
    for page in contents(edition="course"):
        assert (course_site / f"{page}.html").is_file()
    for page in left_out_of("course"):
        assert "not in the course edition" in (course_site / f"{page}.html").read_text("utf-8")


def test_the_reader_sees_whole_classes_and_the_student_what_to_start_from(
    site: Path, course_site: Path
) -> None:
    whole, start = (
        soup(folder / "attention" / "several-heads.html").get_text()
        for folder in (site, course_site)
    )
    assert "self.out_proj(merge_heads(heads))" in whole
    assert "self.out_proj(merge_heads(heads))" not in start
    assert "# YOUR CODE HERE" in start
    assert "You write this: attention-multi_head, exercise" in start
    assert "You write this" not in whole


def test_brief_code_keeps_the_first_line_of_each_docstring_and_all_else() -> None:
    sys.path.insert(0, str(paths.BOOK / "_ext"))
    try:
        from editions import brief
    finally:
        sys.path.remove(str(paths.BOOK / "_ext"))
    assert brief(LONG) == BRIEF
    assert brief(BRIEF) == BRIEF


def test_each_exercise_is_named_on_a_page_of_its_section_with_a_link_to_its_unit(
    site: Path,
) -> None:
    from autograder.units.assignment import load

    for unit in UNITS:
        assignment = load(unit)
        for exercise in assignment.exercises:
            page = site / f"{assignment.page(exercise.section)}.html"
            assert exercise.section in ids(page)
            turn = soup(page).find(id="your-turn")
            assert turn
            assert exercise.name in {code.get_text() for code in turn.find_all("code")}
            assert turn.find("a", href=f"../howto-hand-in.html#unit-{unit}")
