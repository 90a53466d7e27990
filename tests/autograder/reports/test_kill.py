"""Killed at any moment, a second start completes the class; nobody is marked twice or lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbgrader.api import Gradebook

from autograder.common import paths
from autograder.gradebook.course import quiet_database
from autograder.grading import repair
from autograder.grading.result_cache import ResultCache
from autograder.units.assignment import load

UNIT = "attention-self_attention"
QUESTION = load(UNIT).questions[0].name
SEED = 20261122
STUDENTS = ("absent", "blank", "broken", "garbage", "s1", "s2", "s3")
PATIENCE = 120  # Seconds; a busy machine takes its time.
# A process that grades, and says in its output how far it is.
PROGRAM = """
import sys
from pathlib import Path
from autograder.gradebook import classroom
from autograder.grading.collect import Person
from autograder.reports import class_report

if __name__ == "__main__":
    submitted, course = map(Path, sys.argv[1:])
    print("start", 0, flush=True)
    graded = classroom.grade(
        "UNIT", submitted, course, roster=[Person("absent")], jobs=2, seed=5,
        progress=lambda stage, done, total: print(stage, done, flush=True),
    )
    class_report.write(graded, each=lambda result: print("report", 0, flush=True))
    print("written", flush=True)
""".replace("UNIT", UNIT)

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def submitted(tmp_path_factory, solved) -> Path:
    """Six students who handed in; half of them something that need not be run."""
    folder = tmp_path_factory.mktemp("submitted")
    empty = repair.released(UNIT)
    for number in (1, 2, 3):
        name = "tril" if number == 1 else "triu"
        answer = f"def causal_mask(n):\n    return torch.ones(n, n, dtype=torch.bool).{name}()\n"
        nb = repair.blank(empty)
        for cell in nb.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id") == "causal_mask":
                cell.source = answer
        (folder / f"s{number}.ipynb").write_text(nbformat.writes(nb))
    text = nbformat.writes(empty)
    (folder / "blank.ipynb").write_text(text)
    (folder / "broken.ipynb").write_text(text[:-200])
    (folder / "garbage.ipynb").write_bytes(b"\x00 no notebook")
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("program") / "grade_a_class.py"
    path.write_text(PROGRAM)
    return path


@contextlib.contextmanager
def started(program: Path, submitted: Path, course: Path) -> Iterator[subprocess.Popen[str]]:
    """The program, in a group of processes of its own."""
    process = subprocess.Popen(
        [sys.executable, str(program), str(submitted), str(course)],
        env={**os.environ, "PYTHONPATH": str(paths.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)
        process.communicate(timeout=PATIENCE)


def kill(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Kill the whole group at once; returns all processes that it had, those of sandboxes too."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return family


def whole(program: Path, submitted: Path, course: Path) -> list[str]:
    """Let the program come to its end; what it said."""
    with started(program, submitted, course) as process:
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
    return out.split("\n")


def results(course: Path) -> dict[str, Any]:
    """results.json without what a clock says."""
    data = json.loads((course / "graded" / UNIT / "results.json").read_text())
    for one in data["submissions"]:
        del one["seconds"]
    return data


def gradebook(course: Path) -> dict[str, list[Any]]:
    """What nbgrader's gradebook has of everybody, names in the place of its random ids."""
    with quiet_database(), Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        return {
            submission.student.id: [
                submission.timestamp,
                submission.score,
                *sorted(
                    (grade.name, grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                    for notebook in submission.notebooks
                    for grade in notebook.grades
                ),
            ]
            for submission in book.assignment_submissions(UNIT)
        }


def mark_by_hand(course: Path, student: str) -> None:
    with quiet_database(), Gradebook(f"sqlite:///{course}/gradebook.db") as book:
        grade = book.find_grade(QUESTION, UNIT, UNIT, student)
        grade.manual_score, grade.needs_manual_grade = 1.5, False
        book.db.commit()


@pytest.fixture(scope="module")
def undisturbed(program, submitted, prepared, tmp_path_factory) -> Path:
    course = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("undisturbed") / "course"))
    whole(program, submitted, course)
    mark_by_hand(course, "s2")
    return course


def test_a_class_that_is_killed_again_and_again_is_completed(
    program, submitted, prepared, undisturbed, tmp_path
):
    course = Path(shutil.copytree(prepared, tmp_path / "course"))
    draw = random.Random(SEED)
    marked_by_hand = False
    finished: dict[tuple[str, int], int] = {}

    def at(stage: str, least: int) -> Callable[[str], bool]:
        def reached(line: str) -> bool:
            said, _, done = line.partition(" ")
            return said == stage and int(done) >= least

        return reached

    # While they are collected, after some have been marked, after some are in the books, during the
    # final writing, and during the report.
    moments = [
        (at("start", 0), draw.uniform(0, 0.2)),
        (at("grading", 2), draw.uniform(0, 0.3)),
        (at("books", 3), draw.uniform(0, 0.1)),
        (at("books", len(STUDENTS)), draw.uniform(0, 0.2)),
        (at("report", 0), draw.uniform(0, 0.1)),
    ]
    for reached, delay in moments:
        with started(program, submitted, course) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() and reached(line.strip()):
                    break
            time.sleep(delay)
            family = kill(process)
            process.wait(PATIENCE)
            _, alive = psutil.wait_procs(family, timeout=30)
            assert not alive, "processes outlived the one that was killed"
        with ResultCache(course) as cache:
            cache.check()
            known = cache.markings(UNIT)
            recorded = cache.recorded(UNIT)
        assert finished.items() <= known.items(), "somebody was marked twice, or lost"
        finished = known
        if "s2" in recorded and not marked_by_hand:
            mark_by_hand(course, "s2")
            marked_by_hand = True
    said = whole(program, submitted, course)
    assert "written" in said
    with ResultCache(course) as cache:
        assert cache.markings(UNIT) == {(student, 1): 1 for student in STUDENTS}
        assert set(cache.recorded(UNIT)) == set(STUDENTS)
    if not marked_by_hand:
        mark_by_hand(course, "s2")
    assert results(course) == results(undisturbed)
    assert gradebook(course) == gradebook(undisturbed)
    assert gradebook(course)["s2"] != gradebook(course)["s3"]
    with sqlite3.connect(course / "gradebook.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for student in STUDENTS:
        page = course / "feedback" / student / UNIT / f"{UNIT}.html"
        assert "</html>" in page.read_text(), student
    leftovers = [path for path in (course / "graded").rglob("*") if path.suffix == ".part"]
    assert not leftovers
    assert marked_by_hand, "no kill came between the books of s2 and the end"
