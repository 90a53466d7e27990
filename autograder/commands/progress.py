"""`python -m autograder progress DIR`: how far a student is, in all units at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autograder.sandbox.timelimit import SECONDS_PER_CALL

if TYPE_CHECKING:
    from autograder.checking.progress import Progress

ROW = "{:<32} {:>12} {:>16} {:>16}"


def run(
    folder: Annotated[Path, typer.Argument(help="The folder with the notebooks, at any depth.")],
    seconds: Annotated[
        float, typer.Option(help="How long a cell, or a call of an exercise, may take.")
    ] = SECONDS_PER_CALL,
) -> None:
    """Check all units' notebooks in a folder, and say how far each is.

    Points are those of the visible tests. Exit status 0 when every notebook could be checked.
    """
    from rich.console import Console
    from rich.text import Text

    from autograder.checking import progress as checking
    from autograder.common.progress import showing_progress

    with showing_progress() as bar:
        found = checking.progress(
            folder, seconds, lambda done, total: bar("Checking notebooks", done, total)
        )
    console = Console()
    for line, style in lines(found, folder):
        console.print(Text(line, style=style), soft_wrap=True)
    if not all(entry.checked for entry in found):
        raise typer.Exit(1)


def lines(found: Sequence[Progress], folder: Path) -> Iterator[tuple[str, str]]:
    """The table, line by line, each with its style; a sentence stands below its row."""
    from autograder.common.cards import number
    from autograder.common.escaping import one_line

    yield ROW.format("Unit", "Exercises", "Points", "Open questions"), "bold"
    units = [entry.unit for entry in found]
    for entry in found:
        place = one_line(entry.path.relative_to(folder))
        right, points = (str(entry.right), number(entry.points)) if entry.checked else ("?", "?")
        row = (entry.unit or place, "?", "?", "?")
        if entry.exercises:
            row = (
                entry.unit,
                f"{right} / {entry.exercises}",
                f"{points} / {number(entry.max_points)}",
                f"{entry.open} of {entry.questions}" if entry.questions else "–",
            )
        done = entry.checked and entry.right == entry.exercises and not entry.open
        yield ROW.format(*row), "green" if done else "" if entry.checked else "red"
        if units.count(entry.unit) > 1 and entry.unit:
            yield f"    {place}", "dim"
        if entry.trouble:
            yield f"    ! {one_line(entry.trouble, 500)}", "yellow"
    if len(found) > 1:
        questions = sum(entry.questions for entry in found)
        yield (
            ROW.format(
                "together",
                f"{sum(entry.right for entry in found)} / {sum(e.exercises for e in found)}",
                f"{number(sum(e.points for e in found))} / "
                f"{number(sum(e.max_points for e in found))}",
                f"{sum(entry.open for entry in found)} of {questions}" if questions else "–",
            ),
            "bold",
        )
