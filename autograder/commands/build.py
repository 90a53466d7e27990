"""`python -m autograder build`: the students' notebooks from the solutions."""

from __future__ import annotations

from typing import Annotated

import typer

from autograder.common import paths


def run(
    units: Annotated[
        list[str] | None,
        typer.Argument(help="Units to build, or chapters; all of them when none is named."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; say which committed files are out of date."),
    ] = False,
) -> None:
    """Make exercises/ from solutions/: notebooks, assignment.json and recorded answers."""
    from autograder.assignments import builder, recorder
    from autograder.units.assignment import require_unit, units_of

    wanted = units_of(units or builder.sources())
    for unit in wanted:
        if unit not in paths.UNITS:
            require_unit(unit)
    changed = builder.build(wanted, check=check)
    for path in changed:
        name = path.relative_to(paths.ROOT)
        typer.echo(f"{name} is out of date" if check else f"wrote {name}")
    if check and changed:
        typer.echo("Run python -m autograder build and commit the result.", err=True)
        raise typer.Exit(1)
    for recorded in recorder.record_all(wanted if not check else []):
        changed.append(recorded)
        typer.echo(f"wrote {recorded.relative_to(paths.ROOT)}")
    if not changed:
        typer.echo(f"{', '.join(wanted)}: nothing to do, everything is up to date")
