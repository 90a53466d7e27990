"""The settings of a course: due dates, penalties, extensions, attempts, points.

They stand in one commented file, `grading.toml` in the course's folder; every one of them may be
left out, and without any nothing changes. What the file says in general can be said otherwise for
one unit, in a table with its name. Every mistake in the file is one sentence.

    settings = settings_file.of_course(course, assignment)  # or read(file, assignment)
    release = course.prepare(course, unit, settings)
    for one in settings.considered(submissions): ...       # mark; the result is the raw one
    index = settings.chosen(attempts)                      # of one student's (Submission, result)
    result = settings.adjusted(attempts[index][1], assignment)
    result.notes += settings.told([every submission of the student], attempts[index][0])

`autograder.gradebook.due_dates` carries the settings into nbgrader's gradebook.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from autograder.common.errors import ClassroomError
from autograder.grading.collect import Submission
from autograder.judging.results import ExerciseResult, SubmissionResult
from autograder.sandbox.limits import Limits
from autograder.units.assignment import Assignment, Exercise, Question

FILE = "grading.toml"
SECONDS = {"minute": 60.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0}
ABSENT = ("missing", "unreadable")
NO_MARKS = ("db_url", "book", "source", "filed_due")


@dataclass(frozen=True)
class Late:
    """What handing in late costs; by default nothing.

    `percent` of the earned points for every started day or hour, at most `most_percent`, and all
    of them after `nothing_after_days`. Within `grace_minutes` after the due date work is on time;
    beyond them its lateness counts from the due date.
    """

    percent: float = 0.0
    per: str = "day"
    grace_minutes: float = 0.0
    most_percent: float = 100.0
    nothing_after_days: float | None = None

    @property
    def costs(self) -> bool:
        """Whether anything is ever taken off."""
        return self.percent > 0 or self.nothing_after_days is not None


@dataclass(frozen=True)
class Settings:
    """The settings of one unit; the defaults change nothing.

    Attributes:
        due: when the work is due, with its time zone.
        late: what lateness costs.
        extensions: a student's own due date, or the time added to everybody's.
        attempts: how many attempts are allowed; None for any number.
        attempts_count: which of them counts, the "last" or the "best" after penalties.
        extra_attempts: how many more a student has.
        leave_out: exercises and written questions that do not count.
        points: exercises and written questions with other points than they were released with.
        limits: what one submission may cost.
        db_url: where nbgrader's gradebook is, if not in the course's folder.
        book: the address of the edition of the book that feedback and reports lead to.
        source: the file they were read from.
        filed_due: the due date in that file, also if another one took its place.
    """

    due: datetime | None = None
    late: Late = field(default_factory=Late)
    extensions: Mapping[str, datetime | timedelta] = field(default_factory=dict)
    attempts: int | None = None
    attempts_count: str = "last"
    extra_attempts: Mapping[str, int] = field(default_factory=dict)
    leave_out: tuple[str, ...] = ()
    points: Mapping[str, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    db_url: str | None = None
    book: str = ""
    source: Path | None = field(default=None, compare=False)
    filed_due: datetime | None = field(default=None, compare=False)

    @property
    def digest(self) -> str:
        """Changes when a mark could change."""
        data = {name: value for name, value in asdict(self).items() if name not in NO_MARKS}
        text = json.dumps(data, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

    # Points.

    def maxima(self, assignment: Assignment) -> dict[str, float]:
        """The points of every exercise and question of a released assignment; 0: left out."""
        released: list[Exercise | Question] = [*assignment.exercises, *assignment.questions]
        own = {item.name: float(self.points.get(item.name, item.points)) for item in released}
        return own | {name: 0.0 for name in self.leave_out if name in own}

    def adjusted_assignment(self, assignment: Assignment) -> Assignment:
        """The assignment with its changed points, without what is left out, and with the book."""
        return self.with_book(with_points(assignment, self.maxima(assignment)))

    def with_book(self, assignment: Assignment) -> Assignment:
        """The assignment with the course's book, if the course names one."""
        return replace(assignment, book=self.book) if self.book else assignment

    def adjusted(self, result: SubmissionResult, assignment: Assignment) -> SubmissionResult:
        """A raw result with the points that count, as a copy.

        What was earned of an exercise is scaled to its changed points; exercises that are left out
        are gone from the result, its score and its maximum.
        """
        most = self.maxima(assignment)
        exercises = {}
        for name, exercise in result.exercises.items():
            new = most.get(name, exercise.max_points)
            if new > 0:
                exercises[name] = rescaled(exercise, new)
        return replace(
            result,
            score=round(sum(exercise.points for exercise in exercises.values()), 6),
            max_score=sum(most[exercise.name] for exercise in assignment.exercises),
            exercises=exercises,
            repairs=list(result.repairs),
            printed=dict(result.printed),
            notes=list(result.notes),
        )

    # Time.

    def due_by(self, due: datetime | str | None) -> Settings:
        """The same with another due date, such as that of the command line; None keeps it."""
        if due is None:
            return self
        when: Any = due
        if isinstance(due, str):
            from nbgrader.utils import parse_utc

            try:
                when = parse_utc(due).replace(tzinfo=UTC)
            except (ValueError, OverflowError, TypeError, AttributeError) as error:
                raise ClassroomError(
                    f"{due!r} is no date; write it as 2030-01-31 18:00:00 UTC."
                ) from error
        return replace(self, due=when)

    def extension(self, student: str, due: datetime | None = None) -> timedelta | None:
        """The time added to the due date for a student, None for nobody special.

        Args:
            student: the student's name.
            due: the due date to which it is added, if it is not that of the settings.
        """
        own = self.extensions.get(student)
        if own is None or isinstance(own, timedelta):
            return own
        due = due or self.due
        return None if due is None else own - due

    def seconds_late(self, timestamp: str | None, student: str) -> float:
        """How late a submission is; 0 without a due date or a time."""
        if timestamp is None or self.due is None:
            return 0.0
        from nbgrader.utils import parse_utc

        handed_in = parse_utc(timestamp).replace(tzinfo=UTC)
        due = self.due + (self.extension(student) or timedelta())
        return self.lateness((handed_in - due).total_seconds())

    def lateness(self, seconds: float) -> float:
        """The lateness that counts: within the grace time none."""
        return 0.0 if seconds <= self.late.grace_minutes * 60 else max(0.0, seconds)

    def penalty(self, score: float, seconds_late: float) -> float:
        """What is taken off `score`; never below 0 and never above the score.

        Args:
            score: the points earned.
            seconds_late: since the student's own due date, extension included.
        """
        seconds = self.lateness(seconds_late)
        score = max(0.0, score)
        if seconds <= 0:
            return 0.0
        last = self.late.nothing_after_days
        if last is not None and seconds > last * SECONDS["day"]:
            return score
        started = math.ceil(seconds / SECONDS[self.late.per])
        percent = min(self.late.percent * started, self.late.most_percent)
        return min(score, round(score * percent / 100, 6))

    # Attempts.

    def allowed(self, student: str) -> int | None:
        """How many attempts a student has; None for any number."""
        if self.attempts is None:
            return None
        return self.attempts + self.extra_attempts.get(student, 0)

    def considered(self, submissions: Iterable[Submission]) -> list[Submission]:
        """The submissions that can count: of nobody an attempt beyond the allowed number.

        Somebody all of whose attempts are beyond it keeps the first of them.
        """
        firsts: dict[str, int] = {}
        submissions = list(submissions)
        for one in submissions:
            firsts[one.student] = min(one.attempt, firsts.get(one.student, one.attempt))

        def counts(one: Submission) -> bool:
            allowed = self.allowed(one.student)
            return allowed is None or one.attempt <= max(allowed, firsts[one.student])

        return [one for one in submissions if counts(one)]

    def chosen(self, results: Sequence[tuple[Submission, SubmissionResult]]) -> int:
        """Which of one student's attempts counts, by their raw results.

        The last, or the best after penalties (of equals the last). An attempt that could not be
        read counts only if no other could.
        """
        considered = self.considered(submission for submission, _ in results)
        places = [at for at, (one, _) in enumerate(results) if one in considered]
        readable = [at for at in places if results[at][1].status not in ABSENT]

        def worth(at: int) -> tuple[float, int]:
            submission, result = results[at]
            net = 0.0
            if self.attempts_count == "best":
                score = self._score(result)
                late = self.seconds_late(submission.timestamp, submission.student)
                net = score - self.penalty(score, late)
            return (round(net, 6), submission.attempt)

        return max(readable or places, key=worth)

    def _score(self, result: SubmissionResult) -> float:
        """The points that count, by a raw result alone."""
        total = 0.0
        for name, exercise in result.exercises.items():
            if name not in self.leave_out:
                total += rescaled(exercise, self.points.get(name, exercise.max_points)).points
        return total

    def told(self, attempts: Sequence[Submission], counts: Submission) -> list[str]:
        """What a student and the instructor are told about several attempts of one student."""
        if len(attempts) < 2 and counts.attempt == 1:
            return []
        allowed = self.allowed(counts.student)
        considered = self.considered(attempts)
        count = max(one.attempt for one in considered)
        why = ", the best after penalties" if self.attempts_count == "best" else ""
        notes = [f"attempt {counts.attempt} of {count} counts{why if len(considered) > 1 else ''}"]
        for one in attempts:
            if one not in considered:
                verb = "is" if allowed == 1 else "are"
                notes.append(f"attempt {one.attempt} was not graded: {allowed} {verb} allowed")
            elif one is not counts and one.reason:
                notes.append(f"attempt {one.attempt} could not be read: {one.reason}")
        if allowed is not None and counts.attempt > allowed:
            notes.append(f"only {allowed} allowed, but nothing else was handed in")
        return notes

    # What the person who grades is told.

    def remarks(self, students: Iterable[str]) -> list[str]:
        """What the settings say that has no effect: another due date won, nobody is called that."""
        said = self.strangers(students)
        if self.filed_due is not None and self.due != self.filed_due:
            said.insert(
                0,
                f"The due date of the command line, {self.due:%Y-%m-%d %H:%M:%S %Z}, is used, not "
                f"that of {self.source}.",
            )
        if self.extensions and self.due is None:
            said.append(
                f"{self.source or FILE}: extensions count from a due date, and there is none here; "
                "they have no effect unless the gradebook has one."
            )
        return said

    def strangers(self, students: Iterable[str]) -> list[str]:
        """A sentence for each student in the settings whom nobody knows."""
        students = set(students)
        said = []
        for key in ("extensions", "extra_attempts"):
            for name in getattr(self, key):
                if name not in students:
                    close = near(name, students) or "; correct or remove the line."
                    where = self.source or FILE
                    said.append(f"{where}: {key} names {name!r}, who is not in the class{close}")
        return said


def rescaled(exercise: ExerciseResult, most: float) -> ExerciseResult:
    """A copy of an exercise's result out of `most` points: what was earned keeps its share."""
    points = exercise.points
    if most != exercise.max_points:
        share = points / exercise.max_points if exercise.max_points > 0 else 0.0
        points = most if share >= 1 else round(most * share, 6)
    return replace(exercise, points=points, max_points=most, tests=list(exercise.tests))


def with_points(assignment: Assignment, points: Mapping[str, float]) -> Assignment:
    """The assignment with other points; what has 0 of them is left out."""

    def changed(items: tuple[Any, ...]) -> tuple[Any, ...]:
        new = (replace(item, points=points.get(item.name, item.points)) for item in items)
        return tuple(item for item in new if item.points > 0)

    return replace(
        assignment,
        exercises=changed(assignment.exercises),
        questions=changed(assignment.questions),
    )


def near(name: str, known: Iterable[str]) -> str:
    """A question to put after a sentence's first half; empty when no name is near."""
    lowered = {one.lower(): one for one in sorted(known)}
    found = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.6)
    return f"; did you mean {lowered[found[0]]}?" if found else ""
