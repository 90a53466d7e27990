"""`python -m autograder grade ASSIGNMENT --submitted DIR`: grade a class."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autograder.commands.options import COURSE, Unit

if TYPE_CHECKING:
    from rich.console import Console

    from autograder.grading.regrade_diff import Change
    from autograder.judging.results import SubmissionResult


def run(
    assignment: Unit,
    submitted: Annotated[
        Path,
        typer.Option(
            help="The submissions: DIR/STUDENT/ASSIGNMENT/ASSIGNMENT.ipynb, DIR/STUDENT/*.ipynb "
            "or DIR/STUDENT.ipynb. Nothing in it is changed."
        ),
    ],
    course: Annotated[
        Path,
        typer.Option(
            help="The nbgrader course to fill: gradebook, feedback, report.",
            show_default="build/course",
        ),
    ] = COURSE,
    roster: Annotated[
        Path | None,
        typer.Option(help="The class list, a CSV with a column `student`; who is absent is told."),
    ] = None,
    due: Annotated[
        str | None,
        typer.Option(help="When the work was due, such as '2030-01-31 18:00:00 UTC'."),
    ] = None,
    settings: Annotated[
        Path | None,
        typer.Option(
            help="The course's settings: late work, attempts, points.",
            show_default="COURSE/grading.toml",
        ),
    ] = None,
    diff: Annotated[
        bool,
        typer.Option("--diff", help="Show whose marks would change and why, and ask first."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Answer the question of --diff with yes.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Submissions at a time; by default one per core.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Mark on the Dask cluster of this scheduler, such as tcp://host:8786."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the inputs that are drawn; by default the course's own."),
    ] = None,
    cache: Annotated[
        bool, typer.Option(help="Take over the marks of submissions that have not changed.")
    ] = True,
    db_url: Annotated[
        str | None,
        typer.Option(
            help="nbgrader's gradebook, such as postgresql://host/grades.",
            show_default="COURSE/gradebook.db",
        ),
    ] = None,
    unsafe_no_sandbox: Annotated[
        bool,
        typer.Option(
            "--unsafe-no-sandbox",
            help="Run student code without a sandbox: it can then do whatever you can.",
        ),
    ] = False,
) -> None:
    """Grade a class: marks, nbgrader's gradebook, a feedback page each, and a class report.

    Only what has changed since the last time is marked. Exit status 0 means that every submission
    has a result.
    """
    from autograder.grading.worker_pool import WorkerPool, marking_options, usable_cores

    jobs = jobs or min(4, usable_cores())
    # Where somebody has been marked before, it may be that nobody is now.
    everybody = scheduler is None and not (cache and (course / "result_cache.db").exists())
    how = marking_options(assignment, submitted, course, unsafe=unsafe_no_sandbox)
    with (
        WorkerPool(how, jobs) if everybody else nullcontext() as pool,
        ExitStack() as stack,
    ):
        from rich.console import Console
        from rich.text import Text

        from autograder.common import escaping, progress
        from autograder.gradebook import classroom
        from autograder.grading import collect
        from autograder.sandbox.limits import SandboxUnavailable

        console, errors = Console(), Console(stderr=True)
        people = collect.read_roster(roster) if roster is not None else []
        bars = [stack.enter_context(progress.showing_progress())]

        def decide(changes: list[Change], total: int) -> bool:
            stack.close()  # A question and a moving bar do not go together.
            agreed = _decide(changes, total, yes, console)
            if agreed:
                bars.append(stack.enter_context(progress.showing_progress()))
            return agreed

        try:
            graded = classroom.grade(
                assignment,
                submitted,
                course,
                roster=people,
                due=due,
                jobs=jobs,
                seed=seed,
                unsafe=unsafe_no_sandbox,
                cache=cache,
                settings=settings,
                scheduler=scheduler,
                db_url=db_url,
                pool=pool,
                decide=decide if diff else None,
                progress=lambda *now: bars[-1](*now),
            )
        except SandboxUnavailable as error:
            stack.close()
            errors.print(Text(f"Nothing was graded: {error}."), soft_wrap=True)
            raise typer.Exit(2) from None
    if graded is None:
        return
    from autograder.gradebook import database
    from autograder.reports import class_report

    unfinished: list[str] = []
    written = dict(graded.unshown)

    def look(result: SubmissionResult) -> None:
        for note in [*result.notes, *written.get(result.student, [])]:
            if note.startswith(classroom.UNDONE):
                unfinished.append(escaping.one_line(f"{result.student}: {note}", 1000))

    path = class_report.write(graded, console, look)
    if graded.unshown:
        graded.write()
    console.print()
    for label, target in (
        ("Class report", path),
        ("Marks", graded.folder / "grades.csv"),
        ("Feedback", graded.course / "feedback"),
        ("Gradebook", database.shown(database.url_of(graded.course))),
    ):
        console.print(Text(f"{label:<13}{target}"), soft_wrap=True)
    for remark in graded.remarks:
        errors.print(Text(escaping.one_line(remark, 2000)), soft_wrap=True)
    for line in unfinished:
        errors.print(Text(line, style="bold"), soft_wrap=True)
    if unfinished:
        raise typer.Exit(1)


def _decide(changes: list[Change], total: int, yes: bool, console: Console) -> bool:
    """Show the changes, and ask whether they are to be written."""
    from rich.prompt import Confirm
    from rich.text import Text

    from autograder.grading import regrade_diff

    console.print()
    regrade_diff.show(changes, total, console)
    if yes:
        return True
    if not changes:
        said = "Nothing was written, for no marks change."
    elif not sys.stdin.isatty():
        said = "Nothing was written; add --yes to write these marks."
    elif Confirm.ask("Write these marks?", console=console, default=False):
        return True
    else:
        said = "Nothing was written."
    said += " What was marked is kept: grading without --diff writes it and marks nobody again."
    console.print(Text(said), soft_wrap=True)
    return False
