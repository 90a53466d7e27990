"""The settings of a course: read without surprises, fair to everybody, and in nbgrader's books."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from nbgrader.api import Gradebook
from nbgrader.preprocessors import AssignLatePenalties

from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.gradebook import classroom, due_dates
from autograder.gradebook.course import Books, prepare, quiet_database
from autograder.grading import repair, settings_file
from autograder.grading.collect import Submission
from autograder.grading.marker import Graded
from autograder.grading.settings import FILE, Late, Settings, rescaled, with_points
from autograder.judging.results import ExerciseResult, SubmissionResult
from autograder.reports import class_report
from autograder.sandbox.limits import Limits
from autograder.units.assignment import load
from tests.autograder.helpers import nbgrader, put

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)
FIRST = ASSIGNMENT.names[0]
DUE = datetime(2030, 1, 31, 17, tzinfo=UTC)
DAY, HOUR = 86400.0, 3600.0


def read(folder: Path, text: str) -> Settings:
    file = folder / FILE
    file.write_text(text, encoding="utf-8")
    return settings_file.read(file, ASSIGNMENT)


def raw(student: str = "ada", share: float = 1.0, **points: float) -> SubmissionResult:
    """A raw result: `share` of every exercise, but for those with points of their own."""
    exercises = {
        one.name: ExerciseResult(one.name, points.get(one.name, share * one.points), one.points)
        for one in ASSIGNMENT.exercises
    }
    score = sum(one.points for one in exercises.values())
    return SubmissionResult(student, "graded", score, ASSIGNMENT.points, exercises=exercises)


# ---------------------------------------------------------------------------------------------
# Reading


class TestReading:
    def test_without_a_file_nothing_changes(self, tmp_path):
        found = settings_file.of_course(tmp_path, ASSIGNMENT)
        assert found == Settings()
        assert found.adjusted_assignment(ASSIGNMENT) == ASSIGNMENT
        assert found.adjusted(raw(share=0.3), ASSIGNMENT) == raw(share=0.3)
        assert found.penalty(40, 30 * DAY) == 0

    def test_the_commented_default_changes_nothing(self):
        found = settings_file.read(paths.PACKAGE / "grading" / FILE, ASSIGNMENT)
        assert found == Settings()

    def test_every_line_of_the_commented_default_can_be_used(self, tmp_path):
        """What is switched off in the file is right once it is switched on."""
        text = (paths.PACKAGE / "grading" / FILE).read_text(encoding="utf-8")
        lines = [
            re.sub(r"^# ", "", line)
            for line in text.splitlines()
            if re.match(r"# (\[[\w.-]+\]$|[\w\".]+ = )", line)
        ]
        found = read(tmp_path, "\n".join(lines))
        assert len(lines) == 27
        assert found == Settings(
            due=DUE,
            late=Late(10, "day", 15, 50, 7),
            extensions={
                "ada": timedelta(weeks=1),
                "grace.hopper": timedelta(days=1, hours=12),
                "1234567": datetime(2030, 2, 7, 17, tzinfo=UTC),
            },
            attempts=3,
            attempts_count="best",
            extra_attempts={"ada": 1},
            leave_out=("causal_mask", "why_scale"),
            points={FIRST: 4.0},
            limits=Limits(),
            db_url="postgresql://user@host/gradebook",
            book="https://example.org/book",
        )

    def test_what_a_submission_may_cost_is_divided_between_its_code_and_its_answers(self, tmp_path):
        text = f"[limits]\nseconds = 60\nmegabytes = 900\n[{UNIT}.limits]\nseconds = 30\n"
        limits = read(tmp_path, text).limits
        assert limits.seconds_total == 30
        assert (limits.memory_bytes >> 20, limits.judging_bytes >> 20) == (450, 450)

    def test_an_assignments_table_wins_over_the_general_one(self, tmp_path):
        found = read(
            tmp_path,
            'attempts = 2\n[late]\npercent = 10\nmost_percent = 40\n[extensions]\nada = "1 day"\n'
            f'eve = "1 day"\n[{UNIT}]\nattempts = 3\n[{UNIT}.late]\npercent = 5\n'
            f'[{UNIT}.extensions]\nada = "2 days"\n[bert-model]\nattempts = 9\n',
        )
        assert found.attempts == 3
        assert found.late == Late(percent=5, most_percent=40)
        assert found.extensions == {"ada": timedelta(days=2), "eve": timedelta(days=1)}

    def test_a_file_from_another_system(self, tmp_path):
        (tmp_path / FILE).write_bytes("\ufeffattempts = 2\r\n".encode())
        assert settings_file.of_course(tmp_path, ASSIGNMENT).attempts == 2

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("latte = 1", "unknown setting latte; did you mean late?"),
            (
                "[attention-self_attention]\nleaveout = []",
                "unknown setting leaveout in [attention-self_attention]; did you mean ",
            ),
            (
                "[late]\npercentage = 3",
                "unknown setting percentage in [late]; did you mean percent",
            ),
            ("[atention-scores]\nattempts = 1", "did you mean attention-scores?"),
            # The name of a chapter, as assignments were called once.
            ("[attention]\nattempts = 1", "unknown setting attention; did you mean attention-"),
            ("xyzzy = 1", "the settings are due, late"),
            ("attention-self_attention = 3", "must be a table"),
            ("leave_out = ['causal_mask']", "below [attention-self_attention]"),
            ("[attention-self_attention]\ndb_url = 'sqlite:///x'", "above all tables"),
            ("due = 2030-01-31T18:00:00", "due = 2030-01-31T18:00:00 has no time zone"),
            ("due = 2030-01-31", "no date with time and time zone"),
            ("due = 18:00:00", "no date with time and time zone"),
            ("due = '2030-01-31 18:00:00'", "no date with a time zone"),
            ("due = '2030-01-31 18:00:00 Nowhere'", "no date with time and time zone"),
            ("due = '2030-13-31 18:00:00 UTC'", "no date with time and time zone"),
            ("due = 0001-01-01T00:00:00+10:00", "too far away"),
            ("due = 3", "no date"),
            ("late = 10", "write [late] and below it percent = 10"),
            ("late.percent = -1", "late.percent = -1 must be a number from 0 to 100"),
            ("late.percent = nan", "late.percent = NaN must be a number"),
            ("late.percent = 101", "from 0 to 100"),
            ("late.percent = true", "late.percent = true must be a number"),
            ("late.percent = '10'", "must be a number"),
            ("late.grace_minutes = inf", "must be a number"),
            ("late.nothing_after_days = -0.5", "must be a number"),
            ("late.per = 'week'", 'must be "day" or "hour"'),
            ("late.per = []", 'must be "day" or "hour"'),
            ("limits = 180", "write [limits] and below it seconds = 180"),
            ("limits.seconds = 1", "limits.seconds = 1 must be a number from 10"),
            ("limits.megabytes = 100", "must be a number from 600"),
            ("limits.minutes = 3", "unknown setting minutes in [limits]"),
            ("attempts = 0", "whole number from 1"),
            ("attempts = 2.0", "whole number"),
            ("attempts = true", "whole number"),
            ("attempts_count = 'first'", 'must be "last" or "best"'),
            ("extra_attempts.ada = 1", "add attempts = 1"),
            ("attempts = 1\nextra_attempts.ada = -1", "extra_attempts.ada = -1"),
            ("extensions = ['ada']", "a line a student"),
            ("extensions = [12345]", "a line a student"),
            ("extensions.ada = 3", 'write "3 days"'),
            ("extensions.ada = '3'", 'write "3 days"'),
            ("extensions.ada = '-3 days'", 'write "3 days"'),
            ("extensions.ada = '0 days'", 'write "3 days"'),
            ("extensions.ada = '9999999 days'", 'write "3 days"'),
            ("extensions.ada = 2030-02-03", "time zone"),
            ("extensions.ada.lovelace = '3 days'", "with a dot in it into quotes"),
            ("extensions.12.5 = '3 days'", "with a dot in it into quotes"),
            ("extensions.' ' = '3 days'", "names nobody"),
            ("extensions.ada = '1 day'\nextensions.ada = '2 days'", "the same name is given twice"),
            ("extensions.'a[1]' = '1 day'\nextensions.'a(1)' = '2 days'", "names a(1) twice"),
            (
                "due = 2030-01-31T18:00:00Z\nextensions.ada = 2030-01-30T18:00:00Z",
                "is not after the due date",
            ),
            (
                "[attention-self_attention]\nleave_out = ['causal_masks']",
                "did you mean causal_mask?",
            ),
            ("[attention-self_attention]\nleave_out = ['qqqq']", f"it has {FIRST}"),
            ("[attention-self_attention]\nleave_out = 'causal_mask'", "must be a list"),
            ("[attention-self_attention]\nleave_out = [1]", "must name an exercise"),
            (
                f"[attention-self_attention]\nleave_out = {json.dumps(ASSIGNMENT.names)}",
                "keep at least one",
            ),
            ("[bert-model]\nleave_out = ['causal_mask']", "bert-model has no exercise"),
            ("[attention-self_attention.points]\ncausalmask = 3", "did you mean causal_mask?"),
            ("[attention-self_attention.points]\ncausal_mask = 0", "leave_out"),
            ("[attention-self_attention.points]\ncausal_mask = -2", "must be a number"),
            ("[attention-self_attention.points]\ncausal_mask = nan", "must be a number"),
            ("[attention-self_attention.points]\ncausal_mask = '3'", "must be a number"),
            ("[attention-self_attention]\npoints = 3", "an exercise a line"),
            (
                "[attention-self_attention]\nleave_out = ['causal_mask']\npoints.causal_mask = 3",
                "left out as well",
            ),
            ("[bert-model]\nattempts = 0", "bert-model.attempts = 0"),
            ("attempts = ", "cannot be read"),
            ("attempts = 1\nattempts = 2", "the same name is given twice"),
            ("x" * 5000 + "=" + "[" * 5000, "cannot be read"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, tmp_path, text, said):
        with pytest.raises(ClassroomError) as caught:
            read(tmp_path, text)
        message = str(caught.value)
        assert said in message
        assert str(tmp_path / FILE) in message
        assert "\n" not in message
        assert message.endswith((".", "?"))
        assert len(message) < 1500

    def test_a_database_is_refused_without_showing_its_password(self, tmp_path):
        with pytest.raises(ClassroomError, match="db_url") as caught:
            read(tmp_path, 'db_url = "postgres: secret"')
        assert "secret" not in str(caught.value)

    def test_a_file_that_cannot_be_read(self, tmp_path):
        with pytest.raises(ClassroomError, match="cannot be opened"):
            settings_file.read(tmp_path / "none.toml", ASSIGNMENT)
        with pytest.raises(ClassroomError, match="cannot be opened"):
            settings_file.read(tmp_path, ASSIGNMENT)
        (tmp_path / FILE).write_bytes(b"attempts = 1 # \xff\xfe")
        with pytest.raises(ClassroomError, match="save it as UTF-8"):
            settings_file.read(tmp_path / FILE, ASSIGNMENT)

    keys = st.sampled_from(
        [
            *("due", "late", "late.percent", "late.per", "late.grace_minutes", "extensions"),
            *("extensions.ada", "extensions.'a\\tb'", 'extensions."\\n"', "attempts"),
            *(
                "attempts_count",
                "extra_attempts.ada",
                "extra_attempts",
                "attention-self_attention.points",
            ),
            *(
                "attention-self_attention.leave_out",
                "attention-self_attention.points.causal_mask",
                "attention-self_attention.late",
                "bert-model",
            ),
            *(
                "bert-model.late",
                "db_url",
                "'a\\nb'",
                '"\\u0000"',
                "attention-self_attention",
                "gpt-model.due",
            ),
        ]
    )
    values = st.one_of(
        st.sampled_from(["nan", "inf", "-inf", "true", "[]", "{}", "{x = 1}", "2030-01-31"]),
        st.sampled_from(["'1 day'", "'best'", "'hour'", "2030-01-31T18:00:00Z", "07:00:00"]),
        st.sampled_from(["['causal_mask']", "[[1]]", "['\\n']", "9999-12-31T23:59:59-14:00"]),
        st.integers().map(str),
        st.floats(allow_nan=False, allow_infinity=False).map(repr),
        st.text(max_size=20).map(json.dumps),
    )

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(lines=st.lists(st.tuples(keys, values), min_size=1, max_size=4))
    def test_no_file_is_more_than_refused(self, tmp_path, lines):
        said = ""
        try:
            found = read(tmp_path, "\n".join(f"{key} = {value}" for key, value in lines))
        except ClassroomError as error:
            said, found = str(error), Settings()
        assert "\n" not in said
        assert 0 <= found.penalty(10, 1e6) <= 10
        assert len(found.digest) == 16


# ---------------------------------------------------------------------------------------------
# What they mean


lates = st.builds(
    Late,
    percent=st.floats(0, 100),
    per=st.sampled_from(["day", "hour"]),
    grace_minutes=st.floats(0, 3000),
    most_percent=st.floats(0, 100),
    nothing_after_days=st.none() | st.floats(0, 30),
)
scores = st.floats(0, 1000)
seconds = st.floats(0, 60 * DAY)


class TestPenalty:
    @settings(max_examples=300, deadline=None)
    @given(late=lates, score=scores, seconds=seconds)
    def test_never_negative_and_never_above_the_score(self, late, score, seconds):
        assert 0 <= Settings(late=late).penalty(score, seconds) <= score

    @settings(max_examples=300, deadline=None)
    @given(late=lates, score=scores, sooner=seconds, later=seconds)
    def test_later_is_never_cheaper(self, late, score, sooner, later):
        assume(sooner <= later)
        rule = Settings(late=late)
        assert rule.penalty(score, sooner) <= rule.penalty(score, later)

    @settings(max_examples=200, deadline=None)
    @given(late=lates, score=scores, seconds=st.floats(-60 * DAY, 0))
    def test_in_time_costs_nothing(self, late, score, seconds):
        rule = Settings(late=late)
        assert rule.penalty(score, seconds) == 0
        assert rule.penalty(score, late.grace_minutes * 60) == 0

    @pytest.mark.parametrize(
        ("late", "seconds", "penalty"),
        [
            (Late(10), 1, 4),
            (Late(10), DAY, 4),
            (Late(10), DAY + 1, 8),
            (Late(10), 20 * DAY, 40),
            (Late(10, most_percent=50), 20 * DAY, 20),
            (Late(10, "hour"), 2.5 * HOUR, 12),
            (Late(10, grace_minutes=15), 15 * 60, 0),
            (Late(10, grace_minutes=15), 15 * 60 + 1, 4),
            (Late(10, nothing_after_days=2), 2 * DAY, 8),
            (Late(10, nothing_after_days=2), 2 * DAY + 1, 40),
            (Late(nothing_after_days=0), 1, 40),
            (Late(10, most_percent=50, nothing_after_days=3), 4 * DAY, 40),
            (Late(33.3), 1, 13.32),
        ],
    )
    def test_of_forty_points(self, late, seconds, penalty):
        assert Settings(late=late).penalty(40, seconds) == pytest.approx(penalty)

    def test_an_extension_moves_the_due_date(self):
        rule = Settings(
            due=DUE,
            extensions={"ada": timedelta(days=2), "eve": DUE + timedelta(days=1)},
        )
        at = "2030-02-02 18:00:00 UTC"
        assert rule.seconds_late(at, "bob") == 2 * DAY + HOUR
        assert rule.seconds_late(at, "ada") == HOUR
        assert rule.seconds_late(at, "eve") == DAY + HOUR
        assert rule.seconds_late(None, "bob") == 0
        assert replace(rule, due=None).seconds_late(at, "bob") == 0
        assert rule.due_by("2030-02-09 17:00:00 UTC").seconds_late(at, "bob") == 0


class TestPoints:
    def test_earned_points_keep_their_share(self):
        rule = Settings(points={"causal_mask": 4, "decoder_mask": 0.5}, leave_out=("padding_mask",))
        before = raw(causal_mask=0.25)
        after = rule.adjusted(before, ASSIGNMENT)
        assert before == raw(causal_mask=0.25)
        assert after.exercises["causal_mask"].points == 1
        assert after.exercises["causal_mask"].max_points == 4
        assert after.exercises["decoder_mask"].points == 0.5
        assert "padding_mask" not in after.exercises
        assert after.max_score == 15 - 1 + 4 - 2 + 0.5 - 2
        assert after.score == after.max_score - 3
        adjusted = rule.adjusted_assignment(ASSIGNMENT)
        assert adjusted.points == after.max_score
        assert "padding_mask" not in adjusted.names
        assert adjusted.written_points == ASSIGNMENT.written_points

    def test_a_written_question_can_be_left_out_too(self):
        adjusted = Settings(leave_out=("why_scale",)).adjusted_assignment(ASSIGNMENT)
        assert [question.name for question in adjusted.questions] == ["which_mask"]
        assert adjusted.points == ASSIGNMENT.points

    @settings(max_examples=200, deadline=None)
    @given(most=st.floats(0.01, 100), new=st.floats(0.01, 10_000), share=st.floats(0, 1))
    def test_scaling_stays_within_the_maximum(self, most, new, share):
        scaled = rescaled(ExerciseResult("x", min(most, share * most), most), new)
        assert 0 <= scaled.points <= new or math.isclose(scaled.points, new, abs_tol=1e-6)
        assert rescaled(ExerciseResult("x", most, most), new).points == new
        assert rescaled(ExerciseResult("x", 0.0, most), new).points == 0

    def test_the_digest_changes_with_what_marks_depend_on(self):
        one = Settings(points={"decoder_mask": 4.0})
        assert one.digest == replace(one, source=Path("elsewhere")).digest
        assert one.digest == replace(one, db_url="sqlite:///x").digest
        others = (
            Settings(),
            Settings(points={"decoder_mask": 5}),
            Settings(leave_out=("decoder_mask",)),
            Settings(late=Late(1)),
            Settings(due=DUE),
            Settings(extensions={"ada": timedelta(1)}),
            Settings(attempts=2),
            Settings(attempts_count="best"),
            Settings(extra_attempts={"ada": 1}),
        )
        assert len({one.digest, *(other.digest for other in others)}) == 10


class TestAttempts:
    @staticmethod
    def tried(*shares: float | None, late: dict[int, str] | None = None):
        """One student's attempts; None for one that cannot be read."""
        found = []
        for number, share in enumerate(shares, 1):
            submission = Submission("ada", attempt=number, timestamp=(late or {}).get(number))
            result = raw(share=share or 0.0)
            if share is None:
                submission.reason, result.status = "a zip was handed in", "unreadable"
            found.append((submission, result))
        return found

    def test_the_last_counts(self):
        assert Settings().chosen(self.tried(1.0, 0.5, 0.2)) == 2

    def test_the_best_counts_and_of_equals_the_last(self):
        rule = Settings(attempts_count="best")
        assert rule.chosen(self.tried(0.5, 1.0, 0.2)) == 1
        assert rule.chosen(self.tried(0.5, 1.0, 1.0)) == 2

    def test_the_best_is_found_after_penalties(self):
        rule = Settings(due=DUE, late=Late(30), attempts_count="best")
        tried = self.tried(0.8, 1.0, late={2: "2030-02-01 00:00:00 UTC"})
        assert rule.chosen(tried) == 0
        assert replace(rule, late=Late(10)).chosen(tried) == 1
        extended = replace(rule, extensions={"ada": timedelta(days=1)})
        assert extended.chosen(tried) == 1

    def test_the_best_is_found_by_the_points_that_count(self):
        rule = Settings(
            attempts_count="best", leave_out=("decoder_mask",), points={"causal_mask": 9}
        )
        tried = self.tried(0.0, 0.0)
        tried[0][1].exercises["decoder_mask"].points = 2.0
        tried[1][1].exercises["causal_mask"].points = 0.5
        assert rule.chosen(tried) == 1
        assert Settings(attempts_count="best").chosen(tried) == 0

    def test_beyond_the_allowed_number_nothing_counts(self):
        rule = Settings(attempts=2, attempts_count="best")
        tried = self.tried(0.1, 0.2, 1.0)
        assert rule.chosen(tried) == 1
        assert replace(rule, extra_attempts={"ada": 1}).chosen(tried) == 2
        assert [one.attempt for one in rule.considered(one for one, _ in tried)] == [1, 2]

    def test_what_cannot_be_read_counts_only_alone(self):
        assert Settings().chosen(self.tried(0.5, None)) == 0
        assert Settings().chosen(self.tried(None, None)) == 1

    def test_it_is_told(self):
        submissions = [one for one, _ in self.tried(1, 1, 1, None)]
        assert Settings(attempts=3).told(submissions, submissions[1]) == [
            "attempt 2 of 3 counts",
            "attempt 4 was not graded: 3 are allowed",
        ]
        assert Settings().told(submissions, submissions[2]) == [
            "attempt 3 of 4 counts",
            "attempt 4 could not be read: a zip was handed in",
        ]
        assert Settings().told(submissions[:1], submissions[0]) == []

    def test_an_only_attempt_beyond_the_number_is_not_lost(self):
        lone = Submission("ada", attempt=4)
        rule = Settings(attempts=3)
        assert rule.considered([lone]) == [lone]
        assert rule.chosen([(lone, raw())]) == 0
        assert "only 3 allowed" in rule.told([lone], lone)[-1]


def test_what_has_no_effect_is_told(tmp_path):
    found = read(tmp_path, "due = 2030-01-31T17:00:00Z\nextensions.adda = '1 day'\n")
    assert found.remarks(["adda"]) == []
    assert "no effect" in replace(found, due=None, filed_due=None).remarks(["adda"])[0]
    assert "did you mean ada?" in found.remarks(["ada", "bob"])[0]
    said = found.due_by("2030-02-01 12:00:00 UTC").remarks(["adda"])
    assert len(said) == 1
    assert "2030-02-01 12:00:00 UTC" in said[0]
    assert FILE in said[0]
    with pytest.raises(ClassroomError, match="no date"):
        found.due_by("soon")


# ---------------------------------------------------------------------------------------------
# In nbgrader's gradebook

LATE = "2030-02-02 18:00:00 UTC"  # Two days and an hour after DUE.
WITH_LATE = "due = 2030-01-31T18:00:00+01:00\n[late]\npercent = 10\n"


class Classes:
    """A course that is graded again and again, with other settings, from the same raw results."""

    def __init__(self, course: Path) -> None:
        self.course = course
        self.url = f"sqlite:///{course}/gradebook.db"

    def grade(
        self, text: str | None, results: list[SubmissionResult], due: str | None = None
    ) -> dict[str, SubmissionResult]:
        if text is not None:
            (self.course / FILE).write_text(text, encoding="utf-8")
        rule = settings_file.of_course(self.course, ASSIGNMENT).due_by(due)
        release = prepare(self.course, UNIT, rule)
        books = Books(self.course, UNIT)
        blank = nbformat.writes(repair.blank(release))
        adjusted = {one.student: rule.adjusted(one, ASSIGNMENT) for one in results}
        with books.alone():
            for student, result in adjusted.items():
                books.record(Submission(student, timestamp=LATE), Graded(result, blank), release)
                assert books.feedback(student)
        said = books.settle(rule)
        for student, result in adjusted.items():
            result.notes += said.get(student, [])
        return adjusted

    def submission(self, student: str = "ada"):
        with quiet_database(), Gradebook(self.url) as book:
            found = book.find_submission(UNIT, student)
            return found.score, found.max_score, found.late_submission_penalty, found.extension

    def mark(self, name: str, points: float | None, student: str = "ada") -> None:
        with quiet_database(), Gradebook(self.url) as book:
            grade = book.find_grade(name, UNIT, UNIT, student)
            grade.manual_score, grade.needs_manual_grade = points, False
            book.db.commit()

    def marks(self, name: str, student: str = "ada"):
        with quiet_database(), Gradebook(self.url) as book:
            grade = book.find_grade(name, UNIT, UNIT, student)
            return grade.manual_score, grade.score, grade.max_score

    def page(self, student: str = "ada") -> str:
        file = self.course / "feedback" / student / UNIT / f"{UNIT}.html"
        return re.sub(r"<style>.*?</style>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def classes(course) -> Classes:
    return Classes(course)


def test_the_commented_default_is_put_into_the_course_once(classes):
    file = classes.course / FILE
    assert file.read_bytes() == (paths.PACKAGE / "grading" / FILE).read_bytes()
    file.write_text("attempts = 2\n", encoding="utf-8")
    classes.grade(None, [])
    assert file.read_text(encoding="utf-8") == "attempts = 2\n"


class TestGradebook:
    def test_penalties_extensions_and_grace(self, classes):
        text = WITH_LATE + "[extensions]\neve = '3 days'\nkim = 2030-02-02T17:00:00Z\n"
        results = classes.grade(text, [raw(name) for name in ("ada", "eve", "kim")])
        assert classes.submission("ada") == (15, 21, pytest.approx(4.5), None)
        assert classes.submission("eve") == (15, 21, 0, timedelta(days=3))
        assert classes.submission("kim") == (15, 21, pytest.approx(1.5), timedelta(days=2))
        assert results["ada"].notes == ["handed in 2 days 1 hour late"]
        assert results["eve"].notes == []
        assert results["kim"].notes == ["handed in 1 hour late"]
        assert "after the due date" in classes.page("ada")
        assert "4.5 points were taken off" in classes.page("ada")
        assert re.search(r"\blate\b|due date", classes.page("eve")) is None
        # Within the grace time nobody is late, and an extension that is gone is taken back.
        text = WITH_LATE + "grace_minutes = 60\n[extensions]\nkim = 2030-02-02T17:00:00Z\n"
        results = classes.grade(text, [raw("kim")])
        assert results["kim"].notes == []
        assert re.search(r"\blate\b|due date", classes.page("kim")) is None
        assert classes.submission("kim")[2] == 0
        assert classes.submission("eve") == (15, 21, pytest.approx(4.5), None)

    def test_an_extension_given_in_nbgrader_stays(self, classes):
        classes.grade(WITH_LATE, [raw()])
        with quiet_database(), Gradebook(classes.url) as book:
            book.grant_extension(UNIT, "ada", days=1)
        classes.grade(WITH_LATE, [raw()])
        assert classes.submission() == (15, 21, pytest.approx(3.0), timedelta(days=1))
        classes.grade(WITH_LATE + "[extensions]\nada = '4 days'\n", [raw()])
        assert classes.submission() == (15, 21, 0, timedelta(days=4))

    def test_the_due_date_of_the_command_line_stays_for_nbgraders_commands(self, classes):
        classes.grade(WITH_LATE, [raw()], due="2030-02-02 17:30:00 UTC")
        assert classes.submission()[2] == pytest.approx(1.5)
        # As nbgrader does by itself, with the file alone.
        due_dates.bring(
            classes.course, UNIT, due_dates.of_course(classes.course, UNIT), classes.url
        )
        with quiet_database(), Gradebook(classes.url) as book:
            assert book.find_assignment(UNIT).duedate == datetime(2030, 2, 2, 17, 30)
        for text, due in (
            (WITH_LATE, datetime(2030, 1, 31, 17)),
            (WITH_LATE.replace("18:00", "19:00"), datetime(2030, 1, 31, 18)),
            ("", datetime(2030, 1, 31, 18)),
        ):
            classes.grade(text, [])
            with quiet_database(), Gradebook(classes.url) as book:
                assert book.find_assignment(UNIT).duedate == due

    def test_a_penalty_heeds_marks_given_by_hand_later(self, classes):
        classes.grade(WITH_LATE, [raw(share=0)])
        assert classes.submission()[2] == 0
        classes.mark("check_padding_mask", 2.0)
        classes.grade(None, [])  # Nobody handed in anew.
        assert classes.submission()[:3] == (2, 21, pytest.approx(0.6))

    def test_points_change_after_a_first_grading(self, classes):
        classes.grade("", [raw(causal_mask=0.5)])
        assert classes.submission()[:2] == (14.5, 21)
        text = (
            f"[{UNIT}]\nleave_out = ['padding_mask']\n[{UNIT}.points]\ncausal_mask = 5\n"
            "why_scale = 4\n"
        )
        result = classes.grade(text, [raw(causal_mask=0.5)])["ada"]
        assert (result.score, result.max_score) == (14.5 - 0.5 + 2.5 - 2, 15 + 4 - 2)
        assert classes.submission()[:2] == (14.5, 24)
        assert classes.marks("check_causal_mask") == (None, 2.5, 5)
        assert classes.marks("check_padding_mask") == (None, 0, 0)
        page = classes.page()
        assert "14.5 of 24 points" in page
        assert "2.5 of 5 points" in page
        assert "Left out of the grading" in page
        assert "padding_mask</code>" not in page
        classes.grade("", [raw(causal_mask=0.5)])
        assert classes.submission()[:2] == (14.5, 21)
        assert "Left out" not in classes.page()
        # What students were given is as it was.
        notebook = nbformat.read(paths.EXERCISES / UNIT / f"{UNIT}.ipynb", as_version=4)
        points = {cell.metadata.get("nbgrader", {}).get("points") for cell in notebook.cells}
        assert 0 not in points

    def test_marks_given_by_hand_survive(self, classes):
        classes.grade("", [raw(share=0), raw("eve", share=0)])
        classes.mark("check_causal_mask", 1.0)
        classes.mark("check_padding_mask", 1.5)
        classes.mark("why_scale", 3.0)
        leave_out = "[attention-self_attention]\nleave_out = ['padding_mask', 'why_scale']\n"
        result = classes.grade(leave_out + "points.causal_mask = 0.5\n", [raw(share=0)])["ada"]
        # What is left out counts nothing, also by hand; what is above its maximum is told.
        assert classes.marks("check_padding_mask") == (None, 0, 0)
        assert classes.marks("why_scale") == (None, 0, 0)
        assert classes.marks("check_causal_mask") == (1.0, 1.0, 0.5)
        assert classes.submission()[0] == 1
        assert "the mark 1 given by hand for causal_mask is above its 0.5" in result.notes[0]
        with quiet_database(), Gradebook(classes.url) as book:
            waiting = {
                name: book.find_grade(name, UNIT, UNIT, "ada").needs_manual_grade
                for name in ("why_scale", "check_padding_mask")
            }
        assert waiting == {"why_scale": False, "check_padding_mask": False}
        # Back again, and once more: nothing is doubled.
        for _ in range(2):
            result = classes.grade("", [raw(share=0)])["ada"]
            assert result.notes == []
            assert classes.marks("check_padding_mask") == (1.5, 1.5, 2)
            assert classes.marks("why_scale") == (3.0, 3.0, 3)
            assert classes.submission()[0] == 5.5
        assert classes.submission("eve")[0] == 0

    def test_the_report_counts_what_counts(self, classes):
        text = f"[{UNIT}]\nleave_out = ['padding_mask', 'why_scale']\npoints.causal_mask = 4\n"
        rule_results = classes.grade(text, [raw(share=0.5)])
        rule = settings_file.of_course(classes.course, ASSIGNMENT)
        graded = classroom.Class(
            rule.adjusted_assignment(ASSIGNMENT), classes.course, 0, "", [*rule_results.values()]
        )
        class_report.write(graded)
        with (graded.folder / "grades.csv").open(encoding="utf-8-sig", newline="") as file:
            row = next(csv.DictReader(file))
        assert (float(row["points"]), float(row["max_points"])) == (8, 16)
        assert float(row["max_total"]) == 19
        assert float(row["causal_mask"]) == 2
        assert "padding_mask" not in row
        assert "written: why_scale" not in row


def test_without_rules_nbgraders_own_method_decides(tmp_path):
    from traitlets.config import Config

    config = Config()
    config.CourseDirectory.root = str(tmp_path)
    config.LateSubmissionPlugin.penalty_method = "zero"
    step = AssignLatePenalties(config=config)
    step.assignment_id = UNIT
    plugin = due_dates.LatePenalty(parent=step)
    assert plugin.late_submission_penalty("ada", 12.0, 60.0) == 12.0
    (tmp_path / FILE).write_text("late.percent = 10\n", encoding="utf-8")
    assert plugin.late_submission_penalty("ada", 12.0, 60.0) == pytest.approx(1.2)


def test_what_students_receive_knows_no_settings():
    points = {FIRST: 4.0, "why_scale": 0.0}
    changed = with_points(ASSIGNMENT, points)
    assert changed.exercise(FIRST).points == 4
    assert ASSIGNMENT.exercise(FIRST).points == 5
    assert len(changed.questions) == len(ASSIGNMENT.questions) - 1


# ---------------------------------------------------------------------------------------------
# With students' code


@pytest.mark.slow
@pytest.mark.sandbox
def test_nbgraders_own_autograde_does_the_same(tmp_path, course, solved):
    """`nbgrader autograde` in the course's folder, before and after the settings change."""
    submitted = tmp_path / "in"
    wrong = "def causal_mask(length, device=None):\n    return None\n"
    put(submitted / "ada" / f"{UNIT}.ipynb", solved(causal_mask=wrong))
    put(submitted / "ada" / "timestamp.txt", LATE)
    put(submitted / "kim" / "attempt-1" / f"{UNIT}.ipynb", solved())
    put(submitted / "kim" / "attempt-2" / f"{UNIT}.ipynb", repair.blank(repair.released(UNIT)))
    put(submitted / "kim" / "attempt-3" / f"{UNIT}.ipynb", solved())
    text = WITH_LATE + "[attention-self_attention]\nattempts = 2\nattempts_count = 'best'\n"
    put(course / FILE, text)
    graded = classroom.grade(UNIT, submitted, course, limits=Limits(seconds_per_call=60))
    ada, kim = graded.results
    assert kim.score == ASSIGNMENT.points
    assert kim.notes == [
        "attempt 1 of 2 counts, the best after penalties",
        "attempt 3 was not graded: 2 are allowed",
    ]
    assert ada.notes == ["handed in 2 days 1 hour late"]
    classes = Classes(course)
    first = classes.submission()
    assert first[2] == pytest.approx(0.3 * ada.score, abs=1e-5)

    autograde = ("autograde", UNIT, "--student=ada", "--force")
    nbgrader(*autograde, cwd=course)
    assert classes.submission() == first
    put(
        course / FILE,
        text + "points.causal_mask = 11\n[attention-self_attention.extensions]\nada = '1 day'\n",
    )
    nbgrader(*autograde, cwd=course)
    score, most, penalty, extension = classes.submission()
    assert (most, extension) == (31, timedelta(days=1))
    again = classroom.grade(UNIT, submitted, course, limits=Limits(seconds_per_call=60))
    assert score == again.results[0].score
    assert again.results[0].max_score == 25
    assert penalty == pytest.approx(0.2 * score, abs=1e-5)
    assert classes.submission() == (score, most, penalty, extension)
    assert classroom.Class.read(course, UNIT).assignment.points == 25
