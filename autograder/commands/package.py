"""`python -m autograder package gradescope|github ASSIGNMENT`: what another tool runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autograder.commands.options import Unit


class Target(StrEnum):
    """A tool that runs the checks itself."""

    gradescope = "gradescope"
    github = "github"


def run(
    tool: Annotated[Target, typer.Argument(help="The tool that is to run it.")],
    assignment: Unit,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The zip, or for GitHub the new folder, to write.  "
            "[default: autograder.zip, or ASSIGNMENT-template]"
        ),
    ] = None,
    hidden: Annotated[
        str,
        typer.Option(
            help="Gradescope: when students see hidden tests: visible, after_due_date, "
            "after_published or hidden."
        ),
    ] = "after_published",
    book_url: Annotated[
        str, typer.Option(help="GitHub: where students read the book; checks then link to it.")
    ] = "",
) -> None:
    """Make a Gradescope autograder (with the reference: for you alone) or a GitHub template."""
    if tool == Target.gradescope:
        from autograder.lms import gradescope_package

        path = gradescope_package.package(assignment, out or Path("autograder.zip"), hidden)
        size = f" ({path.stat().st_size // 1024} KiB); it holds the reference, so give it to nobody"
        typer.echo(f"wrote {path}{size}")
        return
    from autograder.lms import github_package

    path = github_package.package(assignment, out or Path(f"{assignment}-template"), book_url)
    typer.echo(f"wrote {path}; make it a template repository on GitHub")
