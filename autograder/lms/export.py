"""Marks of a graded class for another tool, from its table and back into it."""

from __future__ import annotations

from pathlib import Path

from autograder.common.errors import ClassroomError
from autograder.gradebook.classroom import Class
from autograder.lms import TITLES, Tool, module
from autograder.lms.base import People
from autograder.lms.marks import Marks
from autograder.lms.table import Table

TEMPLATES = {
    Tool.canvas: "the gradebook (Grades, Export, Export Entire Gradebook)",
    Tool.moodle: "the grading worksheet (Submissions, Download grading worksheet)",
    Tool.gradescope: "the grades (Review Grades, Download Grades)",
}


def export(
    tool: Tool,
    assignment: str,
    course: Path,
    out: Path,
    *,
    template: Path | None = None,
    roster: Path | None = None,
    column: str | None = None,
    feedback: Path | None = None,
) -> tuple[Marks, int]:
    """Write the table to `out`; the marks with what is to be told, and how many feedback pages.

    Raises:
        ClassroomError: nothing can be exported; one sentence with the remedy.
    """
    graded = Class.read(course, assignment)
    people = People.read(roster) if roster is not None else People()
    if template is None and tool in TEMPLATES:
        raise ClassroomError(
            f"{TITLES[tool]} needs its own table to recognise its students: download "
            f"{TEMPLATES[tool]} and name it with --template."
        )
    if feedback is not None and tool != Tool.moodle:
        raise ClassroomError(f"{TITLES[tool]} takes no zip of feedback; leave --feedback out.")
    for target in (out, feedback):
        if template is not None and target is not None and target.resolve() == template.resolve():
            raise ClassroomError(f"{target} is the template itself; write to another file.")
    table = Table.read(template, "template") if template is not None else None
    marks = Marks(graded, people)
    data = module(tool).export(marks, table, column)
    pages = 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(data)
        if feedback is not None:
            pages = module(tool).feedback(marks, table, feedback)
    except OSError as error:
        raise ClassroomError(f"{error.filename} cannot be written ({error.strerror}).") from error
    return marks, pages
