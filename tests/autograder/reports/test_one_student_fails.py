"""Whatever goes wrong with some students is theirs alone, and is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autograder.gradebook import classroom
from autograder.gradebook.course import UNRECORDED, UNSHOWN, Books
from autograder.grading import collect
from autograder.grading.marker import UNJUDGED
from autograder.grading.result_cache import ResultCache
from autograder.judging import results
from autograder.reports import class_report
from tests.autograder.gradebook.test_classroom import UNIT
from tests.autograder.helpers import put, status_of

# With whom something goes wrong, and what; the others are called s1, s2 and so on.
ERRORS = {
    "s2-runtime": RuntimeError("somewhere"),
    "s2-recursion": RecursionError("maximum recursion depth exceeded"),
    "s4-memory": MemoryError(),
    "s4-input": OSError(5, "Input/output error"),
    "s4-text": UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
}
STUDENTS = sorted(["s1", "s3", "s5", "s6", *ERRORS])
# Where it happens: the owner and the name of what handles one student, how to know whom from its
# arguments, and how the note begins.
STAGES: dict[str, tuple[Any, str, Callable[..., str], str]] = {
    "collected": (collect, "_handed_in", lambda entry, *_: entry.stem, ""),
    "kept": (ResultCache, "keep", lambda _, unit, key, result, *__: result.student, UNJUDGED),
    "entered": (Books, "record", lambda _, submission, *__: submission.student, UNRECORDED),
    "given feedback": (Books, "feedback", lambda _, student: student, UNRECORDED),
    "written": (results.SubmissionResult, "to_json", lambda one: one.student, UNSHOWN),
    "counted": (class_report._Page, "add", lambda _, row: row.student, UNSHOWN),
    "shown": (class_report._Grid, "add", lambda _, row: row.student, UNSHOWN),
    "in the table of marks": (class_report, "_line", lambda _, row: row.student, UNSHOWN),
}


def grade(submitted: Path, course: Path) -> int:
    where = ["--submitted", str(submitted), "--course", str(course)]
    return status_of(["grade", UNIT, *where, "--jobs", "1"])


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_the_others_have_their_marks(tmp_path, course, monkeypatch, capfd, stage):
    owner, name, whose, begin = STAGES[stage]
    for student in STUDENTS:
        put(tmp_path / "in" / f"{student}.ipynb", b"\x00 no notebook")
    plain = getattr(owner, name)
    failed: list[str] = []

    def broken(*arguments, **options):
        student = whose(*arguments, **options)
        # What is kept or written in the place of the marks can be.
        if student in ERRORS and not (stage in ("kept", "written") and student in failed):
            failed.append(student)
            raise ERRORS[student]
        return plain(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, broken)
        status = grade(tmp_path / "in", course)
    said = capfd.readouterr()
    assert set(failed) == set(ERRORS)
    assert "Traceback" not in said.out + said.err
    data = json.loads((course / "graded" / UNIT / "results.json").read_text())
    people = {one["student"]: one for one in data["submissions"]}
    assert list(people) == STUDENTS
    assert status == (0 if stage == "collected" else 1)
    for student in ERRORS:
        if stage == "collected":  # It is a result like any other.
            assert "cannot be opened" in json.dumps(people[student])
        else:
            assert [note for note in people[student]["notes"] if note.startswith(begin)]
            assert f"{student}: {begin}" in said.err
    for student in set(STUDENTS) - set(ERRORS):
        assert people[student]["status"] == "unreadable"
        assert people[student]["notes"] == []
        assert student in said.out
        assert (course / "feedback" / student / UNIT / f"{UNIT}.html").is_file()
    rows = (course / "graded" / UNIT / "grades.csv").read_text().splitlines()
    lost = len(ERRORS) if stage == "in the table of marks" else 0
    assert len(rows) == 1 + len(STUDENTS) - lost
    # Nothing is lost: the next start does what is left to do.
    assert grade(tmp_path / "in", course) == 0
    after = classroom.Class.read(course, UNIT).results
    assert [(one.student, one.status, one.notes) for one in after] == [
        (student, "unreadable", []) for student in STUDENTS
    ]
