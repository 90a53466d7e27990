"""`python -m autograder export TOOL ASSIGNMENT`: marks in the form that another tool imports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.commands.options import COURSE, GradedCourse, Unit
from autograder.lms import Tool


def run(
    tool: Annotated[Tool, typer.Argument(help="The tool that is to import them.")],
    assignment: Unit,
    out: Annotated[Path, typer.Option(help="The CSV to write.")],
    course: GradedCourse = COURSE,
    template: Annotated[
        Path | None,
        typer.Option(help="The table as the tool exports it; all its other cells stay."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="The roster.csv that `import` wrote, with the tool's ids.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column to fill, if it cannot be guessed.")
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option(help="Moodle: also a zip with everybody's feedback page.")
    ] = None,
) -> None:
    """Write marks, with written answers, late penalties and changes by hand, for another tool.

    Exit status 0 means that every mark has found its row.
    """
    from rich.console import Console
    from rich.text import Text

    from autograder.common.escaping import one_line
    from autograder.lms.export import export

    marks, pages = export(
        tool,
        assignment,
        course.resolve(),
        out,
        template=template,
        roster=roster,
        column=column,
        feedback=feedback,
    )
    console, errors = Console(), Console(stderr=True)
    for remark in marks.remarks:
        console.print(Text(one_line(remark, 10_000)), soft_wrap=True)
    for problem in marks.problems:
        errors.print(Text(one_line(problem, 10_000), style="bold"), soft_wrap=True)
    console.print(Text(f"{len(marks.written)} marks in {out}"), soft_wrap=True)
    if feedback is not None:
        console.print(Text(f"{pages} feedback pages in {feedback}"), soft_wrap=True)
    if marks.problems:
        raise typer.Exit(1)
