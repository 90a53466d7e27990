"""`python -m autograder grade ASSIGNMENT --submitted DIR`: grade a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder import paths


def run(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as attention.")],
    submitted: Annotated[
        Path,
        typer.Option(
            help="The submissions: DIR/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, DIR/STUDENT/*.ipynb "
            "or DIR/STUDENT.ipynb. Nothing in it is changed."
        ),
    ],
    course: Annotated[
        Path,
        typer.Option(
            help="The nbgrader course to fill: gradebook, feedback, report.",
            show_default="build/course",
        ),
    ] = paths.BUILD / "course",
    roster: Annotated[
        Path | None,
        typer.Option(help="The class list, a CSV with a column `student`; who is absent is told."),
    ] = None,
    due: Annotated[
        str | None,
        typer.Option(help="When the work was due, such as '2030-01-31 18:00:00 UTC'."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Submissions at a time; by default one per core.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the inputs that are drawn; by default the course's own."),
    ] = None,
    cache: Annotated[
        bool, typer.Option(help="Take over the results of code graded before in this course.")
    ] = True,
    unsafe_no_sandbox: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-sandbox",
            help="Run student code without a sandbox: it can then do whatever you can.",
        ),
    ] = False,
) -> None:
    """Grade a class: marks, nbgrader's gradebook, a feedback page each, and a class report.

    Exit status 0 means that every submission has a result.
    """
    from rich.console import Console
    from rich.text import Text

    from autograder import books, classroom, collect, harmless, marker, progress, report
    from autograder.sandbox import SandboxUnavailable

    errors = Console(stderr=True)
    people = collect.read_roster(roster) if roster is not None else []
    try:
        with progress.showing_progress() as progress:
            graded = classroom.grade(
                assignment,
                submitted,
                course,
                roster=people,
                due=due,
                jobs=jobs or min(4, classroom.usable_cores()),
                seed=seed,
                unsafe=unsafe_no_sandbox,
                cache=cache,
                progress=progress,
            )
    except SandboxUnavailable as error:
        errors.print(Text(f"Nothing was graded: {error}."), soft_wrap=True)
        raise typer.Exit(2) from None
    path = report.write(graded)
    console = Console()
    report.show(graded, console)
    console.print()
    for label, target in (
        ("Class report", path),
        ("Marks", graded.folder / "grades.csv"),
        ("Feedback", graded.course / "feedback"),
        ("Gradebook", graded.course / "gradebook.db"),
    ):
        console.print(Text(f"{label:<13}{target}"), soft_wrap=True)
    if not graded.complete:
        for result in graded.results:
            for note in result.notes:
                if note.startswith((marker.UNJUDGED, books.UNRECORDED)):
                    said = harmless.one_line(f"{result.student}: {note}")
                    errors.print(Text(said, style="bold"), soft_wrap=True)
        raise typer.Exit(1)
