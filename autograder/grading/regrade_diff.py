"""Whose marks change when a class is graded again, and why: what `grade --diff` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autograder.common.cards import number
from autograder.grading.result_cache import Listed
from autograder.judging.results import SubmissionResult

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ExerciseChange:
    """One exercise whose points change; None where it does not count, before or now."""

    name: str
    old: float | None
    new: float | None
    message: str = ""


@dataclass(frozen=True)
class Change:
    """One student whose marks change: the graders' points less the penalty for being late.

    Args:
        student: who.
        old: points as they were written last; None for somebody who had none.
        new: points as they would be.
        most: the points that could be had, before and now.
        statuses: of the submission, before ("" without any) and now.
        why: what changed since, in a few words each.
        exercises: those whose points change.
    """

    student: str
    old: float | None
    new: float
    most: tuple[float, float]
    statuses: tuple[str, str]
    why: tuple[str, ...]
    exercises: tuple[ExerciseChange, ...]


def change_of(
    before: Listed | None, result: SubmissionResult, penalty: float, settings: str
) -> Change | None:
    """What changes for a student; None if it is nothing.

    Args:
        before: the result as it was written last.
        result: the new one, with the course's settings applied.
        penalty: the new one, in points.
        settings: the digest of the course's settings now.
    """
    new = round(max(0.0, result.score - penalty), 6)
    if before is None:
        exercises = _exercises({}, result)
        statuses = ("", result.status)
        return Change(
            result.student, None, new, (0.0, result.max_score), statuses, ("new",), exercises
        )
    past = before.result
    old = round(max(0.0, past.score - before.penalty), 6)
    exercises = _exercises({name: one.points for name, one in past.exercises.items()}, result)
    same = (old, past.max_score, past.status) == (new, result.max_score, result.status)
    if same and not exercises:
        return None
    why = [
        reason
        for reason, changed in (
            ("handed in nothing now", result.status == "missing" != past.status),
            ("submission changed", past.submission != result.submission != ""),
            ("another attempt counts", past.attempt != result.attempt),
            ("graders changed", past.grader != result.grader),
            ("seed changed", past.seed != result.seed),
            ("settings changed", before.settings != settings),
        )
        if changed
    ]
    return Change(
        result.student,
        old,
        new,
        (past.max_score, result.max_score),
        (past.status, result.status),
        tuple(why) or ("marked again",),
        exercises,
    )


def _exercises(old: dict[str, float], result: SubmissionResult) -> tuple[ExerciseChange, ...]:
    new = {name: one.points for name, one in result.exercises.items()}
    found = []
    for name in {**new, **old}:
        before, now = old.get(name), new.get(name)
        if before != now and (old or now):
            message = result.exercises[name].message if name in new else ""
            found.append(ExerciseChange(name, before, now, message))
    return tuple(found)


def show(changes: list[Change], total: int, console: Console) -> None:
    """Print a table of the changes. What students wrote reaches the terminal as plain text only."""
    from rich.table import Table
    from rich.text import Text

    from autograder.common.escaping import one_line

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Student", max_width=30, overflow="ellipsis", no_wrap=True)
    for heading in ("Before", "Now"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Why")
    for change in changes:
        why = list(change.why)
        if change.statuses[0] != change.statuses[1]:
            why.append(" → ".join(filter(None, change.statuses)).replace("_", " "))
        if change.old is not None and change.most[0] != change.most[1]:
            why.append(f"maximum {number(change.most[0])} → {number(change.most[1])}")
        risen = change.old is None or change.new >= change.old
        table.add_row(
            Text(one_line(change.student, 200), style="bold"),
            Text(_points(change.old)),
            Text(number(change.new), style="green" if risen else "red"),
            Text(", ".join(why)),
        )
        for one in change.exercises:
            table.add_row(
                Text(f"  {one_line(one.name, 100)}", style="dim"),
                Text(_points(one.old), style="dim"),
                Text(_points(one.new), style="dim"),
                Text(one_line(one.message, 160), style="dim"),
            )
    if changes:
        console.print(table)
    same = total - len(changes)
    if same:
        people = "1 student keeps their marks." if same == 1 else f"{same} students keep theirs."
        console.print(Text(people, style="dim"), soft_wrap=True)


def _points(points: float | None) -> str:
    return "–" if points is None else number(points)
