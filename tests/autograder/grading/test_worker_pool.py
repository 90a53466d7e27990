"""Marking in worker processes: what one finds they all find, whatever happens to a process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from autograder.__main__ import main
from autograder.common import paths, progress
from autograder.common.errors import AssignmentError
from autograder.demo import make_class
from autograder.gradebook import classroom
from autograder.grading import marker, repair, worker_pool
from autograder.grading.collect import Submission, collect
from autograder.grading.worker_pool import WorkerPool, grade_all, marking_options
from autograder.judging.results import ExerciseResult, SubmissionResult, TestResult
from autograder.sandbox.limits import Limits, SandboxUnavailable
from tests.autograder import faults
from tests.autograder.helpers import until

UNIT = "seq2seq-text"
SEED = 3
LIMITS = Limits(seconds_per_call=5, seconds_per_cell=5, seconds_total=60)
OPTIONS: dict[str, Any] = {"unit": UNIT, "seed": SEED, "limits": LIMITS}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; in the end nothing is left there, and no process."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = set(psutil.Process().children(recursive=True))
    yield folder
    deadline = time.monotonic() + 20
    while left := set(psutil.Process().children(recursive=True)) - before:
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.1)
    assert not list(folder.iterdir())


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three honest notebooks, one without an answer and one that is no notebook."""
    folder = tmp_path_factory.mktemp("class") / "submitted"
    make_class.make_honest(folder, UNIT, 3)
    (folder / "absent" / UNIT).mkdir(parents=True)
    (folder / "rubbish.ipynb").write_bytes(b"\x00\x01")
    return folder


def hand_in(folder: Path, name: str, *cells: str) -> None:
    """A right notebook with these cells at its beginning."""
    work = make_class.Maker(folder, UNIT, 0).complete()
    for cell in cells:
        work.own(0, cell)
    place = folder / name / UNIT
    place.mkdir(parents=True)
    (place / f"{UNIT}.ipynb").write_text(work.text(), encoding="utf-8")


def marks(
    submissions: Sequence[Submission],
    jobs: int,
    tell: Callable[[str], None] = lambda student: None,
    pool: WorkerPool | None = None,
) -> dict[str, dict[str, Any]]:
    found = {}
    release = repair.released(UNIT)
    with closing(grade_all(submissions, OPTIONS, release, jobs, pool)) as graded:
        for submission, one in graded:
            assert submission.student not in found
            found[submission.student] = {**one.result.to_json(), "seconds": 0}
            tell(submission.student)
    return found


def unjudged(found: dict[str, dict[str, Any]]) -> list[str]:
    """Those without marks because something of ours failed."""
    return [
        student
        for student, one in found.items()
        if any(note.startswith(marker.UNJUDGED) for note in one["notes"])
    ]


def pool_process() -> psutil.Process:
    """The pool process of this test, whose temporary files lie in the test's folder."""

    def found() -> list[psutil.Process]:
        children = [(child, " ".join(command(child))) for child in psutil.Process().children()]
        ours = f"pool_process.main.* {tempfile.gettempdir()}/autograder-pool-"
        return [child for child, words in children if re.search(ours, words)]

    return until(found)[0]


def workers() -> list[psutil.Process]:
    """Those that the pool process has forked: they run the same command."""
    pool = pool_process()
    return [child for child in pool.children() if command(child) == pool.cmdline()]


def command(process: psutil.Process) -> list[str]:
    """The words of its command; none if it has just ended."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def sandboxes(of: psutil.Process) -> list[str]:
    """The folders that the sandboxes of a process see."""
    words: list[str] = []
    for child in of.children(recursive=True):
        words += command(child)
    return [word for word in words if "autograder-view-" in word]


@pytest.mark.slow
@pytest.mark.sandbox
def test_two_workers_find_what_one_finds(submitted: Path) -> None:
    submissions = collect(submitted, UNIT)
    alone, together = marks(submissions, 1), marks(submissions, 2)
    assert json.dumps(alone, sort_keys=True) == json.dumps(together, sort_keys=True)
    assert {one["status"] for one in together.values()} >= {"graded", "missing", "unreadable"}


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_worker_that_dies_costs_nobody_a_mark_and_no_other_worker_notices(
    submitted: Path, tmp_path: Path
) -> None:
    for student in ("a-slow", "b-slow"):
        hand_in(tmp_path / "in", student, "import time\n\ntime.sleep(3)\n")
    submissions = [*collect(tmp_path / "in", UNIT), *collect(submitted, UNIT)]

    def end_one() -> bool:
        """End a worker while both sleep. Is the other one there when it has been replaced?"""
        until(lambda: len(workers()) == 2)
        ended, other = workers()
        ended.kill()
        until(lambda: set(workers()) - {ended, other})
        return other in workers()

    with ThreadPoolExecutor(1) as beside:
        left_alone = beside.submit(end_one)
        found = marks(submissions, 2)
    for student in ("a-slow", "b-slow"):
        assert found[student]["score"] == found[student]["max_score"]
    assert len(found) == len(submissions)
    assert not unjudged(found)
    assert left_alone.result()


@pytest.mark.slow
@pytest.mark.sandbox
def test_when_the_pool_process_dies_another_one_goes_on(submitted: Path) -> None:
    submissions = collect(submitted, UNIT)
    done: list[str] = []

    def tell(student: str) -> None:
        done.append(student)
        if len(done) == 3:  # After those that needed no process, and one that did.
            pool_process().kill()

    found = marks(submissions, 2, tell)
    assert len(found) == len(submissions)
    assert not unjudged(found)


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_submission_that_sleeps_ends_at_its_bound_and_keeps_what_it_earned(
    submitted: Path, tmp_path: Path
) -> None:
    """The bound is that of the whole submission: no cell goes beyond its own."""
    hand_in(tmp_path / "in", "sleeper", *["import time\n\ntime.sleep(1)\n"] * 12)
    submissions = [*collect(tmp_path / "in", UNIT), *collect(submitted, UNIT)]
    limits = Limits(seconds_per_call=3, seconds_per_cell=3, seconds_total=6)
    found = {}
    options = {**OPTIONS, "limits": limits}
    for submission, one in grade_all(submissions, options, repair.released(UNIT), 2):
        found[submission.student] = one.result
    assert found["sleeper"].status == "timed_out"
    assert found["sleeper"].seconds < 2 * limits.seconds_total
    assert found["sleeper"].notes == [
        "stopped: the submission used up the 5.4 seconds that its code may take"
    ]
    lost = [one.message for one in found["sleeper"].exercises.values() if not one.passed]
    assert lost
    assert all("was not run to its end: the submission used up" in words for words in lost)
    assert found["honest-001"].status == "graded"


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_worker_beyond_its_bounds_is_ended_and_what_was_earned_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is our own code that spins or fills the memory here, which no limit inside ends."""
    spins, hoards = f"judge-{faults.SPINS}", f"judge-{faults.HOARDS}"
    for student in (spins, hoards, "z-honest"):
        hand_in(tmp_path / "in", student)
    monkeypatch.setattr(worker_pool, "PROGRAM", faults.PROGRAM)
    limits = Limits(seconds_total=6, judging_bytes=200 << 20)
    options = {**OPTIONS, "limits": limits}
    release = repair.released(UNIT)
    submissions = collect(tmp_path / "in", UNIT)
    found = {
        submission.student: graded.result
        for submission, graded in grade_all(submissions, options, release, 2)
    }
    assert found["z-honest"].score == found["z-honest"].max_score
    words = {spins: "used up the 6 seconds", hoards: "more than the 200 MB"}
    for student, bound in words.items():
        result = found[student]
        assert result.status == "timed_out"
        assert bound in result.notes[-1]
        *_, last = result.exercises.values()
        assert bound in last.message
        earned = [one.points for one in result.exercises.values()]
        most = [one.max_points for one in result.exercises.values()]
        assert earned[: faults.LAST_JUDGED] == most[: faults.LAST_JUDGED]
        assert result.score == sum(most[: faults.LAST_JUDGED])
        assert result.seconds <= limits.seconds_total + 2


class TestStartedBefore:
    """`grade` starts a pool, sees to the course, and then hands out the submissions."""

    @pytest.fixture
    def pool(self, tmp_path: Path) -> Iterator[WorkerPool]:
        folders = tmp_path / "submitted", tmp_path / "course"
        with WorkerPool(marking_options(UNIT, *folders, unsafe=False), 2) as pool:
            yield pool

    @pytest.mark.sandbox
    def test_the_sandbox_starts_before_anything_is_known_of_the_class(
        self, pool: WorkerPool, nothing_is_left: Path
    ) -> None:
        """What is seen of it goes with the pool."""
        process = psutil.Process(pool._process.pid)
        until(lambda: sandboxes(process))
        assert all(word.startswith(str(nothing_is_left)) for word in sandboxes(process))
        pool.close()
        assert not process.is_running()

    @pytest.mark.slow
    @pytest.mark.sandbox
    def test_it_marks_them_all_and_another_one_finds_the_same(
        self, submitted: Path, pool: WorkerPool
    ) -> None:
        submissions = collect(submitted, UNIT)
        pool.begin(SEED, LIMITS)
        process = pool._process
        found = marks(submissions, 2, pool=pool)
        assert pool._process is process
        assert found == marks(submissions, 1)

    @pytest.mark.slow
    @pytest.mark.sandbox
    def test_when_it_has_died_another_one_does_the_work(
        self, submitted: Path, pool: WorkerPool
    ) -> None:
        pool_process().kill()
        pool.begin(SEED, LIMITS)
        submissions = collect(submitted, UNIT)
        found = marks(submissions, 2, pool=pool)
        assert len(found) == len(submissions)
        assert not unjudged(found)

    @pytest.mark.sandbox
    def test_when_the_command_is_killed_it_ends_and_leaves_nothing(
        self, nothing_is_left: Path
    ) -> None:
        """The fixture sees that no process and no folder is left."""
        script = (
            "import os, signal, time; from pathlib import Path;"
            "from autograder.grading import worker_pool;"
            f"how = worker_pool.marking_options({UNIT!r}, Path('a'), Path('b'), unsafe=False);"
            "pool = worker_pool.WorkerPool(how, 2); time.sleep(6);"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        environment = {**__import__("os").environ, "TMPDIR": str(nothing_is_left)}
        ended = subprocess.run([sys.executable, "-c", script], cwd=paths.ROOT, env=environment)
        assert ended.returncode == -9
        deadline = time.monotonic() + 20
        while list(nothing_is_left.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not list(nothing_is_left.iterdir())

    @pytest.mark.slow
    @pytest.mark.sandbox
    def test_where_nobody_handed_in_anything_it_is_sent_away(
        self, pool: WorkerPool, tmp_path: Path
    ) -> None:
        (tmp_path / "submitted" / "absent" / UNIT).mkdir(parents=True)
        graded = classroom.grade(
            UNIT, tmp_path / "submitted", tmp_path / "course", seed=SEED, pool=pool
        )
        assert pool._process.poll() is not None
        assert graded is not None
        assert [result.status for result in graded.results] == ["missing"]

    def test_it_says_nothing_of_an_assignment_that_there_is_not(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Whoever grades the class says so in a sentence; the pool process just ends."""
        options = marking_options("nothing", tmp_path, tmp_path, unsafe=False)
        with WorkerPool(options, 2) as pool:
            pool.begin(SEED, LIMITS)
            pool._process.wait(60)
            with pytest.raises(AssignmentError):
                classroom.grade("nothing", tmp_path, tmp_path, pool=pool)
        assert capfd.readouterr().err == ""

    def test_it_imports_little_here(self) -> None:
        script = (
            "import sys; from autograder.grading import worker_pool;"
            "assert not {'torch', 'nbformat', 'jsonschema', 'nbgrader'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", script], check=True, cwd=paths.ROOT)

    @pytest.mark.sandbox
    @pytest.mark.parametrize("wrong", ["submitted", "roster"])
    def test_a_command_that_goes_wrong_takes_it_along(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str
    ) -> None:
        submitted, course = tmp_path / "submitted", tmp_path / "course"
        arguments = ["--submitted", str(submitted), "--course", str(course), "--jobs", "2"]
        if wrong == "roster":
            hand_in(submitted, "s1")
            arguments += ["--roster", str(tmp_path / "nowhere.csv")]
        with pytest.raises(SystemExit) as end:
            main(["grade", UNIT, *arguments])
        assert end.value.code == 2
        said = " ".join(capfd.readouterr().err.split())
        assert ("class list" if wrong == "roster" else "no folder of submissions") in said
        assert "Traceback" not in said


def test_who_handed_in_nothing_needs_no_process(submitted: Path) -> None:
    submissions = [one for one in collect(submitted, UNIT) if one.path is None]
    assert len(submissions) == 1
    before = psutil.Process().children(recursive=True)
    for _, graded in grade_all(submissions, OPTIONS, repair.released(UNIT), 2):
        assert graded.result.status == "missing"
        assert psutil.Process().children(recursive=True) == before


def test_without_a_sandbox_nobody_is_graded(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    submissions = [one for one in collect(submitted, UNIT) if one.path is not None]
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing"):
        list(grade_all(submissions, OPTIONS, repair.released(UNIT), 2))


def test_a_machine_on_which_the_reference_fails_grades_nobody() -> None:
    """As when PyTorch computes something else there than the graders expect."""

    class Unfit(marker.Marker):
        def start(self) -> None:
            pass

        def _run(self, nb: Any, *_: Any) -> SubmissionResult:
            written = "".join(cell.source for cell in nb.cells if cell.cell_type == "code")
            assert "NotImplementedError" not in written  # The reference's answers are in.
            wrong = ExerciseResult("mean", 0.0, 1.0, message="Row 0 differs.")
            wrong.tests = [TestResult("test", "purpose", False, 1.0, "failed")]
            return SubmissionResult("", exercises={"mean": wrong})

    complaint = Unfit(UNIT).begin()
    assert "mean does not pass on this machine (Row 0 differs.)" in complaint
    assert "doctor" in complaint


@pytest.mark.sandbox
def test_the_complaint_reaches_whoever_grades(
    submitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        worker_pool,
        "PROGRAM",
        worker_pool.PROGRAM.replace(
            "; pool_process.main",
            ", marker; marker.Marker.begin = lambda self: 'It does not add up.'; pool_process.main",
        ),
    )
    submissions = [one for one in collect(submitted, UNIT) if one.path is not None]
    with pytest.raises(AssignmentError, match="It does not add up"):
        list(grade_all(submissions, OPTIONS, repair.released(UNIT), 2))


@pytest.mark.parametrize(
    ("speed", "words"), [(None, ""), (0.25, "15 a minute"), (4.26, "4.3 a second")]
)
def test_the_bar_tells_how_fast_it_goes(speed: float | None, words: str) -> None:
    from rich.progress import Progress

    bar = Progress()
    bar.add_task("x", total=4)
    task = bar.tasks[0]
    task.finished_speed = speed
    assert progress.rate(task) == words


def test_the_bar_shows_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.showing_progress() as tell:
        for done in range(4):
            tell("grading", done, 4)
            time.sleep(0.02)
        tell("grading", 4, 4)
    said = capsys.readouterr().err
    assert "4/4" in said
    assert "a second" in said
