"""What was graded with what is kept, read one by one, and outlives what interrupts it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.common.files import replacing
from autograder.grading import regrade_diff
from autograder.grading.marker import empty_result, grader_hash
from autograder.grading.result_cache import ResultCache, Results, alone
from autograder.judging.results import SubmissionResult
from autograder.units.assignment import load
from autograder.units.dependencies import dependencies

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)
FIRST = ASSIGNMENT.names[0]


def result_of(student: str, points: float = 0.0, **more) -> SubmissionResult:
    result = empty_result(ASSIGNMENT, student, more.pop("status", "graded"), "Said.")
    result.exercises[FIRST].points = result.score = points
    for name, value in more.items():
        setattr(result, name, value)
    return result


@pytest.fixture
def cache(tmp_path):
    with ResultCache(tmp_path) as opened:
        yield opened


class TestMarks:
    def test_what_is_kept_is_there_when_the_journal_is_opened_again(self, tmp_path):
        result = result_of("s1", 1.5, seed=3, grader="abc", submission="00ff", attempt=2)
        result.printed = {"cell": "lone \ud800 surrogate"}
        with ResultCache(tmp_path) as cache:
            cache.keep(UNIT, "key", result, "notebook \ud800")
        with ResultCache(tmp_path) as cache:
            assert cache.keys(UNIT) == {("s1", 2): "key"}
            assert cache.result(UNIT, "s1", 2) == result
            assert cache.notebook(UNIT, "s1", 2) == "notebook \ud800"
            assert cache.keys("gpt-model") == {}
            with pytest.raises(KeyError):
                cache.result(UNIT, "s1", 1)

    def test_markings_are_counted_and_the_last_counts(self, cache):
        for points in (1.0, 2.0):
            cache.keep(UNIT, f"key {points}", result_of("s1", points), "")
        cache.keep(UNIT, "other", result_of("s2"), "")
        assert cache.markings(UNIT) == {("s1", 1): 2, ("s2", 1): 1}
        assert cache.result(UNIT, "s1", 1).score == 2.0
        assert cache.keys(UNIT)["s1", 1] == "key 2.0"

    def test_the_books_are_remembered(self, cache):
        cache.record(UNIT, "s1", "state", "entry")
        cache.record(UNIT, "s1", "state 2", "entry 2")
        assert cache.recorded(UNIT) == {"s1": ("state 2", "entry 2")}
        assert cache.recorded("gpt-model") == {}


class TestClass:
    def write(self, cache, *results, settings="terms"):
        cache.write_class(ASSIGNMENT, 1, "abc", settings, ((one, 0.5) for one in results))

    def test_results_come_one_by_one_in_the_order_of_the_class(self, tmp_path, cache):
        written = [result_of(name, points) for name, points in (("b", 1), ("a", 2), ("c", 3))]
        self.write(cache, *written)
        results = Results(tmp_path, UNIT)
        assert results == written
        assert len(results) == 3
        assert results[0] == written[0]
        assert results[-1] == written[-1]
        assert results[0] is not results[0]
        assert [one.student for one in results] == ["b", "a", "c"]
        assert results != written[:2]
        with pytest.raises(IndexError):
            results[3]

    def test_a_class_is_written_as_a_whole_or_not_at_all(self, tmp_path, cache):
        self.write(cache, result_of("s1", 1), result_of("s2", 2))

        def breaks_off():
            yield result_of("s2", 0), 0.0
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            cache.write_class(ASSIGNMENT, 9, "xyz", "", breaks_off())
        assert [one.score for one in Results(tmp_path, UNIT)] == [1, 2]
        assert cache.head(UNIT) == (ASSIGNMENT, 1, "abc")

    def test_who_is_gone_is_remembered_but_not_listed(self, tmp_path, cache):
        self.write(cache, result_of("s1", 1), result_of("s2", 2))
        self.write(cache, result_of("s2", 3))
        assert cache.students(UNIT) == ["s2"]
        gone, there = cache.listed(UNIT, "s1"), cache.listed(UNIT, "s2")
        assert (gone.present, gone.result.score) == (False, 1)
        assert (there.present, there.result.score, there.penalty) == (True, 3, 0.5)
        assert cache.listed(UNIT, "s3") is None


class TestTrouble:
    def test_a_damaged_journal_is_one_sentence(self, tmp_path):
        (tmp_path / "result_cache.db").write_bytes(b"this is no database" * 1000)
        with pytest.raises(ClassroomError, match="move it away and grade again"):
            ResultCache(tmp_path)

    def test_a_page_that_is_damaged_is_noticed_before_anybody_is_marked(self, tmp_path):
        with ResultCache(tmp_path) as cache:
            for number in range(50):
                cache.keep(UNIT, "key", result_of(f"s{number}"), "x" * 1000)
        path = tmp_path / "result_cache.db"
        data = bytearray(path.read_bytes())
        data[8192:16384] = b"\xff" * 8192
        path.write_bytes(data)
        with ResultCache(tmp_path) as cache, pytest.raises(ClassroomError, match="move it away"):
            cache.check()

    def test_a_journal_of_another_version_is_one_sentence(self, tmp_path):
        with sqlite3.connect(tmp_path / "result_cache.db") as database:
            database.execute("PRAGMA user_version=99")
        with pytest.raises(ClassroomError, match="version 99"):
            ResultCache(tmp_path)

    def test_a_course_is_graded_by_one_process_at_a_time(self, tmp_path):
        with alone(tmp_path):
            with pytest.raises(ClassroomError, match="by another process"), alone(tmp_path):
                pass
            with alone(tmp_path / "other"):
                pass
        with alone(tmp_path):
            pass

    def test_a_file_is_the_old_one_until_the_new_one_is_whole(self, tmp_path):
        path = tmp_path / "deep" / "file.txt"
        with replacing(path) as scratch:
            scratch.write_text("old")
            assert not path.exists()
        with pytest.raises(FileNotFoundError), replacing(path) as scratch:
            scratch.with_name("nobody").read_text()
        assert path.read_text() == "old"
        assert list(path.parent.iterdir()) == [path]

    def test_a_shared_file_may_be_written_by_two_processes_at_the_same_time(self, tmp_path):
        path = tmp_path / "file.txt"
        other = (
            "import pathlib, sys\nfrom autograder.common.files import replacing\n"
            "with replacing(pathlib.Path(sys.argv[1]), shared=True) as scratch:\n"
            "    scratch.write_text('theirs')\n"
        )
        with replacing(path, shared=True) as scratch:
            scratch.write_text("ours")
            subprocess.run([sys.executable, "-c", other, str(path)], cwd=paths.ROOT, check=True)
            assert path.read_text() == "theirs"
        assert path.read_text() == "ours"
        assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------------
# What marks depend on


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what marks could depend on, to be edited."""
    root = tmp_path_factory.mktemp("checkout")
    no_caches = shutil.ignore_patterns("__pycache__")
    for name in ("autograder", "solutions", "toolkit", f"exercises/{UNIT}"):
        shutil.copytree(paths.ROOT / name, root / name, ignore=no_caches)
    return root


@pytest.fixture(scope="module")
def before(checkout) -> str:
    return grader_hash(UNIT, checkout)


def test_the_copy_is_named_like_the_original(before):
    assert before == grader_hash(UNIT)


@pytest.mark.parametrize(
    "file",
    [
        "autograder/graders/attention/test_self_attention.py",
        *("autograder/graders/attention/common.py", "autograder/graders/common.py"),
        *("solutions/attention/self_attention.py", "solutions/attention/scores.py"),
        "autograder/misconceptions/attention/self_attention.py",
        *(f"exercises/{UNIT}/assignment.json", f"exercises/{UNIT}/given.py"),
        *("autograder/grading/marker.py", "autograder/grading/repair.py"),
        *(
            "autograder/judging/runner.py",
            "autograder/sandbox/session.py",
        ),  # imported in functions only
        *(
            "autograder/sandbox/worker.py",
            "autograder/sandbox/fork_server.py",
        ),  # started by their path
        *(
            "autograder/sandbox/wire.py",
            "autograder/judging/expectations.py",
            "autograder/grading/collect.py",
        ),
    ],
)
def test_editing_what_marks_depend_on_changes_the_graders_name(checkout, before, file):
    path = checkout / file
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    try:
        assert grader_hash(UNIT, checkout) != before
    finally:
        path.write_bytes(content)


def test_editing_anything_else_does_not(checkout, before):
    others = [
        *("autograder/graders/attention/test_multi_head.py", "solutions/attention/multi_head.py"),
        *("autograder/graders/bert/test_model.py", "solutions/bert/model.py"),
        "autograder/demo/make_class.py",
        *(
            "autograder/reports/class_report.py",
            "autograder/reports/feedback.py",
            "autograder/reports/templates/base.css",
        ),
        *(
            "autograder/commands/grade.py",
            "autograder/benchmarks/__main__.py",
            "autograder/gradebook/classroom.py",
        ),
        *(
            "autograder/gradebook/course.py",
            "autograder/grading/result_cache.py",
            "autograder/gradebook/plugin.py",
        ),
        *(
            "autograder/grading/settings.py",
            "toolkit/plots.py",
            "autograder/misconceptions/attention/scores.py",
        ),
    ]
    for file in others:
        path = checkout / file
        path.write_bytes(path.read_bytes() + b"\n")
    assert grader_hash(UNIT, checkout) == before


def test_a_module_of_the_toolkit_counts_once_something_uses_it(checkout):
    used, notebook = checkout / "toolkit" / "corpora" / "tasks.py", checkout / "exercises" / UNIT
    assert used not in dependencies(UNIT, checkout)
    source = paths.solution(UNIT, checkout)
    content = source.read_text()
    source.write_text(content + "\n\ndef later():\n    from toolkit.corpora import tasks\n")
    assert used in dependencies(UNIT, checkout)
    source.write_text(content)
    assert used not in dependencies(UNIT, checkout)
    notebook = notebook / f"{UNIT}.ipynb"
    text = notebook.read_text()
    assert '"import torch' in text
    notebook.write_text(
        text.replace('"import torch', '"import toolkit.corpora.tasks\\nimport torch', 1)
    )
    assert used in dependencies(UNIT, checkout)
    assert checkout / "toolkit" / "__init__.py" in dependencies(UNIT, checkout)


# ---------------------------------------------------------------------------------------------
# Whose marks change, and why


def changed(old: SubmissionResult | None, new: SubmissionResult, *, penalty=0.0, settings="same"):
    """The change from a result that was written without a penalty."""
    before = None
    if old is not None:
        before = regrade_diff.Listed(old, 0.0, "same", True)
    return regrade_diff.change_of(before, new, penalty, settings)


class TestChanges:
    @pytest.mark.parametrize(
        ("new", "why"),
        [
            ({"submission": "bb"}, "submission changed"),
            ({"grader": "h"}, "graders changed"),
            ({"seed": 2}, "seed changed"),
            ({"attempt": 2}, "another attempt counts"),
            ({"submission": "", "status": "missing"}, "handed in nothing now"),
            ({}, "marked again"),
        ],
    )
    def test_the_reason_is_what_changed(self, new, why):
        same = {"submission": "aa", "grader": "g", "seed": 1}
        change = changed(result_of("s", 2.0, **same), result_of("s", 1.0, **(same | new)))
        assert (change.old, change.new) == (2.0, 1.0)
        assert change.why == (why,)
        assert change.exercises == (regrade_diff.ExerciseChange(FIRST, 2.0, 1.0, "Said."),)

    def test_settings_and_penalties_are_told(self):
        old, new = result_of("s", 2.0), result_of("s", 2.0)
        change = changed(old, new, penalty=0.5, settings="other")
        assert (change.old, change.new, change.why) == (2.0, 1.5, ("settings changed",))
        assert change.exercises == ()
        del new.exercises[FIRST]
        new.score, new.max_score = 0.0, new.max_score - 4
        change = changed(old, new, settings="other")
        assert change.exercises == (regrade_diff.ExerciseChange(FIRST, 2.0, None),)

    def test_who_is_new_has_nothing_before(self):
        change = changed(None, result_of("s", 2.0))
        assert (change.old, change.new, change.why) == (None, 2.0, ("new",))

    def test_the_same_marks_are_no_change_whatever_they_were_earned_with(self):
        old = result_of("s", 2.0, submission="aa", grader="g", seed=1)
        assert changed(old, result_of("s", 2.0, submission="bb", grader="h", seed=2)) is None

    def test_a_name_reaches_the_terminal_as_text(self):
        import io

        from rich.console import Console

        out = io.StringIO()
        old, new = result_of("[red]s\x1b]0;x\x07[/red]", 2.0), result_of("[red]s\x1b]0;x\x07[/red]")
        new.exercises[FIRST].message = "[bold]\x1b[31mwrong\x9b[/bold]"
        regrade_diff.show([changed(old, new)], 3, Console(file=out, width=160, color_system=None))
        said = out.getvalue()
        assert "[red]s" in said
        assert "[bold]" in said
        assert not set(said) & {"\x1b", "\x07", "\x9b"}
        assert "2 students keep" in said
