"""`python -m autograder build`: the students' notebooks from the solutions."""

from __future__ import annotations

from typing import Annotated

import typer

from autograder.common import paths


def run(
    units: Annotated[
        list[str] | None, typer.Argument(help="Chapters to build; all of them when none is named.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; say which files are out of date.")
    ] = False,
) -> None:
    """Make exercises/ from solutions/: notebooks, assignment.json and recorded answers."""
    from autograder.assignments import builder

    wanted = units or builder.sources()
    try:
        changed = builder.build(wanted, check=check)
        for unit in wanted:
            changed += builder.record(unit, check=check)
    except builder.AssignmentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    for path in changed:
        name = path.relative_to(paths.ROOT)
        typer.echo(f"{name} is out of date" if check else f"wrote {name}")
    if check and changed:
        typer.echo("Run python -m autograder build and commit the result.", err=True)
        raise typer.Exit(1)
    if not changed:
        typer.echo(f"{', '.join(wanted)}: nothing to do, everything is up to date")
