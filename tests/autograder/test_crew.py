"""Marking with several processes: the same results as with one, whatever happens to a process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from autograder import crew, demo_class, marker, progress, repair
from autograder.collect import Submission, collect
from autograder.results import ExerciseResult, SubmissionResult
from autograder.walls import Limits, SandboxUnavailable

CHAPTER = "seq2seq"
LIMITS = Limits(seconds_per_call=5, seconds_per_cell=5, seconds_total=60)
OPTIONS: dict[str, Any] = {"chapter": CHAPTER, "seed": 3, "limits": LIMITS}


@pytest.fixture(scope="module")
def submitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three honest notebooks, one without an answer and one that is no notebook."""
    folder = tmp_path_factory.mktemp("class") / "submitted"
    demo_class.make_honest(folder, CHAPTER, 3)
    (folder / "absent" / CHAPTER).mkdir(parents=True)
    (folder / "rubbish.ipynb").write_bytes(b"\x00\x01")
    return folder


def slow(folder: Path, name: str, seconds: float) -> None:
    """A right notebook with a cell that waits."""
    maker = demo_class.Maker(folder, CHAPTER, 0)
    work = maker.complete()
    work.own(0, f"import time\n\ntime.sleep({seconds})\n")
    place = folder / name / CHAPTER
    place.mkdir(parents=True)
    (place / f"{CHAPTER}.ipynb").write_text(work.text(), encoding="utf-8")


def marks(
    submissions: list[Submission],
    jobs: int,
    tell: Callable[[str], None] = lambda student: None,
    lead: crew.Foreman | None = None,
) -> dict[str, dict[str, Any]]:
    found = {}
    release = repair.released(CHAPTER)
    for submission, graded in crew.grade_all(submissions, OPTIONS, release, jobs, lead):
        assert submission.student not in found
        found[submission.student] = {**graded.result.to_json(), "seconds": 0}
        tell(submission.student)
    return found


def unjudged(found: dict[str, dict[str, Any]]) -> list[str]:
    """Those without marks because something of ours failed."""
    return [
        student
        for student, one in found.items()
        if any(note.startswith(marker.UNJUDGED) for note in one["notes"])
    ]


def foreman() -> psutil.Process:
    """The foreman of this process."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process().children():
            if "foreman.main" in " ".join(child.cmdline()):
                return child
        time.sleep(0.05)
    raise AssertionError("there is no foreman")


def workers(of: psutil.Process) -> list[psutil.Process]:
    """Those that the foreman has forked: they run the same command."""
    return [child for child in of.children() if child.cmdline() == of.cmdline()]


@pytest.fixture
def nobody_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = set(psutil.Process().children(recursive=True)) - before
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"processes are left: {left}")


@pytest.mark.slow
@pytest.mark.sandbox
def test_two_processes_find_what_one_finds(submitted: Path, nobody_is_left: None) -> None:
    submissions = collect(submitted, CHAPTER)
    alone, together = marks(submissions, 1), marks(submissions, 2)
    assert json.dumps(alone, sort_keys=True) == json.dumps(together, sort_keys=True)
    assert {one["status"] for one in together.values()} >= {"graded", "missing", "unreadable"}


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_worker_that_dies_costs_nobody_a_mark(
    submitted: Path, tmp_path: Path, nobody_is_left: None
) -> None:
    """The first submission waits; its worker is killed once, and it is marked by another."""
    slow(tmp_path, "a-slow", 2)
    submissions = [*collect(tmp_path, CHAPTER), *collect(submitted, CHAPTER)]
    killed = threading.Event()

    def kill() -> None:
        lead = foreman()
        while not workers(lead):
            time.sleep(0.05)
        time.sleep(0.5)
        for worker in workers(lead)[:1]:
            worker.kill()
        killed.set()

    thread = threading.Thread(target=kill)
    thread.start()
    found = marks(submissions, 2)
    thread.join()
    assert killed.is_set()
    assert found["a-slow"]["score"] == found["a-slow"]["max_score"]
    assert len(found) == len(submissions)
    assert not unjudged(found)


@pytest.mark.slow
@pytest.mark.sandbox
def test_when_the_foreman_dies_another_one_goes_on(submitted: Path, nobody_is_left: None) -> None:
    submissions = collect(submitted, CHAPTER)
    done: list[str] = []

    def tell(student: str) -> None:
        done.append(student)
        if len(done) == 3:  # After those that needed no process, and one that did.
            foreman().kill()

    found = marks(submissions, 2, tell)
    assert len(found) == len(submissions)
    assert not unjudged(found)


@pytest.mark.slow
class TestWhoWasCalledBefore:
    """`grade` calls a foreman, sees to the course, and then hands out the submissions."""

    def test_it_marks_them_all_and_nobody_else_is_called(
        self, submitted: Path, monkeypatch: pytest.MonkeyPatch, nobody_is_left: None
    ) -> None:
        submissions = collect(submitted, CHAPTER)
        with crew.called(submissions, OPTIONS, 2) as lead:
            assert lead is not None
            monkeypatch.setattr(crew, "Foreman", None)  # Calling another one would fail.
            found = marks(submissions, 2, lead=lead)
        assert len(found) == len(submissions)
        assert sum(one["status"] == "graded" for one in found.values()) == 3
        assert not unjudged(found)

    def test_when_it_has_died_another_one_does_the_work(
        self, submitted: Path, nobody_is_left: None
    ) -> None:
        submissions = collect(submitted, CHAPTER)
        with crew.called(submissions, OPTIONS, 2) as lead:
            foreman().kill()
            found = marks(submissions, 2, lead=lead)
        assert len(found) == len(submissions)
        assert not unjudged(found)

    def test_without_work_it_ends(self, submitted: Path, nobody_is_left: None) -> None:
        submissions = collect(submitted, CHAPTER)
        with crew.called(submissions, OPTIONS, 2):
            process = foreman()
        assert not process.is_running()

    def test_what_it_lacks_is_told_although_nobody_listened_yet(
        self, submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        submissions = [one for one in collect(submitted, CHAPTER) if one.path is not None]
        monkeypatch.setenv("PATH", str(tmp_path))
        with crew.called(submissions, OPTIONS, 2) as lead:
            process = foreman()
            psutil.wait_procs([process], timeout=60)
            release = repair.released(CHAPTER)
            with pytest.raises(SandboxUnavailable, match="bubblewrap is missing"):
                list(crew.grade_all(submissions, OPTIONS, release, 2, lead))

    def test_for_nothing_to_run_nobody_is_called(self, submitted: Path) -> None:
        submissions = [one for one in collect(submitted, CHAPTER) if one.path is None]
        with crew.called(submissions, OPTIONS, 2) as lead:
            assert lead is None


def test_who_handed_in_nothing_needs_no_process(submitted: Path) -> None:
    submissions = [one for one in collect(submitted, CHAPTER) if one.path is None]
    assert len(submissions) == 1
    before = psutil.Process().children(recursive=True)
    release = repair.released(CHAPTER)
    for _, graded in crew.grade_all(submissions, OPTIONS, release, 2):
        assert graded.result.status == "missing"
        assert psutil.Process().children(recursive=True) == before


def test_without_a_sandbox_nobody_is_graded(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    submissions = [one for one in collect(submitted, CHAPTER) if one.path is not None]
    with pytest.raises(SandboxUnavailable, match="bubblewrap is missing"):
        list(crew.grade_all(submissions, OPTIONS, repair.released(CHAPTER), 2))


def test_a_machine_on_which_the_reference_fails_grades_nobody() -> None:
    """As when PyTorch computes something else there than the graders expect."""

    class Unfit(marker.Marker):
        def start(self) -> None:
            pass

        def _run(self, nb: Any) -> SubmissionResult:
            written = "".join(cell.source for cell in nb.cells if cell.cell_type == "code")
            assert "NotImplementedError" not in written  # The reference's answers are in.
            wrong = ExerciseResult("mean", 0.0, 1.0, message="Row 0 differs.")
            wrong.tests = [crew_test("failed")]
            return SubmissionResult("", exercises={"mean": wrong})

    complaint = Unfit(CHAPTER).begin()
    assert "mean does not pass on this machine (Row 0 differs.)" in complaint
    assert "doctor" in complaint


def crew_test(outcome: str) -> Any:
    from autograder.results import TestResult

    return TestResult("test", "purpose", False, 1.0, outcome)


@pytest.mark.sandbox
def test_the_complaint_reaches_whoever_grades(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, ...]] = []

    class Listener:
        def send(self, message: tuple[Any, ...]) -> None:
            sent.append(message)

    monkeypatch.setattr(marker.Marker, "begin", lambda self: "It does not add up.")
    crew.lead(Listener(), marker.Marker(CHAPTER), 2)  # type: ignore[arg-type]
    assert [(message[0], message[2]) for message in sent] == [("unfit", "It does not add up.")]


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
