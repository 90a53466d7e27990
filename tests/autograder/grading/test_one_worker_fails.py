"""Whatever is raised while one submission is marked, in its worker, is that student's result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autograder.__main__ import main
from autograder.demo import make_class
from autograder.grading import worker_pool
from autograder.grading.marker import UNJUDGED
from autograder.units.assignment import load
from tests.autograder import faults

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

UNIT = "seq2seq-text"
HONEST = 4
VICTIMS = [f"{stage}-{fault}" for stage in faults.STAGES for fault in faults.FAULTS]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A class of right notebooks, most of which a worker stumbles over; what the command left."""
    folder = tmp_path_factory.mktemp("faults")
    text = make_class.Maker(folder, UNIT, 0).complete().text()
    for student in [*VICTIMS, *(f"honest-{number}" for number in range(HONEST))]:
        place = folder / "submitted" / student / UNIT
        place.mkdir(parents=True)
        (place / f"{UNIT}.ipynb").write_text(text, encoding="utf-8")
    course = folder / "course"
    where = ["--submitted", str(folder / "submitted"), "--course", str(course)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_pool, "PROGRAM", faults.PROGRAM)
        with pytest.raises(SystemExit) as end:
            main(["grade", UNIT, *where, "--jobs", "2"])
    results = json.loads((course / "graded" / UNIT / "results.json").read_text("utf-8"))
    return {
        "status": end.value.code,
        "results": {one["student"]: one for one in results["submissions"]},
        "feedback": {page.name for page in (course / "feedback").iterdir()},
    }


def test_the_others_have_their_marks(graded: dict[str, Any]) -> None:
    honest = [one for name, one in graded["results"].items() if name.startswith("honest")]
    assert len(honest) == HONEST
    assert {one["status"] for one in honest} == {"graded"}
    assert {one["score"] for one in honest} == {load(UNIT).points}


def test_the_command_says_that_some_have_no_whole_result(graded: dict[str, Any]) -> None:
    assert graded["status"] == 1


@pytest.mark.parametrize("student", VICTIMS)
def test_it_is_their_result_and_in_the_books(graded: dict[str, Any], student: str) -> None:
    result = graded["results"][student]
    if student == "repair-OSError":  # As of a file that cannot be read to its end.
        assert result["status"] == "unreadable"
        assert result["score"] == 0
        return
    assert any(note.startswith(UNJUDGED) for note in result["notes"])
    assert student in graded["feedback"]
    stage = student.partition("-")[0]
    earned = [one["points"] for one in result["exercises"].values()]
    if stage != "judge":
        assert result["status"] == "crashed"
        assert sum(earned) == 0
    else:  # What had been judged before is kept.
        most = [exercise.points for exercise in load(UNIT).exercises]
        assert earned == most[: faults.LAST_JUDGED] + [0.0] * (len(most) - faults.LAST_JUDGED)
