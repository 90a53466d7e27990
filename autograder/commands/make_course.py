"""Everything in one go: `make course`.

Regenerates the assignments, builds the book, makes and grades a demonstration class, writes its
feedback and report, and ends with the marks and the paths to open.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.demo import make_class

DEMO = paths.BUILD / "demo"
COURSE = DEMO / "course"


def assignments(console: Console) -> None:
    """Regenerate exercises/ from solutions/, and the recorded answers."""
    from autograder.assignments import builder, recorder

    changed = builder.build(builder.sources())
    changed += recorder.record_all(builder.sources())
    names = ", ".join(str(path.relative_to(paths.ROOT)) for path in changed)
    console.print(f"  changed: {names}" if changed else "  up to date")


def book() -> Path:
    """Build the book in a process of its own, since it sets the process up for Sphinx."""
    command = [sys.executable, "-m", "toolkit.book"]
    if subprocess.run(command, cwd=paths.ROOT, check=False).returncode:
        raise AssignmentError("the book could not be built; what to mend stands above")
    return paths.BUILD / "book" / "_build" / "html" / "index.html"


def demonstration(unit: str, jobs: int) -> Path:
    """Make a class, grade it through nbgrader, and show its marks; returns the report's path."""
    from autograder.common import progress
    from autograder.gradebook import classroom
    from autograder.reports import class_report

    submitted = DEMO / unit / "submitted"
    shutil.rmtree(submitted, ignore_errors=True)
    make_class.make(submitted, unit)
    with progress.showing_progress() as shown:
        graded = classroom.grade(
            unit, submitted, COURSE, due=make_class.DUE, jobs=jobs, progress=shown
        )
    assert graded is not None, "nobody was asked whether to go on"
    return class_report.write(graded, Console())


def main(arguments: list[str] | None = None) -> int:
    """Run the steps; the exit status is 0 if all of them succeeded."""
    parser = argparse.ArgumentParser(
        prog="python -m autograder.commands.make_course", description=__doc__
    )
    parser.add_argument("--only", choices=("assignments", "book", "demo"), help="only this step")
    parser.add_argument(
        "--unit",
        choices=paths.units(),
        default=make_class.SHOWN,
        metavar="UNIT",
        help="whose class is demonstrated",
    )
    parser.add_argument("--jobs", type=int, default=2, help="submissions graded at a time")
    options = parser.parse_args(arguments)
    console = Console()
    started = time.monotonic()
    opened: list[tuple[str, Path]] = []

    def wanted(step: str, title: str) -> bool:
        if options.only not in (None, step):
            return False
        console.rule(f"[bold]{title}", align="left")
        return True

    try:
        if wanted("assignments", "Assignments, from solutions/"):
            assignments(console)
            opened.append(("the assignments, a folder a unit", paths.EXERCISES))
        if wanted("book", "The book: executing and building"):
            opened.append(("the book", book()))
        if wanted("demo", "A demonstration class, graded through nbgrader"):
            opened.append(("the class report", demonstration(options.unit, options.jobs)))
            opened.append(("feedback, a page a student", COURSE / "feedback"))
            opened.append(("the gradebook", COURSE / "gradebook.db"))
    except AssignmentError as error:
        Console(stderr=True).print(f"course: {error}", style="bold", highlight=False)
        return 1

    table = Table(title=f"Ready after {time.monotonic() - started:.0f} s. To open:", box=None)
    table.add_column("what")
    table.add_column("where", overflow="fold")
    for what, where in opened:
        table.add_row(what, str(where.relative_to(paths.ROOT)))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
