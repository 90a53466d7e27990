"""`python -m autograder verify`: are the graders any good?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from autograder.common.paths import units
from autograder.units.assignment import require_unit, units_of

if TYPE_CHECKING:
    from autograder.verification.verify import Verdict


def run(
    unit: Annotated[
        list[str] | None, typer.Argument(help="Units to verify, or chapters; all by default.")
    ] = None,
    exercise: Annotated[
        list[str] | None, typer.Option(help="Only these exercises (may be repeated).")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the verdicts to this file.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes to use.")] = os.cpu_count() or 1,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Judge reference and misconceptions at this many seeds, from 0 on."
        ),
    ] = None,
) -> None:
    """Judge the graders: reference, misconceptions, answers without work, mutants and promises.

    The reference must earn full marks, every misconception must lose points and be named, an
    answer without work must earn nothing, every mutant must be noticed or listed as equivalent
    with the reason, and every promise of a text must have a test. Exit status 1 if one of these
    does not hold.
    """
    import torch

    from autograder.verification.seeds import VARIABLE, rotating
    from autograder.verification.verify import verify

    torch.set_num_threads(1)
    console = Console()
    wanted = [require_unit(name) for name in units_of(unit or units())]
    chosen = [rotating()] if seeds is None else range(seeds)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        verdicts = verify(wanted, jobs=jobs, exercises=exercise, seeds=chosen, progress=progress)

    table = Table(
        title="The graders, judged",
        caption="points of the reference; misconceptions rejected and named; answers without work "
        "refused; mutants killed; bad habits noticed; of both those that mean the same",
        box=box.SIMPLE,
        padding=0,
    )
    table.add_column("", no_wrap=True)
    columns: dict[str, Callable[[Verdict], str]] = {
        "points": lambda item: f"{item.reference:g}/{item.points:g}",
        "rejected": lambda item: f"{item.rejected}/{item.misconceptions}",
        "named": lambda item: f"{item.diagnosed}/{item.misconceptions}",
        "refused": lambda item: f"{item.refused}/{item.trivial}",
        "killed": lambda item: f"{item.killed}/{item.mutants}",
        "habits": lambda item: f"{item.noticed}/{item.slips}",
        "same": lambda item: str(item.equivalent),
    }
    for heading in columns:
        table.add_column(heading, justify="right")
    for item in verdicts:
        table.add_row(item.unit, *(text(item) for text in columns.values()))
    console.print(table)
    if seeds is None:
        console.print(f"At the seed {chosen[0]}; {VARIABLE}={chosen[0]} repeats it.")
    for item in verdicts:
        for what, names in (
            ("accepted, though wrong", item.accepted),
            ("rejected, not named", [f"{k} (called {v})" for k, v in item.unnamed.items()]),
            ("points without work", item.gifts),
            ("mutant or habit that no grader notices", item.survivors),
            ("listed as equivalent, but noticed or gone", item.stale),
            ("promise without a test", item.untested),
            ("no such promise", item.unknown),
            ("text without ids of its promises", item.without_ids),
        ):
            for entry in names:
                console.print(f"{item.unit}: {what}: {entry}", markup=False, highlight=False)
    console.print(f"{sum(item.promises for item in verdicts)} promises have ids.", highlight=False)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(
            json.dumps([item.to_json() for item in verdicts], indent=1), encoding="utf-8"
        )
    if not all(item.sound for item in verdicts):
        raise typer.Exit(1)
