"""Grades a class: finds what was handed in, runs it safely, and keeps nbgrader's books.

Four stages, each of which survives whatever one submission does:

1. `collect` looks through the folder of submissions, which is only ever read;
2. `result_cache` knows what was marked before, with what, and whether anything has changed since;
3. `marker` repairs a notebook, runs its code once in the sandbox and asks the graders;
   `worker_pool` has it done in processes of their own, `cluster` on several machines;
4. `course` puts every student into an nbgrader course: gradebook, autograded notebook, feedback.
   Whoever is marked goes into the books while others are being marked.

Everybody on the class list comes out with a result, if need be one that says why it is 0. Killed at
any moment, the next start goes on where the result cache ends.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from autograder.common import escaping, paths
from autograder.common.cards import number
from autograder.common.errors import ClassroomError
from autograder.common.escaping import reason_of
from autograder.common.files import naming_disk_errors, replacing, require_room
from autograder.gradebook.course import UNRECORDED, UNSHOWN, Books, course_seed, prepare
from autograder.grading import settings_file, worker_pool
from autograder.grading.collect import Person, Submission, collect
from autograder.grading.marker import UNJUDGED, Graded, empty_result, grader_hash
from autograder.grading.regrade_diff import Change, change_of
from autograder.grading.result_cache import ResultCache, Results, alone, digest_of
from autograder.grading.settings import Settings
from autograder.grading.worker_pool import WorkerPool, marking_options
from autograder.judging.results import SubmissionResult
from autograder.sandbox import launcher, limits
from autograder.units.assignment import Assignment, load

UNDONE = (UNJUDGED, UNRECORDED, UNSHOWN)  # Notes on what is to be done again begin so.


@dataclass
class Class:
    """A graded class: what `grade` returns and the report shows.

    Args:
        assignment: with the course's settings applied, as the results are.
        results: in the order of the class; those of `grade` and `read` are in the result cache and
            come from there one by one.
        seconds_grading: spent waiting for marks.
        seconds_books: spent on gradebook, notebooks and feedback.
        marked: how many submissions were run this time; the others had not changed.
        remarks: what the person who grades should know besides, in sentences.
        unshown: notes on what could not be shown of whom, for results.json.
    """

    assignment: Assignment
    course: Path
    seed: int
    grader: str
    results: Sequence[SubmissionResult]
    seconds_grading: float = 0.0
    seconds_books: float = 0.0
    marked: int = 0
    remarks: list[str] = field(default_factory=list)
    unshown: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @property
    def folder(self) -> Path:
        return self.course / "graded" / self.assignment.unit

    @property
    def complete(self) -> bool:
        """Every submission has a result, and nbgrader knows it."""
        return not any(note.startswith(UNDONE) for one in self.results for note in one.notes)

    def write(self) -> None:
        """Write results.json; results that are not in the result cache yet go there, for `read`."""
        if not isinstance(self.results, Results):
            with ResultCache(self.course) as cache:
                rows = ((result, 0.0) for result in self.results)
                cache.write_class(self.assignment, self.seed, self.grader, "", rows)
        head = {"assignment": self.assignment.unit, "seed": self.seed, "grader": self.grader}
        with (
            replacing(self.folder / "results.json") as path,
            path.open("w", encoding="utf-8", errors="replace") as file,
        ):
            # One submission at a time: a class may be large.
            text = escaping.json_text({**head, "submissions": []})
            file.write(text.removesuffix("]\n}"))
            for count, result in enumerate(self.results):
                result.notes += self.unshown.get(result.student, [])
                try:
                    text = escaping.json_text([result.to_json()])
                except Exception as error:  # The others are written.
                    require_room(self.folder)
                    note = f"{UNSHOWN} ({reason_of(error)})"
                    self.unshown.setdefault(result.student, []).append(note)
                    marks = result.student, result.status, result.score, result.max_score
                    result = SubmissionResult(*marks, notes=[note])
                    text = escaping.json_text([result.to_json()])
                text = text.removeprefix("[").removesuffix("\n]").replace("\n", "\n ")
                file.write(("," if count else "") + text)
            file.write(("\n ]" if len(self.results) else "]") + "\n}\n")

    @classmethod
    def read(cls, course: Path, unit: str) -> Class:
        """A class that was graded before."""
        load(unit)  # What is no unit, such as a chapter, is a sentence.
        head = None
        if (course / "result_cache.db").is_file():
            with ResultCache(course) as cache:
                head = cache.head(unit)
        if head is None:
            raise ClassroomError(
                f"{unit} has not been graded in {course}; "
                f"run python -m autograder grade {unit} --submitted DIR first."
            )
        assignment, seed, grader = head
        return cls(assignment, course, seed, grader, Results(course, unit))


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
    limits: limits.Limits | None = None,
    cache: bool = True,
    settings: Path | None = None,
    scheduler: str | None = None,
    db_url: str | None = None,
    pool: WorkerPool | None = None,
    decide: Callable[[list[Change], int], bool] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Class | None:
    """Grade everybody and keep nbgrader's books.

    Args:
        assignment: the assignment or its unit.
        submitted: the folder of submissions; it is only read.
        course: the nbgrader course to fill.
        roster: the class list; whoever is on it without a notebook is "missing".
        due: when the work was due, such as "2030-01-31 18:00:00 UTC"; kept in the gradebook.
        jobs: how many submissions to run at a time, each in a process of its own.
        seed: of the graders' inputs; the course's own if not given.
        unsafe: run student code without a sandbox.
        limits: what one submission may use, if not what the settings say.
        cache: take over the marks of submissions for which nothing has changed; without, everybody
            is marked anew.
        settings: the file with the course's settings, if not COURSE/grading.toml.
        scheduler: the address of a Dask scheduler whose workers mark, in place of `jobs`.
        db_url: nbgrader's gradebook, if not COURSE/gradebook.db.
        pool: one that was started with `marking_options`; without, another is if need be.
        decide: shown what would change, and the number of students, after everybody is marked and
            before anything is written; if it says no, nothing is, and the next start marks nobody
            again.
        progress: told the stage ("grading", "books"), how many are done, and how many there are.

    Returns:
        The class; None if `decide` said no.

    Raises:
        ClassroomError: there is nothing to grade, no course to grade it in, or somebody is at it.
        SandboxUnavailable: there is no sandbox and `unsafe` is not set.
    """
    assignment = load(assignment) if isinstance(assignment, str) else assignment
    unit = assignment.unit
    course = course.resolve()
    remarks: list[str] = []
    submissions = collect(submitted, unit, roster, remarks)
    runnable = any(one.runnable for one in submissions)
    if not unsafe and scheduler is None and runnable:
        launcher.require_sandbox()  # Now, before a course is made and PyTorch imported.
    require_room(Path(tempfile.gettempdir()))  # Without it the sandbox would not say what it lacks.
    if pool is not None and not runnable:
        pool.close()
        pool = None
    policy = settings_file.of_course(course, assignment, settings).due_by(due)
    db_url = db_url or policy.db_url
    with ExitStack() as stack:
        stack.enter_context(naming_disk_errors(course))
        stack.enter_context(alone(course))
        results = stack.enter_context(ResultCache(course))
        results.check()
        seed = course_seed(course) if seed is None else seed
        limits = limits or policy.limits
        options = marking_options(unit, submitted, course, unsafe=unsafe)
        options |= {"seed": seed, "limits": limits}
        work = _Work(results, assignment, policy, submissions, options)
        if not cache:
            work.forget()
        if pool is not None:
            pool.begin(seed, limits)
        if decide is None:
            release = prepare(course, unit, policy, db_url=db_url)
        else:
            release = _release(course, unit)
        tell = progress or (lambda stage, done, total: None)

        def marking(left: Sequence[Submission]) -> Iterator[tuple[Submission, Graded]]:
            if scheduler is None:
                return worker_pool.grade_all(left, options, release, jobs, pool)
            from autograder.grading import cluster

            return cluster.grade_all(left, options, release, scheduler)

        finished = work.mark(marking, tell)
        if decide is not None:
            for _ in finished:
                pass
            if not decide(list(work.changes()), len(work.students)):
                return None
            release = prepare(course, unit, policy, db_url=db_url)
            finished = iter(work.students)
        step = "submitted"
        if submitted.resolve() == course / step or (course / step) in submitted.resolve().parents:
            step = "repaired"  # Never touch what was handed in, even in the course's own folder.
        remarks += [*policy.remarks(work.students), *work.gone()]
        books = Books(course, unit, step, db_url=db_url)
        with books.alone():
            books.enter([*(Person(student) for student in work.students), *roster])
            recording = _Recording(work, books, release)
            for count, student in enumerate(finished, 1):
                recording.record(student)
                tell("books", count, len(work.students))
            told = books.settle(policy)
        described = policy.adjusted_assignment(assignment)
        results.write_class(described, seed, work.grader, policy.digest, recording.rows(told))
        graded_class = Class(
            described,
            course,
            seed,
            work.grader,
            Results(course, unit),
            work.seconds,
            recording.seconds,
            work.marked,
            remarks,
        )
        graded_class.write()
        try:
            with replacing(graded_class.folder / "nbgrader.csv") as path:
                books.export(path)
        except Exception as error:  # The marks are in the gradebook and in results.json.
            require_room(course)
            remarks.append(f"nbgrader.csv could not be written ({reason_of(error)}).")
    return graded_class


def _lost(assignment: Assignment, submission: Submission, error: Exception) -> SubmissionResult:
    """What is said of a student whose marks cannot be kept or read: marked again another time."""
    result = empty_result(
        assignment, submission.student, "crashed", "This submission could not be graded."
    )
    result.notes = [*submission.notes, f"{UNJUDGED} the submission ({reason_of(error)})"]
    return result


def _release(course: Path, unit: str) -> NotebookNode:
    """The released notebook, without changing a course that is there already."""
    if not (course / "release" / unit).is_dir():
        return prepare(course, unit)
    with tempfile.TemporaryDirectory(prefix="release-") as scratch:
        return prepare(Path(scratch), unit)


class _Work:
    """What is to be marked, what was marked before, and what it comes to.

    Args:
        cache: of the course.
        assignment: as it was released.
        settings: of the course.
        submissions: everybody's, with all attempts.
        options: those of `Marker`.
    """

    def __init__(
        self,
        cache: ResultCache,
        assignment: Assignment,
        settings: Settings,
        submissions: Sequence[Submission],
        options: dict[str, Any],
    ) -> None:
        self.cache = cache
        self.assignment = assignment
        self.unit = assignment.unit
        self.settings = settings
        self.seed: int = options["seed"]
        self.grader = grader_hash(self.unit)
        self.handed_in: dict[str, list[Submission]] = {}
        for one in submissions:
            self.handed_in.setdefault(one.student, []).append(one)
        limits = options["limits"]
        how = [self.grader, self.seed, options["unsafe"], asdict(limits)]
        self.attempts = {
            student: settings.considered(attempts) for student, attempts in self.handed_in.items()
        }
        self.keys = {
            (one.student, one.attempt): digest_of(how, _state(one))
            for attempts in self.attempts.values()
            for one in attempts
        }
        self.before = self.known = cache.keys(self.unit)
        self.seconds = 0.0
        self.marked = 0

    @property
    def students(self) -> list[str]:
        """Everybody, in the order in which they are listed."""
        return list(self.handed_in)

    def forget(self) -> None:
        """Mark everybody anew."""
        self.known = {}

    @property
    def left(self) -> list[Submission]:
        """What is to be marked: everything for which something has changed."""
        return [
            one
            for attempts in self.attempts.values()
            for one in attempts
            if self.known.get(_place(one)) != self.keys[_place(one)]
        ]

    def mark(
        self,
        marking: Callable[[Sequence[Submission]], Iterator[tuple[Submission, Graded]]],
        tell: Callable[[str, int, int], None],
    ) -> Iterator[str]:
        """Mark what has changed, and keep it; yields students, each when all attempts have marks.

        Those who are marked come first, as they are finished: their entry in the books takes place
        while others are being marked.
        """
        left = self.left
        total = len(self.keys)
        waiting: dict[str, int] = {}
        for one in left:
            waiting[one.student] = waiting.get(one.student, 0) + 1
        others = [student for student in self.students if student not in waiting]
        tell("grading", total - len(left), total)
        began = time.monotonic()
        for submission, graded in marking(left) if left else ():
            try:
                self._keep(submission, graded)
            except Exception as error:  # The others are graded.
                require_room(self.cache.path.parent)
                self._keep(submission, Graded(_lost(self.assignment, submission, error), ""))
            self.marked += 1
            tell("grading", total - len(left) + self.marked, total)
            waiting[submission.student] -= 1
            if not waiting[submission.student]:
                self.seconds += time.monotonic() - began
                yield submission.student
                began = time.monotonic()
        self.seconds += time.monotonic() - began
        yield from others

    def _keep(self, submission: Submission, graded: Graded) -> None:
        result = graded.result
        result.grader, result.seed = self.grader, self.seed
        result.submission, result.attempt = submission.digest, submission.attempt
        if result.status == "missing" and _place(submission) in self.before:
            before = self.cache.result(self.unit, *_place(submission))
            if before.submission:
                result.notes.append(
                    f"a notebook that earned {number(before.score)} points was there before"
                )
        judged = not any(note.startswith(UNJUDGED) for note in result.notes)
        key = self.keys[_place(submission)] if judged else ""
        self.cache.keep(self.unit, key, result, graded.notebook)

    def outcome(self, student: str) -> tuple[Submission, SubmissionResult]:
        """The attempt that counts, and its result with the settings applied."""
        attempts = self.attempts[student]
        results = [(one, self.cache.result(self.unit, student, one.attempt)) for one in attempts]
        submission, raw = results[self.settings.chosen(results)]
        result = self.settings.adjusted(raw, self.assignment)
        result.notes += self.settings.told(self.handed_in[student], submission)
        return submission, result

    def penalty(self, submission: Submission, result: SubmissionResult) -> float:
        """What the settings take off the graders' points for being late.

        nbgrader's gradebook has the penalty that counts: it knows marks given by hand too.
        """
        late = self.settings.seconds_late(submission.timestamp, submission.student)
        return self.settings.penalty(result.score, late)

    def changes(self) -> Iterator[Change]:
        """Whose marks are other than those that were written last."""
        for student in self.students:
            submission, result = self.outcome(student)
            penalty = self.penalty(submission, result)
            before = self.cache.listed(self.unit, student)
            change = change_of(before, result, penalty, self.settings.digest)
            if change is not None:
                yield change

    def gone(self) -> Iterator[str]:
        """A sentence about those who were in the class before, and are not now."""
        gone = [name for name in self.cache.students(self.unit) if name not in self.handed_in]
        if gone:
            verb = "is" if len(gone) == 1 else "are"
            yield (
                f"{', '.join(gone)} {verb} neither in the folder nor on the class list any more: "
                "not in this report, while the marks stay in the gradebook."
            )


def _place(submission: Submission) -> tuple[str, int]:
    return submission.student, submission.attempt


def _state(submission: Submission) -> list[Any]:
    """What the marks of a submission depend on."""
    there = submission.path is not None
    return [there, submission.digest, submission.reason, submission.repairs, submission.notes]


class _Recording:
    """Puts students into nbgrader's books, if what stands there is not what should.

    Args:
        work: what is marked.
        books: of the course.
        release: the notebook that was handed out.
    """

    def __init__(self, work: _Work, books: Books, release: NotebookNode) -> None:
        self.work = work
        self.books = books
        self.release = release
        self.recorded = work.cache.recorded(work.unit)
        self.entries = books.entries()
        self.failures: dict[str, list[str]] = {}
        self.seconds = 0.0

    def record(self, student: str) -> None:
        """Record a student who is marked; what fails is kept for the result's notes."""
        began = time.monotonic()
        try:
            self._record(student)
        except Exception as error:  # The others are entered.
            require_room(self.books.course)
            self.failures[student] = [f"{UNRECORDED} ({reason_of(error)})"]
        self.seconds += time.monotonic() - began

    def _record(self, student: str) -> None:
        submission, result = self.work.outcome(student)
        shown = {**result.to_dict(), "seconds": 0, "grader": "", "seed": 0}
        state = digest_of(shown, submission.timestamp, self.work.settings.digest)
        entry = self.entries.get(student)
        known = entry is not None and self.recorded.get(student) == (state, entry)
        if not known or not self._has_files(student):
            self._enter(submission, result, state)

    def _enter(self, submission: Submission, result: SubmissionResult, state: str) -> None:
        cache, unit, student = self.work.cache, self.work.unit, submission.student
        notebook = cache.notebook(unit, student, submission.attempt)
        self.books.record(submission, Graded(result, notebook), self.release)
        failed = [note for note in result.notes if note.startswith(UNRECORDED)]
        if self.books.feedback(student) is None:
            failed.append(f"{UNRECORDED}: no feedback page could be written")
        entry = self.books.entries(student).get(student)
        if failed or entry is None:
            self.failures[student] = failed or [f"{UNRECORDED} (they are not in the gradebook)"]
        else:
            cache.record(unit, student, state, entry)

    def _has_files(self, student: str) -> bool:
        unit, course = self.work.unit, self.books.course
        return all(
            (course / step / student / unit / name).is_file()
            for step, name in (("autograded", f"{unit}.ipynb"), ("feedback", f"{unit}.html"))
        )

    def rows(self, told: dict[str, list[str]]) -> Iterable[tuple[SubmissionResult, float]]:
        """Everybody's result as it is written, with what is told of them, and the penalty."""
        for student in self.work.students:
            try:
                submission, result = self.work.outcome(student)
                penalty = self.work.penalty(submission, result)
            except Exception as error:  # The others are listed.
                submission = self.work.attempts[student][0]
                result, penalty = _lost(self.work.assignment, submission, error), 0.0
            notes = [*result.notes, *self.failures.get(student, []), *told.get(student, [])]
            yield replace(result, notes=notes), penalty
