"""A course that knows a unit: what lies in it, and when it is made anew."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.assignments import builder, given
from autograder.common import paths
from autograder.gradebook import course as courses
from autograder.gradebook.course import prepare, quiet_database
from autograder.units.assignment import load

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)


def test_notebook_and_given_part_are_made_and_handed_out(course):
    for step in ("source", "release"):
        names = {file.name for file in (course / step / UNIT).iterdir()}
        assert names - {".made-from"} == {f"{UNIT}.ipynb", paths.GIVEN}
        part = (course / step / UNIT / paths.GIVEN).read_bytes()
        assert part == paths.given(UNIT).read_bytes()
    assert "BEGIN SOLUTION" in (course / "source" / UNIT / f"{UNIT}.ipynb").read_text()


def test_a_unit_that_needs_nothing_has_no_given_part(course):
    prepare(course, "attention-scores")
    for step in ("source", "release"):
        assert not (course / step / "attention-scores" / paths.GIVEN).exists()
        assert (course / step / UNIT / paths.GIVEN).exists()  # Units lie side by side.


def test_the_gradebook_knows_the_units_questions(course):
    with quiet_database(), Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        cells = {
            cell.name: (cell.cell_type, cell.max_score)
            for cell in book.find_notebook(UNIT, UNIT).grade_cells
        }
    checks = {f"check_{one.name}": ("code", one.points) for one in ASSIGNMENT.exercises}
    questions = {one.name: ("markdown", one.points) for one in ASSIGNMENT.questions}
    assert len(questions) == 2
    assert cells == checks | questions


def state(course: Path) -> dict[str, int]:
    files = [*(course / "source").rglob("*"), *(course / "release").rglob("*")]
    return {str(file): file.stat().st_mtime_ns for file in files if file.is_file()}


@pytest.mark.parametrize("step", ["source", "release"])
@pytest.mark.parametrize("name", [f"{UNIT}.ipynb", paths.GIVEN])
def test_what_is_missing_is_made_anew_and_nothing_else(course, step, name):
    before = state(course)
    prepare(course, UNIT)
    assert state(course) == before
    (course / step / UNIT / name).unlink()
    prepare(course, UNIT)
    assert (course / step / UNIT / name).is_file()


@pytest.fixture
def solutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reference modules, to be changed, as `prepare` sees them."""
    root = tmp_path / "root"
    shutil.copytree(paths.SOLUTIONS / "attention", root / "solutions" / "attention")
    monkeypatch.setattr(paths, "solution", functools.partial(paths.solution, root=root))
    source = given.source
    monkeypatch.setattr(given, "source", lambda unit, *_: source(unit, root / "solutions"))
    making = functools.partial(builder.prepare_course, solutions=root / "solutions")
    monkeypatch.setattr(builder, "prepare_course", making)
    return root / "solutions" / "attention"


@pytest.mark.parametrize(
    ("file", "old", "new", "anew"),
    [
        ("self_attention.py", "At the end of this unit", "When you are done", True),
        ("conventions.md", "batch size", "size of the batch", True),
        # What the unit is given of the unit before, and what it is not.
        ("scores.py", "Softmax along ``dim``", "The softmax along ``dim``", True),
        (
            "scores.py",
            "class AdditiveScore(nn.Module):",
            "class AdditiveScore(nn.Module):  #",
            False,
        ),
        ("multi_head.py", "class PerHeadAttention", "class  PerHeadAttention", False),
    ],
)
def test_a_course_is_made_anew_when_what_it_was_made_from_changes(
    course, solutions, file, old, new, anew
):
    prepare(course, UNIT)
    before = state(course)
    text = (solutions / file).read_text(encoding="utf-8")
    assert old in text
    (solutions / file).write_text(text.replace(old, new), encoding="utf-8")
    prepare(course, UNIT)
    assert (state(course) != before) == anew
    if anew:
        made = [one.read_text(encoding="utf-8") for one in (course / "release" / UNIT).iterdir()]
        assert any(new in one for one in made)


def test_a_course_is_made_anew_when_its_last_cells_change(course, solutions):
    root = solutions.parents[1]
    script = paths.ungraded(UNIT, root)
    script.parent.mkdir(parents=True)
    shutil.copyfile(paths.ungraded(UNIT), script)
    prepare(course, UNIT)
    before = state(course)
    script.write_text(script.read_text(encoding="utf-8") + "\n# %%\nprint('one more')\n")
    prepare(course, UNIT)
    assert state(course) != before
    released = course / "release" / UNIT / f"{UNIT}.ipynb"
    assert "one more" in released.read_text(encoding="utf-8")


def test_points_and_gradebook_make_a_course_anew():
    made = [
        courses._made_from(UNIT, {"causal_mask": 1.0}, ""),
        courses._made_from(UNIT, {"causal_mask": 2.0}, ""),
        courses._made_from(UNIT, {"causal_mask": 1.0}, "postgresql://user@host/class"),
        courses._made_from("attention-scores", {"causal_mask": 1.0}, ""),
    ]
    assert len(set(made)) == 4
