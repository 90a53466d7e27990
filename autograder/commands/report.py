"""`python -m autograder report ASSIGNMENT`: the class report again, with marks given since."""

from __future__ import annotations

from typing import Annotated

import typer

from autograder.commands.options import COURSE, GradedCourse, Unit


def run(
    assignment: Unit,
    course: GradedCourse = COURSE,
    feedback: Annotated[
        bool, typer.Option(help="Write the students' pages anew too, with comments and marks.")
    ] = True,
) -> None:
    """Write class report, CSV and feedback again, after marking written answers by hand."""
    from rich.console import Console
    from rich.text import Text

    from autograder.common import escaping, progress
    from autograder.gradebook import classroom, due_dates
    from autograder.gradebook.course import Books, quiet_database
    from autograder.reports import class_report

    console = Console()
    graded = classroom.Class.read(course.resolve(), assignment)
    missed = []
    place = Books(graded.course, assignment)
    settings = due_dates.of_course(graded.course, assignment)
    with quiet_database():
        due_dates.penalise(assignment, settings, place.directory.db_url)
    if feedback:
        with progress.showing_progress() as tell:
            for count, result in enumerate(graded.results, 1):
                if place.feedback(result.student) is None:
                    missed.append(escaping.one_line(result.student))
                tell("feedback", count, len(graded.results))
    path = class_report.write(graded, console)
    for label, target in (
        ("Class report", path),
        ("What to teach again", graded.folder / "teaching.json"),
        ("Marks", graded.folder / "grades.csv"),
        ("Feedback", graded.course / "feedback"),
    ):
        console.print(Text(f"{label}: {target}"), soft_wrap=True)
    if missed:
        Console(stderr=True).print(
            Text(f"No feedback page could be written for {', '.join(missed)}; grade them again.")
        )
        raise typer.Exit(1)
