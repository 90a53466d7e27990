"""A class from the folder of submissions to the gradebook: nobody is lost or stops the rest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from typer.testing import CliRunner

from autograder import __main__ as command_line
from autograder.common.errors import ClassroomError
from autograder.gradebook import classroom
from autograder.gradebook.course import Books, course_seed, prepare, quiet_database
from autograder.grading import repair, worker_pool
from autograder.grading.collect import Person, Submission, collect, read_roster
from autograder.grading.marker import Graded, Marker, empty_result, grader_hash
from autograder.grading.repair import RepairedNotebook
from autograder.grading.result_cache import alone
from autograder.sandbox.limits import Limits
from autograder.units.assignment import load
from tests.autograder.helpers import put

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)


LIMITS = Limits(seconds_per_call=5)


def state(folder: Path) -> dict[str, tuple[str, int]]:
    """Every file with its content and time: to see that nothing was touched."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ---------------------------------------------------------------------------------------------
# Finding what was handed in


def found(folder: Path, *roster: str) -> dict[str, Submission]:
    people = [Person(name) for name in roster]
    return {item.student: item for item in collect(folder, UNIT, people)}


class TestCollect:
    def test_all_three_layouts(self, tmp_path):
        one = put(tmp_path / "s1" / UNIT / f"{UNIT}.ipynb", "{}")
        two = put(tmp_path / "s2" / f"{UNIT}.ipynb", "{}")
        three = put(tmp_path / "s3.ipynb", "{}")
        people = found(tmp_path)
        assert [people[name].path for name in ("s1", "s2", "s3")] == [one, two, three]
        assert not any(person.repairs for person in people.values())

    def test_students_are_sorted_as_people_count(self, tmp_path):
        for name in ("s10", "s2", "S1"):
            (tmp_path / name).mkdir()
        assert list(found(tmp_path)) == ["S1", "s2", "s10"]

    @pytest.mark.parametrize(
        "name",
        ["homework.ipynb", "Self-attention (1).ipynb", f"{UNIT}.ipynb.txt", f"{UNIT}-final.IPYNB"],
    )
    def test_a_misnamed_notebook_is_taken_and_told(self, tmp_path, name):
        path = put(tmp_path / "s1" / UNIT / name, "{}")
        submission = found(tmp_path)["s1"]
        assert submission.path == path
        assert submission.repairs == [f"renamed {name} to {UNIT}.ipynb"]

    def test_of_several_the_nearest_name_is_taken(self, tmp_path):
        put(tmp_path / "s1" / "notes.ipynb", "{}")
        put(tmp_path / "s1" / ".ipynb_checkpoints" / f"{UNIT}.ipynb", "{}")
        best = put(tmp_path / "s1" / "atention-selfattention.ipynb", "{}")
        submission = found(tmp_path)["s1"]
        assert submission.path == best
        assert "2 notebooks" in submission.notes[0]

    def test_another_units_notebook_is_never_taken(self, tmp_path):
        put(tmp_path / "s1" / "transformer-model" / "transformer-model.ipynb", "{}")
        put(tmp_path / "s2" / "bert-model.ipynb", "{}")
        for name in ("attention-scores", "attention-multi_head"):  # of the same chapter
            put(tmp_path / "s3" / f"{name}.ipynb", "{}")
        people = found(tmp_path)
        assert [people[name].path for name in ("s1", "s2", "s3")] == [None] * 3
        assert not people["s1"].reason

    def test_a_folder_with_a_slightly_other_name(self, tmp_path):
        path = put(tmp_path / "s1" / "Attention-Self attention " / "my.ipynb", "{}")
        assert found(tmp_path)["s1"].path == path

    @pytest.mark.parametrize("name", [f"{UNIT}.py", "work.zip", f"{UNIT}.html"])
    def test_a_file_of_another_kind_is_named(self, tmp_path, name):
        put(tmp_path / "s1" / UNIT / name, "x")
        submission = found(tmp_path)["s1"]
        assert submission.path is None
        assert name in submission.reason

    def test_an_empty_folder_and_an_absent_student_are_missing(self, tmp_path):
        (tmp_path / "s1").mkdir()
        people = found(tmp_path, "s2")
        assert people["s1"] == Submission("s1")
        assert people["s2"] == Submission("s2")

    def test_a_link_to_another_students_work_is_refused(self, tmp_path):
        put(tmp_path / "s1" / f"{UNIT}.ipynb", "{}")
        (tmp_path / "s2").mkdir()
        (tmp_path / "s2" / f"{UNIT}.ipynb").symlink_to(f"../s1/{UNIT}.ipynb")
        (tmp_path / "s3").symlink_to("s1")
        people = found(tmp_path)
        for name in ("s2", "s3"):
            assert people[name].path is None
            assert "link" in people[name].reason

    def test_a_pipe_does_not_block(self, tmp_path):
        (tmp_path / "s1").mkdir()
        os.mkfifo(tmp_path / "s1" / f"{UNIT}.ipynb")
        submission = found(tmp_path)["s1"]
        assert submission.path is None
        assert submission.reason

    def test_names_that_nbgrader_cannot_hold_stay_apart(self, tmp_path):
        for name in ("a[1]", "a(1)", "b*", " c "):
            put(tmp_path / name / f"{UNIT}.ipynb", "{}")
        people = found(tmp_path)
        assert len(people) == 4
        assert not any(char in name for name in people for char in "[]*?")

    def test_hidden_folders_are_no_students(self, tmp_path):
        put(tmp_path / "s1.ipynb", "{}")
        put(tmp_path / "__MACOSX" / f"{UNIT}.ipynb", "{}")
        put(tmp_path / ".git" / f"{UNIT}.ipynb", "{}")
        assert list(found(tmp_path)) == ["s1"]

    def test_a_timestamp_that_is_none_is_left_out_and_told(self, tmp_path):
        put(tmp_path / "s1" / UNIT / f"{UNIT}.ipynb", "{}")
        put(tmp_path / "s1" / UNIT / "timestamp.txt", "yesterday-ish \x00")
        put(tmp_path / "s2" / UNIT / f"{UNIT}.ipynb", "{}")
        put(tmp_path / "s2" / UNIT / "timestamp.txt", "2030-02-03 10:00:00 UTC")
        people = found(tmp_path)
        assert people["s1"].timestamp is None
        assert "timestamp" in people["s1"].notes[0]
        assert people["s2"].timestamp == "2030-02-03 10:00:00 UTC"

    def test_nothing_at_all_is_one_sentence(self, tmp_path):
        with pytest.raises(ClassroomError, match="holds no submissions"):
            collect(tmp_path, UNIT)
        with pytest.raises(ClassroomError, match="no folder of submissions"):
            collect(tmp_path / "none", UNIT)


class TestRoster:
    @pytest.mark.parametrize(
        "text",
        [
            "student\ns1\ns2\n",
            "last_name,student,first_name\nA,s1,B\nC,s2,D\n",
            "\ufeffid;email\ns1;a@example.org\ns2;b@example.org\n",
            "s1\ns2\n\n",
        ],
    )
    def test_class_lists_as_people_have_them(self, tmp_path, text):
        path = put(tmp_path / "class.csv", text)
        assert [person.id for person in read_roster(path)] == ["s1", "s2"]

    def test_names_are_kept(self, tmp_path):
        path = put(tmp_path / "class.csv", "Last Name,Student,First Name\nA,s1,B\n")
        assert read_roster(path) == [Person("s1", "B", "A")]

    def test_an_empty_or_unreadable_list_is_one_sentence(self, tmp_path):
        with pytest.raises(ClassroomError, match="names nobody"):
            read_roster(put(tmp_path / "a.csv", "student\n"))
        with pytest.raises(ClassroomError, match="cannot be opened"):
            read_roster(tmp_path / "b.csv")


# ---------------------------------------------------------------------------------------------
# A whole class


def triangle(wrong: bool) -> str:
    name = "triu" if wrong else "tril"
    return (
        "def causal_mask(length):\n"
        "    if not isinstance(length, int) or isinstance(length, bool) or length < 1:\n"
        "        raise ValueError('length')\n"
        f"    return torch.ones(length, length, dtype=torch.bool).{name}()\n"
    )


@pytest.fixture(scope="module")
def graded(tmp_path_factory, prepared, solved):
    """A class of ten, graded with two processes; the submissions' state before and after."""
    submitted = tmp_path_factory.mktemp("submitted")
    course = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("graded") / "course"))
    whole = solved()
    put(submitted / "full" / UNIT / f"{UNIT}.ipynb", whole)
    put(submitted / "full" / UNIT / "torch.py", "raise SystemExit('shadow')")
    put(submitted / "full" / UNIT / "timestamp.txt", "2030-02-03 10:00:00 UTC")
    put(submitted / "wrong.ipynb", solved(causal_mask=triangle(True)))
    put(submitted / "blank.ipynb", repair.released(UNIT))
    noisy = (
        "import sys, warnings\nwarnings.warn('take care')\nprint('oops', file=sys.stderr)\n"
        + triangle(False)
    )
    put(submitted / "noisy.ipynb", solved(causal_mask=noisy))
    put(submitted / "misnamed" / "work.ipynb", whole)
    put(submitted / "broken.ipynb", nbformat.writes(whole)[:-200])
    put(submitted / "garbage.ipynb", b"\x00\x01 no notebook")
    # No other exercise needs this one, so that it is all that hangs.
    exits = "import os\n\n\ndef decoder_mask(lengths, max_length=None):\n    os._exit(0)\n"
    put(submitted / "exits.ipynb", solved(decoder_mask=exits))
    loops = "def decoder_mask(lengths, max_length=None):\n    while True:\n        pass\n"
    put(submitted / "loops.ipynb", solved(decoder_mask=loops))
    before = state(submitted)
    result = classroom.grade(
        UNIT,
        submitted,
        course,
        roster=[Person("absent", "Ann", "Other")],
        jobs=2,
        limits=LIMITS,
    )
    return result, before, state(submitted)


def of(graded, student: str):
    return next(item for item in graded[0].results if item.student == student)


@pytest.mark.slow
@pytest.mark.sandbox
class TestGrade:
    def test_everybody_has_a_result_with_the_right_status(self, graded):
        statuses = {result.student: result.status for result in graded[0].results}
        assert statuses == {
            "absent": "missing",
            "blank": "graded",
            "broken": "repaired",
            "exits": "crashed",
            "full": "graded",
            "garbage": "unreadable",
            "loops": "timed_out",
            "misnamed": "repaired",
            "noisy": "graded",
            "wrong": "graded",
        }
        assert graded[0].complete

    def test_honest_work_gets_exactly_its_marks(self, graded):
        for student in ("full", "misnamed", "noisy", "broken"):
            assert of(graded, student).score == ASSIGNMENT.points, student
        for student in ("blank", "garbage", "absent"):
            assert of(graded, student).score == 0, student

    def test_warnings_beside_correct_code_cost_nothing_and_are_shown(self, graded):
        noisy = of(graded, "noisy")
        assert noisy.score == ASSIGNMENT.points
        assert "oops" in noisy.printed["causal_mask"]

    def test_a_mistake_costs_its_exercise_and_is_named(self, graded):
        exercise = of(graded, "wrong").exercises["causal_mask"]
        assert exercise.points < exercise.max_points
        assert exercise.misconception
        assert of(graded, "wrong").exercises["padding_mask"].passed

    def test_a_loop_or_an_exit_leaves_the_other_marks(self, graded):
        for student in ("loops", "exits"):
            result = of(graded, student)
            lost = ASSIGNMENT.exercise("decoder_mask").points
            assert result.score == ASSIGNMENT.points - lost, student

    def test_what_was_handed_in_is_not_touched(self, graded):
        _, before, after = graded
        assert before == after

    def test_results_json_is_as_documented(self, graded):
        path = graded[0].course / "graded" / UNIT / "results.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        assert data["assignment"] == UNIT
        assert isinstance(data["seed"], int)
        assert data["grader"]
        entry = next(item for item in data["submissions"] if item["student"] == "wrong")
        assert {"status", "score", "max_score", "seconds", "repairs", "exercises"} <= set(entry)
        exercise = entry["exercises"]["causal_mask"]
        assert {"points", "max_points", "misconception", "message", "tests"} <= set(exercise)
        assert set(exercise["tests"].values()) <= {"passed", "failed", "todo"}

    def test_the_gradebook_has_the_same_marks_for_everybody(self, graded):
        result = graded[0]
        with quiet_database(), Gradebook(f"sqlite:///{result.course}/gradebook.db") as gb:
            for one in result.results:
                notebook = gb.find_submission_notebook(UNIT, UNIT, one.student)
                assert notebook.score == pytest.approx(one.score), one.student
            assert gb.find_student("absent").last_name == "Other"
            question = ASSIGNMENT.questions[0].name
            waits = gb.find_grade(question, UNIT, UNIT, "full").needs_manual_grade
            nothing = gb.find_grade(question, UNIT, UNIT, "blank").needs_manual_grade
            assert (waits, nothing) == (True, False)

    def test_everybody_has_a_feedback_page(self, graded):
        for one in graded[0].results:
            page = graded[0].course / "feedback" / one.student / UNIT / f"{UNIT}.html"
            assert page.is_file(), one.student

    def test_nothing_but_the_notebook_and_its_time_enters_the_course(self, graded):
        folder = graded[0].course / "submitted" / "full" / UNIT
        assert {path.name for path in folder.iterdir()} == {f"{UNIT}.ipynb", "timestamp.txt"}

    def test_lateness_is_noted(self, graded, tmp_path, solved):
        course = graded[0].course
        due = "2030-02-03 08:00:00 UTC"
        submitted = tmp_path / "late"
        put(submitted / "late" / UNIT / f"{UNIT}.ipynb", solved())
        put(submitted / "late" / UNIT / "timestamp.txt", "2030-02-03 10:30:00 UTC")
        result = classroom.grade(UNIT, submitted, course, due=due, limits=LIMITS).results[0]
        assert result.notes == ["handed in 2 hours 30 minutes late"]
        assert result.score == ASSIGNMENT.points
        page = course / "feedback" / "late" / UNIT / f"{UNIT}.html"
        assert "2 hours 30 minutes" in page.read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------
# Grading again, with submissions of which none has to be run


def points_in(course: Path) -> dict[str, list[tuple[str, float | None, float | None]]]:
    """What the gradebook has of everybody."""
    with quiet_database(), Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        return {
            submission.student.id: [
                (grade.name, grade.auto_score, grade.manual_score)
                for notebook in submission.notebooks
                for grade in notebook.grades
            ]
            for submission in gradebook.assignment_submissions(UNIT)
        }


class TestAgain:
    @pytest.fixture
    def folder(self, tmp_path) -> Path:
        put(tmp_path / "in" / "s1.ipynb", b"\x00 no notebook")
        put(tmp_path / "in" / "s2" / UNIT / "notes.txt", "no notebook either")
        return tmp_path / "in"

    def entered(self, course: Path) -> dict[str, int]:
        """When each student's autograded notebook was written."""
        files = (course / "autograded").glob(f"*/{UNIT}/{UNIT}.ipynb")
        return {file.parts[-3]: file.stat().st_mtime_ns for file in files}

    def test_what_has_not_changed_is_neither_marked_nor_entered_again(self, course, folder):
        roster = [Person("s3")]
        first = classroom.grade(UNIT, folder, course, roster=roster)
        before, written = self.entered(course), first.folder / "results.json"
        text = written.read_text()
        again = classroom.grade(UNIT, folder, course, roster=roster)
        assert (first.marked, again.marked) == (3, 0)
        assert self.entered(course) == before
        assert written.read_text() == text
        put(folder / "s1.ipynb", b"\x00 another")
        changed = classroom.grade(UNIT, folder, course, roster=roster)
        assert changed.marked == 1
        after = self.entered(course)
        assert {name for name in after if after[name] != before[name]} == {"s1"}
        seeded = classroom.grade(UNIT, folder, course, roster=roster, seed=first.seed + 1)
        assert seeded.marked == 3
        assert classroom.grade(
            UNIT, folder, course, roster=roster, seed=first.seed + 1, cache=False
        ).marked == 3  # fmt: skip

    def test_every_result_tells_what_it_was_earned_with(self, course, folder):
        graded = classroom.grade(UNIT, folder, course, seed=5)
        data = json.loads((graded.folder / "results.json").read_text())
        for one in data["submissions"]:
            assert (one["grader"], one["seed"]) == (grader_hash(UNIT), 5)
        digest = hashlib.sha256((folder / "s1.ipynb").read_bytes()).hexdigest()
        assert [one["submission"] for one in data["submissions"]] == [digest, ""]
        assert classroom.Class.read(course, UNIT).results == list(graded.results)

    def test_a_gradebook_that_was_lost_is_filled_again(self, course, folder):
        classroom.grade(UNIT, folder, course)
        before = points_in(course)
        (course / "gradebook.db").unlink()
        again = classroom.grade(UNIT, folder, course)
        assert again.marked == 0
        assert points_in(course) == before
        assert before.keys() == {"s1", "s2"}

    def test_a_mark_by_hand_survives_a_new_submission(self, course, folder):
        classroom.grade(UNIT, folder, course)
        name = ASSIGNMENT.questions[0].name
        with quiet_database(), Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
            gradebook.find_grade(name, UNIT, UNIT, "s1").manual_score = 2.5
            gradebook.db.commit()
        before = self.entered(course)
        assert classroom.grade(UNIT, folder, course).marked == 0
        assert self.entered(course) == before  # What a person decides changes nothing of ours.
        put(folder / "s1.ipynb", b"\x00 another")
        classroom.grade(UNIT, folder, course)
        marks = {cell: manual for cell, _, manual in points_in(course)["s1"]}
        assert marks[name] == 2.5

    def test_who_handed_in_before_and_not_now_is_told(self, course, folder):
        put(folder / "s4.ipynb", b"\x00 nothing")
        roster = [Person("s1")]
        classroom.grade(UNIT, folder, course, roster=roster)
        for name in ("s1", "s4"):
            (folder / f"{name}.ipynb").unlink()
        for _ in range(2):
            graded = classroom.grade(UNIT, folder, course, roster=roster)
            assert [(one.student, one.status) for one in graded.results] == [
                ("s1", "missing"), ("s2", "unreadable")]  # fmt: skip
            assert "was there before" in graded.results[0].notes[0]
            assert points_in(course).keys() == {"s1", "s2", "s4"}

    def test_those_who_are_on_no_list_any_more_are_named(self, course, folder):
        classroom.grade(UNIT, folder, course)
        (folder / "s1.ipynb").unlink()
        graded = classroom.grade(UNIT, folder, course)
        assert [remark for remark in graded.remarks if remark.startswith("s1 is neither")]

    def test_what_could_not_be_judged_or_recorded_is_tried_again(self, course, folder, monkeypatch):
        real = worker_pool.grade_all

        def unlucky(submissions, *rest):
            for submission, graded in real(submissions, *rest):
                if submission.student == "s1":
                    graded.result.notes.append("could not judge the submission (bad luck)")
                yield submission, graded

        with monkeypatch.context() as patch:
            patch.setattr(worker_pool, "grade_all", unlucky)
            patch.setattr(Books, "feedback", lambda books, student: None)
            first = classroom.grade(UNIT, folder, course)
        assert not first.complete
        assert all("could not record" in one.notes[-1] for one in first.results)
        again = classroom.grade(UNIT, folder, course)
        assert again.marked == 1
        assert again.complete
        assert classroom.grade(UNIT, folder, course).marked == 0

    def test_settings_change_marks_and_nobody_is_run_again(self, course, folder):
        whole = ASSIGNMENT.points
        left = ASSIGNMENT.exercises[0]
        assert classroom.grade(UNIT, folder, course).assignment.points == whole
        put(course / "grading.toml", f'[{UNIT}]\nleave_out = ["{left.name}"]\n')
        graded = classroom.grade(UNIT, folder, course)
        assert graded.marked == 0
        assert graded.assignment.points == whole - left.points
        assert left.name not in graded.results[0].exercises
        assert classroom.Class.read(course, UNIT).assignment.points == whole - left.points

    def test_a_second_process_is_kept_out(self, course, folder):
        with alone(course), pytest.raises(ClassroomError, match="by another process"):
            classroom.grade(UNIT, folder, course)


class TestDiff:
    """`grade --diff`, on the command line."""

    def grade(self, folder: Path, course: Path, *more: str) -> str:
        arguments = ["grade", UNIT, "--submitted", str(folder), "--jobs", "1"]
        app = command_line._app(["grade", "report"])
        said = CliRunner().invoke(app, [*arguments, "--course", str(course), *more])
        assert said.exit_code == 0, said.output
        return said.output

    def test_nothing_is_written_until_somebody_says_so(self, course, tmp_path):
        folder = tmp_path / "in"
        put(folder / "s1.ipynb", b"\x00 no notebook")
        put(folder / "s2.ipynb", b"\x00 no notebook")
        people = put(tmp_path / "class.csv", "student\ns1\ns2\n[red]s3\n")
        roster = ["--roster", str(people)]
        self.grade(folder, course)
        written = [course / name for name in ("graded", "feedback", "autograded")]
        before = [state(place) for place in written], points_in(course)
        (folder / "s1.ipynb").unlink()
        said = self.grade(folder, course, *roster, "--diff")
        assert "handed in nothing now" in said
        assert "(red)s3" in said
        assert "1 student keeps" in said
        assert "add --yes" in said
        assert ([state(place) for place in written], points_in(course)) == before
        said = self.grade(folder, course, *roster, "--diff", "--yes")
        assert "add --yes" not in said
        after = classroom.Class.read(course, UNIT).results
        assert {one.student: one.status for one in after} == {
            "(red)s3": "missing", "s1": "missing", "s2": "unreadable"}  # fmt: skip
        assert points_in(course).keys() == {"(red)s3", "s1", "s2"}
        assert "no marks change" in self.grade(folder, course, *roster, "--diff")

    def test_what_was_marked_for_it_is_kept(self, course, tmp_path):
        put(tmp_path / "in" / "s1.ipynb", b"\x00 no notebook")
        shown = []
        said = classroom.grade(
            UNIT, tmp_path / "in", course, decide=lambda *seen: bool(shown.append(seen))
        )
        assert said is None
        (change,), count = shown[0]
        assert (change.student, change.old, change.why, count) == ("s1", None, ("new",), 1)
        assert not (course / "graded").exists()
        assert points_in(course) == {}
        assert classroom.grade(UNIT, tmp_path / "in", course).marked == 0


# ---------------------------------------------------------------------------------------------
# What can go wrong on our side


class Failing:
    """Graders of which one exercise's fail by themselves."""

    def __init__(self, real) -> None:
        self.assignment = real.assignment
        self.items = real.items
        self.real = real
        self.foresee = real.foresee

    def run(self, execute, *, exercises=None, **options):
        if exercises is None or "causal_mask" in exercises:
            raise RuntimeError("a grader's own mistake")
        return self.real.run(execute, exercises=exercises, **options)


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_grader_that_fails_costs_only_its_exercise_and_is_told(solved):
    from autograder.judging.runner import Graders

    graders = Failing(Graders(UNIT))
    with Marker(UNIT, graders=graders) as marker:
        result = marker.mark("s", RepairedNotebook(solved()))
    assert result.score == ASSIGNMENT.points - ASSIGNMENT.exercise("causal_mask").points
    assert len(result.notes) == 1
    assert "causal_mask" in result.notes[0]
    whole = classroom.Class(ASSIGNMENT, Path("."), 0, "", [result])
    assert not whole.complete


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("refusal", ["", "setting up uid map: Permission denied"])
def test_without_a_sandbox_nothing_is_graded_and_no_course_made(
    tmp_path, monkeypatch, refusal, jobs
):
    programs = tmp_path / "bin"
    programs.mkdir()
    if refusal:
        put(programs / "bwrap", f"#!/bin/sh\necho '{refusal}' >&2\nexit 1\n").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    put(tmp_path / "in" / "s1.ipynb", repair.released(UNIT))
    put(tmp_path / "in" / "s2.ipynb", b"\x00 no notebook")
    arguments = ["grade", UNIT, "--submitted", str(tmp_path / "in"), "--jobs", jobs]
    app = command_line._app(["grade", "report"])
    said = CliRunner().invoke(app, [*arguments, "--course", str(tmp_path / "course")])
    assert said.exit_code == 2
    assert "Nothing was graded" in said.output
    assert (refusal or "bubblewrap is missing") in said.output
    assert "--unsafe-no-sandbox" in said.output
    assert not (tmp_path / "course").exists()


@pytest.mark.slow
def test_told_so_it_grades_without_a_sandbox_and_reports_again(tmp_path, course, solved):
    put(tmp_path / "in" / "s1.ipynb", solved())
    app = command_line._app(["grade", "report"])
    place = ["--course", str(course)]
    arguments = ["grade", UNIT, "--submitted", str(tmp_path / "in"), "--unsafe-no-sandbox"]
    said = CliRunner().invoke(app, [*arguments, "--jobs", "1", *place])
    assert said.exit_code == 0, said.output
    page = course / "graded" / UNIT / "report.html"
    page.unlink()
    said = CliRunner().invoke(app, ["report", UNIT, *place])
    assert said.exit_code == 0, said.output
    assert page.is_file()


def test_a_submission_that_nbgrader_refuses_still_has_its_marks(course):
    """The second try is with an empty notebook; the marks are those of the first."""
    release = prepare(course, UNIT)
    books = Books(course, UNIT)
    result = empty_result(ASSIGNMENT, "s1", "graded", "")
    result.exercises["causal_mask"].points = 1.0
    books.record(Submission("s1"), Graded(result, "{ no notebook"), release)
    assert result.notes == []
    with quiet_database(), books.open() as gradebook:
        assert gradebook.find_submission(UNIT, "s1").score == 1.0


def test_the_courses_own_folder_of_submissions_is_not_touched(course):
    folder = course / "submitted"
    put(folder / "s1" / UNIT / "notes.txt", "nothing to grade")
    put(folder / "s2" / UNIT / f"{UNIT}.ipynb", b"\x00 no notebook")
    before = state(folder)
    result = classroom.grade(UNIT, folder, course)
    assert [one.status for one in result.results] == ["unreadable", "unreadable"]
    assert result.complete
    assert state(folder) == before


def test_a_course_keeps_its_seed(tmp_path):
    seed = course_seed(tmp_path)
    assert course_seed(tmp_path) == seed
    assert seed != course_seed(tmp_path / "other")
