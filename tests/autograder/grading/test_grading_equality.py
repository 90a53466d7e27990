"""The same marks with 1 and 8 processes, in any order, under load, with threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autograder.common import paths
from autograder.demo import make_class
from autograder.grading import repair
from autograder.grading.collect import Submission, collect
from autograder.grading.worker_pool import grade_all
from autograder.sandbox.limits import Limits
from autograder.units.variants import misconception

UNIT = make_class.SHOWN
SEED = 11
# Generous enough for a machine that does much else; what sleeps is over after that.
LIMITS = Limits(seconds_per_call=4.0, seconds_per_cell=8.0)

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def submissions(tmp_path_factory) -> list[Submission]:
    """Six students: right, a mistake, a forbidden call, asleep, a damaged notebook, nobody's."""
    folder = tmp_path_factory.mktemp("submitted")
    maker = make_class._maker(folder / "in", UNIT, 0)
    maker.hand_in("right", "", "honest", maker.complete())
    more = make_class.extras(UNIT)
    work, points = maker.mistaken(misconception(UNIT, more.mistakes[0]))
    maker.hand_in("mistaken", "", "mistake", work, points=points)
    exercise, _, source = next(iter(more.forbidden.values()))
    work = maker.complete()
    work.write(exercise, source)
    maker.hand_in("forbidden", "", "cheat", work)
    work = maker.blank()
    name = maker.leaves[0]
    sleeps = f"import time\n\n\ndef {name}(*given, **named):\n    time.sleep(1000)\n"
    work.write(name, sleeps)
    maker.hand_in("asleep", "", "accident", work)
    maker.hand_in("damaged", "", "damage", maker.complete().text()[:-300])
    maker.hand_in("garbage", "", "damage", b"\x00 no notebook")
    return collect(folder / "in", UNIT)


def marks(submissions: list[Submission], jobs: int) -> dict[str, Any]:
    """Everybody's result, but for the seconds, and the notebook that nbgrader gets."""
    options = {
        "unit": UNIT, "seed": SEED, "unsafe": False, "limits": LIMITS, "hide": (),
    }  # fmt: skip
    found = {}
    for submission, graded in grade_all(submissions, options, repair.released(UNIT), jobs):
        found[submission.student] = (replace(graded.result, seconds=0.0), graded.notebook)
    return found


@pytest.fixture(scope="module")
def alone(submissions) -> dict[str, Any]:
    """Marked one after the other, in the process of the test."""
    return marks(submissions, 1)


def test_the_class_has_everything_that_could_differ(alone):
    statuses = {student: result.status for student, (result, _) in alone.items()}
    assert statuses == {
        "right": "graded", "mistaken": "graded", "forbidden": "graded", "asleep": "timed_out",
        "damaged": "repaired", "garbage": "unreadable",
    }  # fmt: skip
    named = [
        {one.misconception for one in alone[student][0].exercises.values()} - {None}
        for student in ("mistaken", "forbidden")
    ]
    assert all(named)
    assert alone["right"][0].score == alone["right"][0].max_score


def test_eight_processes_in_the_opposite_order_on_a_busy_machine(submissions, alone, monkeypatch):
    # Whatever is asked for, who forks works with one.
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("MKL_NUM_THREADS", "4")
    with busy(os.cpu_count() or 1):
        assert marks(submissions[::-1], 8) == alone


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that keep all cores busy."""
    spinning = [sys.executable, "-c", "while True: pass"]
    spinners = [subprocess.Popen(spinning, cwd=Path(paths.ROOT)) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
