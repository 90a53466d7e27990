"""`python -m autograder bundle UNIT`: the zip that students receive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.commands.options import Unit


def run(
    unit: Unit,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The zip to write.  [default: UNIT.zip]")
    ] = None,
    book_url: Annotated[
        str, typer.Option(help="Where students read the book; checks then link to its sections.")
    ] = "",
) -> None:
    """Make the student's zip: notebook, checks and recorded answers, without solutions."""
    from autograder.assignments import bundle

    path = bundle.bundle(unit, out or Path(f"{unit}.zip"), book_url)
    typer.echo(f"wrote {path} ({path.stat().st_size // 1024} KiB)")
