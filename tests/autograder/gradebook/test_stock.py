"""nbgrader as it comes, without our steps: the same marks, with the course's own given parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from autograder.common import paths
from autograder.common.cells import is_ungraded
from autograder.gradebook import classroom
from autograder.gradebook.course import quiet_database
from autograder.gradebook.database import default_url, opened
from autograder.units.assignment import load
from tests.autograder.helpers import nbgrader, put

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)
FIRST = ASSIGNMENT.names[0]
CONFIG = """c = get_config()
c.CourseDirectory.root = {course!r}
c.ExecutePreprocessor.timeout = 300
"""
WRONG = "def causal_mask(length):\n    return torch.ones(length, length, dtype=torch.bool)\n"
# What would count if a student's own given.py did: nothing of the unit, or an answer to it.
BROKEN = "raise RuntimeError('the student has another given.py')\n"
GENEROUS = "from torch.nn.functional import *\n\nanswer = scaled_dot_product_attention\n"
# A last cell that would leave a trace, and take the first exercise's points away.
TRAP = """%%ungraded
open({trace!r}, "w").close()
def {name}(*anything):
    return None
"""


def trapped(notebook: NotebookNode, trace: Path) -> NotebookNode:
    """A notebook whose ungraded cell would write a file and spoil an answer."""
    last = [cell for cell in notebook.cells if is_ungraded(cell.source)]
    assert last
    last[-1].source = TRAP.format(trace=str(trace), name=FIRST)
    return notebook


def marks(course: Path) -> dict[str, dict[str, float | None]]:
    """Everybody's points, cell by cell; None for what waits for a person."""
    with quiet_database(), opened(default_url(course)) as book:
        return {
            one.student.id: {
                grade.name: None if grade.needs_manual_grade else grade.auto_score
                for notebook in one.notebooks
                for grade in notebook.grades
            }
            for one in book.assignment_submissions(UNIT)
        }


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory, solved) -> Path:
    folder = tmp_path_factory.mktemp("class") / "submitted"
    importing = solved(**{FIRST: f"from given import answer as {FIRST}"})
    for student, notebook, given in (
        ("own-broken", trapped(solved(), folder.parent / "trace"), BROKEN),
        ("wrong", solved(causal_mask=WRONG), None),
        ("own-generous", importing, paths.given(UNIT).read_text(encoding="utf-8") + GENEROUS),
    ):
        put(folder / student / UNIT / f"{UNIT}.ipynb", nbformat.writes(notebook))
        if given is not None:
            put(folder / student / UNIT / paths.GIVEN, given)
    return folder


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory, prepared: Path, submitted: Path) -> Path:
    """A course graded with `nbgrader autograde`, whose configuration names nothing of ours."""
    course = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("stock") / "course"))
    shutil.copytree(submitted, course / "submitted")
    put(course / "nbgrader_config.py", CONFIG.format(course=str(course)))
    nbgrader("autograde", UNIT, cwd=course, HOME=str(course.parent), PYTHONPATH=str(paths.ROOT))
    return course


@pytest.mark.slow
@pytest.mark.sandbox
def test_the_marks_are_those_of_grade(stock, submitted, tmp_path, prepared):
    course = Path(shutil.copytree(prepared, tmp_path / "course"))
    classroom.grade(UNIT, submitted, course)
    ours = marks(course)
    assert marks(stock) == ours
    scores = {
        student: sum(points or 0 for points in cells.values()) for student, cells in ours.items()
    }
    assert scores["own-broken"] == ASSIGNMENT.points
    assert 0 < scores["wrong"] < ASSIGNMENT.points
    assert ours["wrong"]["check_padding_mask"] == ASSIGNMENT.exercise("padding_mask").points
    assert ours["own-generous"][f"check_{FIRST}"] == 0
    # Two questions wait for a person.
    waiting = {name for name, points in ours["own-broken"].items() if points is None}
    assert waiting == {question.name for question in ASSIGNMENT.questions}


@pytest.mark.slow
def test_beside_each_graded_notebook_lies_the_courses_given_part(stock):
    right = paths.given(UNIT).read_bytes()
    for student in ("wrong", "own-broken", "own-generous"):
        assert (stock / "autograded" / student / UNIT / paths.GIVEN).read_bytes() == right
    assert (stock / "submitted" / "own-broken" / UNIT / paths.GIVEN).read_text() == BROKEN


@pytest.mark.slow
def test_feedback_and_export_go_on(stock):
    nbgrader("generate_feedback", UNIT, cwd=stock, HOME=str(stock.parent))
    nbgrader("export", "--to", str(stock / "marks.csv"), cwd=stock, HOME=str(stock.parent))
    assert (stock / "feedback" / "wrong" / UNIT / f"{UNIT}.html").is_file()
    assert (stock / "marks.csv").read_text(encoding="utf-8").count(UNIT) == 3


@pytest.mark.slow
def test_ungraded_cells_are_not_run(stock, submitted, solved, tmp_path):
    graded = stock / "autograded" / "own-broken" / UNIT / f"{UNIT}.ipynb"
    last = nbformat.read(graded, as_version=4).cells[-1]
    assert (is_ungraded(last.source), last.execution_count is not None) == (True, True)
    assert last.outputs == []
    notebook = put(tmp_path / f"{UNIT}.ipynb", trapped(solved(), submitted.parent / "trace"))
    shutil.copyfile(paths.given(UNIT), tmp_path / paths.GIVEN)
    said = nbgrader("validate", notebook.name, cwd=tmp_path, PYTHONPATH=str(paths.ROOT))
    assert "passes all the tests" in said
    assert not (submitted.parent / "trace").exists()
