"""Grades a class: finds what was handed in, runs it safely, and keeps nbgrader's books.

Three stages, each of which survives whatever one submission does:

1. `collect` looks through the folder of submissions, which is only ever read;
2. `marker` repairs a notebook, runs its code once in the sandbox and asks the graders; `crew` does
   so in several processes;
3. `books` puts every student into an nbgrader course: gradebook, autograded notebook, feedback.

Everybody on the class list comes out with a result, if need be one that says why it is 0.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autograder import startup  # isort: split

from autograder import harmless, paths
from autograder.assignment import Assignment, ClassroomError, load
from autograder.books import UNRECORDED, Books, course_seed, prepare
from autograder.collect import Person, Submission, collect
from autograder.crew import grade_all
from autograder.marker import UNJUDGED, Graded, grader_hash
from autograder.results import SubmissionResult

if TYPE_CHECKING:
    from autograder.sandbox import Limits


@dataclass
class Class:
    """A graded class: what `grade` returns and the report shows."""

    assignment: Assignment
    course: Path
    seed: int
    grader: str
    results: list[SubmissionResult]
    seconds_grading: float = 0.0
    seconds_books: float = 0.0

    @property
    def folder(self) -> Path:
        return self.course / "graded" / self.assignment.chapter

    @property
    def complete(self) -> bool:
        """Every submission has a result, and nbgrader knows it."""
        told = (UNJUDGED, UNRECORDED)
        return not any(note.startswith(told) for one in self.results for note in one.notes)

    def write(self) -> None:
        """Write results.json, and details.json with messages and purposes for the report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        head = {"assignment": self.assignment.chapter, "seed": self.seed, "grader": self.grader}
        for name, submissions in (
            ("results.json", [result.to_json() for result in self.results]),
            ("details.json", [result.to_dict() for result in self.results]),
        ):
            text = harmless.json_text({**head, "submissions": submissions})
            (self.folder / name).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, course: Path, chapter: str) -> Class:
        """A class that was graded before."""
        path = course / "graded" / chapter / "details.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            results = [SubmissionResult.from_dict(item) for item in data["submissions"]]
            return cls(load(chapter), course, data["seed"], data["grader"], results)
        except FileNotFoundError as error:
            raise ClassroomError(
                f"{chapter} has not been graded in {course}; "
                f"run python -m autograder grade {chapter} --submitted DIR first."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ClassroomError(f"{path} is damaged; grade the class again.") from error


def usable_cores() -> int:
    """Processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


@startup.collecting_seldom()
def grade(
    assignment: Assignment | str,
    submitted: Path,
    course: Path = paths.BUILD / "course",
    *,
    roster: Sequence[Person] = (),
    due: str | None = None,
    jobs: int = 1,
    seed: int | None = None,
    unsafe: bool = False,
    limits: Limits | None = None,
    cache: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Class:
    """Grade everybody and keep nbgrader's books.

    Args:
        assignment: the assignment or its chapter.
        submitted: the folder of submissions; it is only read.
        course: the nbgrader course to fill.
        roster: the class list; whoever is on it without a notebook is "missing".
        due: when the work was due, such as "2030-01-31 18:00:00 UTC"; kept in the gradebook.
        jobs: how many submissions to run at a time, each in a process of its own.
        seed: of the graders' inputs; the course's own if not given.
        unsafe: run student code without a sandbox.
        limits: what one submission may use.
        cache: take over the results of code that was graded before in this course.
        progress: told the stage ("grading", "books"), how many are done, and how many there are.

    Raises:
        ClassroomError: there is nothing to grade, or no course to grade it in.
        SandboxUnavailable: there is no sandbox and `unsafe` is not set.
    """
    assignment = load(assignment) if isinstance(assignment, str) else assignment
    chapter = assignment.chapter
    course = course.resolve()
    submissions = collect(submitted, chapter, roster)
    release = prepare(course, chapter)
    step = "submitted"
    if submitted.resolve() == course / step or (course / step) in submitted.resolve().parents:
        step = "repaired"  # Never touch what was handed in, even in the course's own folder.
    seed = course_seed(course) if seed is None else seed
    options = {
        "chapter": chapter,
        "seed": seed,
        "unsafe": unsafe,
        "limits": limits,
        "cache": course / "cache" / chapter if cache else None,
        "hide": (submitted.resolve(), course),
    }
    tell = progress or (lambda stage, done, total: None)
    done: dict[str, tuple[Submission, Graded]] = {}
    began = time.monotonic()
    tell("grading", 0, len(submissions))
    for submission, graded in grade_all(submissions, options, release, jobs):
        done[submission.student] = (submission, graded)
        tell("grading", len(done), len(submissions))
    middle = time.monotonic()
    books = Books(course, chapter, step)
    tell("books", 0, len(submissions))
    results = []
    with books.kept_open():
        if due is not None:
            books.due(due)
        books.enter([*(Person(one.student) for one in submissions), *roster])
        for count, one in enumerate(submissions, 1):
            submission, graded = done[one.student]
            books.record(submission, graded, release)
            if books.feedback(one.student) is None:
                graded.result.notes.append(f"{UNRECORDED}: no feedback page could be written")
            results.append(graded.result)
            tell("books", count, len(submissions))
    books.note_lateness(results)
    graded_class = Class(
        assignment,
        course,
        seed,
        grader_hash(chapter),
        results,
        middle - began,
        time.monotonic() - middle,
    )
    graded_class.write()
    books.export(graded_class.folder / "nbgrader.csv")
    return graded_class
