"""The demonstration class, graded as an instructor would: nobody gets more or less than earned."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from autograder.common import paths
from autograder.demo import make_class
from autograder.gradebook import classroom
from autograder.grading.marker import Marker
from autograder.grading.repair import repair_file
from autograder.sandbox.limits import Limits
from tests.autograder.helpers import contents, processes

UNIT = make_class.SHOWN
SEED = 5
LIMITS = Limits(seconds_per_call=4, seconds_per_cell=6, memory_bytes=512 << 20)
# Where a process that outlives its grading would write, and under which names cheats write.
WITHIN_REACH = [Path(place) for place in ("/tmp", "/dev/shm", "/var/tmp", Path.home(), Path.cwd())]
LEAVINGS = ("stayed-behind.txt", "sitecustomize.py", "usercustomize.py", "torch.py", "pytest.py")


def leavings() -> set[Path]:
    return {place / name for place in WITHIN_REACH for name in LEAVINGS if (place / name).exists()}


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """The class and its results, graded once for all tests."""
    home = tmp_path_factory.mktemp("demo")
    submitted = home / "submitted"
    expected = {one.student: one for one in make_class.make(submitted, UNIT, seed=SEED)}
    before, there = contents(submitted), leavings()
    course = classroom.grade(
        UNIT, submitted, home / "course", jobs=2, seed=SEED, limits=LIMITS, cache=False
    )
    return SimpleNamespace(
        submitted=submitted,
        home=home,
        expected=expected,
        course=course,
        results={result.student: result for result in course.results},
        before=before,
        there=there,
    )


pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def of_kind(graded, *kinds):
    return [(one, graded.results[name]) for name, one in graded.expected.items()
            if one.kind in kinds]  # fmt: skip


def complaints(pairs):
    """Where points differ from what was earned."""
    return [
        f"{one.student}: {name} has {result.exercises[name].points}, not {points} "
        f"({result.exercises[name].message})"
        for one, result in pairs
        for name, points in one.points.items()
        if result.exercises[name].points != pytest.approx(points)
    ]


def test_everybody_in_the_class_has_a_result(graded):
    assert set(graded.results) == set(graded.expected)
    assert len(graded.results) >= 30
    assert graded.course.complete


def test_honest_work_gets_exactly_its_marks(graded):
    assert not complaints(of_kind(graded, "honest"))


def test_every_legitimate_style_gets_full_marks(graded):
    full = [result for name, result in graded.results.items() if name.startswith("full-")]
    assert len(full) >= 4
    assert {result.score for result in full} == {graded.course.assignment.points}


def test_a_mistake_costs_what_it_costs_in_process(graded):
    pairs = of_kind(graded, "mistake")
    assert len(pairs) >= 5
    assert not complaints(pairs)
    assert all(0 < result.score < result.max_score for _, result in pairs)


def test_mistakes_and_forbidden_calls_are_named(graded):
    wrong = [
        f"{one.student}: {name} is diagnosed as {graded.results[one.student].exercises[name]}"
        for one in graded.expected.values()
        for name, misconception in one.diagnosed.items()
        if graded.results[one.student].exercises[name].misconception != misconception
    ]
    assert not wrong


def test_damage_and_accidents_cost_only_what_they_destroyed(graded):
    assert not complaints(of_kind(graded, "damage", "accident"))


def test_no_cheat_earns_a_point(graded):
    pairs = of_kind(graded, "cheat")
    assert len(pairs) >= 25
    assert not complaints(pairs)


def test_statuses_are_those_expected(graded):
    wrong = {
        name: (graded.results[name].status, one.statuses)
        for name, one in graded.expected.items()
        if graded.results[name].status not in one.statuses
    }
    assert not wrong


def test_repairs_say_what_was_done(graded):
    silent = [
        (name, word, graded.results[name].repairs)
        for name, one in graded.expected.items()
        for word in one.words
        if word not in " | ".join(graded.results[name].repairs + graded.results[name].notes)
    ]
    assert not silent


def test_results_file_agrees(graded):
    data = json.loads((graded.course.folder / "results.json").read_text(encoding="utf-8"))
    scores = {one["student"]: one["score"] for one in data["submissions"]}
    assert scores == pytest.approx({name: one.score for name, one in graded.expected.items()})


def test_gradebook_has_these_marks_and_no_others(graded):
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{graded.course.course / 'gradebook.db'}") as book:
        submissions = book.assignment_submissions(UNIT)
        marks = {
            one.student.id: sum(
                grade.auto_score or 0.0 for notebook in one.notebooks for grade in notebook.grades
            )
            for one in submissions
        }
        late = [
            one.student.id for one in submissions if one.timestamp and one.timestamp.year > 2029
        ]
    expected = {name: one.score for name, one in graded.expected.items()}
    # Nobody without a file can be in nbgrader's books of submissions; who is not there has nothing.
    absent = set(expected) - set(marks)
    assert all(graded.results[name].status in ("missing", "unreadable") for name in absent)
    assert marks == pytest.approx({name: expected[name] for name in marks})
    assert late == [one.student for one in graded.expected.values() if one.late]


def test_feedback_shows_nothing_of_what_was_printed_as_markup(graded):
    folder = graded.course.course / "feedback"
    page = (folder / "markup" / UNIT / f"{UNIT}.html").read_text(encoding="utf-8")
    for text in (
        "<script>alert(",
        "onerror=alert(1)>",
        "document.title = 'taken",
        "\x1b",
        "<h1>Full",
    ):
        assert text not in page
    pages = {path.parent.parent.name for path in folder.rglob("*.html")}
    handed_in = {name for name, one in graded.results.items() if one.status != "missing"}
    assert handed_in <= pages


def test_submissions_are_as_they_were(graded):
    assert contents(graded.submitted) == graded.before


def test_nothing_outside_was_written(graded):
    assert leavings() <= graded.there
    names = {path.name for path in graded.home.iterdir()}
    assert names == {"submitted", "course", "expected.json"}


def test_no_process_is_left_behind(graded):
    assert not processes("stays-behind")


def test_marks_do_not_depend_on_who_was_graded_before(graded):
    """One marker, cheats first: those after them get what they got in the class."""
    order = ["cheat-patches-executor", "cheat-stays-behind", "cheat-always-equal-tensor"]
    order += ["mistake-decoder-mask-padding-only", "full-einsum", "mistake-causal-without-diagonal"]
    with Marker(UNIT, seed=SEED, limits=LIMITS) as marker:
        for name in order:
            path = graded.submitted / name / UNIT / f"{UNIT}.ipynb"
            result = marker.mark(name, repair_file(path, UNIT))
            points = {key: one.points for key, one in result.exercises.items()}
            assert points == {
                key: one.points for key, one in graded.results[name].exercises.items()
            }


@pytest.mark.parametrize("unit", [name for name in paths.units() if name != UNIT])
def test_honest_work_mistakes_and_forbidden_calls_in_the_other_units(tmp_path, unit):
    """What attacks the grading itself was tried above; here it is the unit that is graded."""
    submitted = tmp_path / "submitted"
    made = make_class.make(submitted, unit, seed=SEED, whole=False)
    expected = [one for one in made if one.student not in ("blank", "half-done", "late")]
    results = {}
    # Without a pool of processes, whose start would take longer than the marking; nobody's code
    # loops for ever here, and honest loops get the time that `grade` gives them.
    limits = Limits(memory_bytes=LIMITS.memory_bytes)
    with Marker(unit, seed=SEED, limits=limits, graders=make_class._graders(unit)) as marker:
        for one in expected:
            path = submitted / one.student / unit / f"{unit}.ipynb"
            results[one.student] = marker.mark(one.student, repair_file(path, unit))
    assert [one.kind for one in expected].count("mistake") >= 3
    assert [one.student.startswith("full-") for one in expected].count(True) >= 4
    assert not complaints((one, results[one.student]) for one in expected)
    for one in expected:
        named = {name: results[one.student].exercises[name].misconception for name in one.diagnosed}
        assert named == one.diagnosed, one.student


# What needs no sandbox.


@pytest.mark.sandbox(needed=False)
@pytest.mark.parametrize("unit", paths.units())
def test_the_class_is_the_same_every_time(tmp_path, unit):
    once, again = tmp_path / "once" / "submitted", tmp_path / "again" / "submitted"
    for place in (once, again):
        maker = make_class._maker(place, unit, 0)
        maker.honest()
        maker.accidents()
        maker.damage()
        maker.cheats()
        maker.forbidden()
    assert contents(once) == contents(again)


@pytest.mark.sandbox(needed=False)
def test_a_folder_with_other_things_is_not_swept_away(tmp_path):
    from autograder.common.errors import AssignmentError

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(AssignmentError, match=r"thesis\.txt"):
        make_class.make(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.sandbox(needed=False)
def test_honest_submissions_take_turns(tmp_path):
    out = tmp_path / "submitted"
    names = make_class.make_honest(out, UNIT, 3)
    assert names == sorted(os.listdir(out))
    texts = {(out / name / UNIT / f"{UNIT}.ipynb").read_text() for name in names}
    assert len(texts) == 3
