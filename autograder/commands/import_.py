"""`python -m autograder import TOOL EXPORT`: submissions as another tool exports them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.lms import Tool
from autograder.units.assignment import require_unit


def run(
    tool: Annotated[Tool, typer.Argument(help="The tool that exported them.")],
    export: Annotated[Path, typer.Argument(help="The zip that was downloaded, or its folder.")],
    assignment: Annotated[
        str,
        typer.Option(help="The assignment, such as attention-scores.", callback=require_unit),
    ],
    to: Annotated[
        Path, typer.Option(help="The folder to fill; `grade` takes it with --submitted.")
    ],
    roster: Annotated[
        Path | None,
        typer.Option(help="A class list: the tool's own, or one with a column `student`."),
    ] = None,
) -> None:
    """Turn a downloaded export into a folder of submissions, and write roster.csv beside it.

    Exit status 0 means that everything in the export was understood.
    """
    from rich.console import Console
    from rich.text import Text

    from autograder.common.escaping import one_line
    from autograder.lms import TITLES, module
    from autograder.lms.archive import Archive
    from autograder.lms.base import People, place, read_export

    people = People.read(roster) if roster is not None else People()
    with Archive(export) as archive:
        found = read_export(tool, archive, people, assignment)
        placed = place(found, assignment, to, people, module(tool).COLUMNS)
    console, errors = Console(), Console(stderr=True)
    for remark in placed.remarks:
        console.print(Text(one_line(remark, 10_000)), soft_wrap=True)
    for problem in placed.problems:
        errors.print(Text(one_line(problem, 10_000), style="bold"), soft_wrap=True)
    count = len(placed.students)
    console.print(
        Text(f"{count} submission{'s' if count != 1 else ''} from {TITLES[tool]} in {to}"),
        soft_wrap=True,
    )
    console.print(
        Text(
            f"Next: python -m autograder grade {assignment} --submitted {to} "
            f"--roster {placed.roster}"
        ),
        soft_wrap=True,
    )
    if placed.problems:
        raise typer.Exit(1)
