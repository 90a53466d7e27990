"""`python -m autograder bundle CHAPTER`: the zip that students receive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    unit: Annotated[str, typer.Argument(help="The unit, for example attention.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The zip to write.  [default: CHAPTER.zip]")
    ] = None,
    book_url: Annotated[
        str, typer.Option(help="Where students read the book; checks then link to its sections.")
    ] = "",
) -> None:
    """Make the student's zip: notebook, checks and recorded answers, without solutions."""
    from autograder.assignments import bundle
    from autograder.common.errors import AssignmentError

    try:
        path = bundle.bundle(unit, out or Path(f"{unit}.zip"), book_url)
    except AssignmentError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(f"wrote {path} ({path.stat().st_size // 1024} KiB)")
