"""`python -m autograder doctor`: what does this machine lack?"""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table


def run() -> None:
    """Say what this machine lacks for reading, doing and grading, and what to type.

    Exit status 1 if something is missing.
    """
    from autograder.grading.doctor import DO, GRADE, READ, findings

    console = Console()
    found = list(findings())
    for purpose, title in ((READ, "to read"), (DO, "to do"), (GRADE, "to grade")):
        table = Table(title=f"What it takes {title} the course", title_justify="left", box=None)
        table.add_column("")
        table.add_column("what")
        table.add_column("found")
        table.add_column("remedy")
        for item in (item for item in found if item.purpose == purpose):
            sign = "[green]ok[/green]" if item.ok else "[red]no[/red]"
            table.add_row(sign, item.what, item.detail, "" if item.ok else item.remedy)
        console.print(table)
        console.print()
    lacking = [item for item in found if not item.ok]
    if lacking:
        console.print(f"{len(lacking)} thing(s) to mend; the last column says how.")
        raise typer.Exit(1)
    console.print("This machine is ready to read, do and grade the course.")
