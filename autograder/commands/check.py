"""`python -m autograder check NOTEBOOK`: what `check` would say, for a whole notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.sandbox.timelimit import SECONDS_PER_CALL


def run(
    notebook: Annotated[Path, typer.Argument(help="The notebook to check.")],
    exercise: Annotated[
        list[str] | None, typer.Option(help="Only this exercise; may be given more than once.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help="The unit, if the notebook does not say.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long a cell, or a call of an exercise, may take.")
    ] = SECONDS_PER_CALL,
) -> None:
    """Run a notebook and say which exercises hold. Exit status 0 when all of them do."""
    from rich.console import Console
    from rich.text import Text

    from autograder.checking.notebook import check_notebook
    from autograder.common import cards
    from autograder.common.errors import AssignmentError

    console = Console()
    try:
        with console.status(f"Checking {notebook.name} …") as status:

            def progress(what: str) -> None:
                status.update(Text(f"Checking {notebook.name}: {what} …"))

            report = check_notebook(notebook, exercise or (), unit, seconds, progress)
    except AssignmentError as error:
        Console(stderr=True).print(Text(str(error)), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped.")
        raise typer.Exit(130) from None
    for trouble in report.troubles:
        console.print(Text(f"! {trouble}", style="yellow"), soft_wrap=True)
    for card in report.cards:
        if card.status == "failed" or (exercise and card.status != "passed"):
            console.print(cards.card_rich(card))
    console.print(cards.overview_rich(report.cards, report.title))
    if not report.passed:
        raise typer.Exit(1)
