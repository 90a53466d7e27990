"""The process that is called before it is known what there is to mark."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from autograder import classroom, crew, foreman, paths, repair
from autograder.__main__ import main
from autograder.assignment import AssignmentError
from autograder.collect import collect

CHAPTER = "seq2seq"
SEED = 4


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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


def how(submitted: Path, course: Path) -> dict[str, Any]:
    return foreman.marking_options(CHAPTER, submitted, course, unsafe=False)


def put(folder: Path, student: str) -> None:
    """A notebook as it was handed out."""
    place = folder / student / CHAPTER
    place.mkdir(parents=True)
    source = paths.EXERCISES / CHAPTER / f"{CHAPTER}.ipynb"
    (place / source.name).write_bytes(source.read_bytes())


def sandboxes(of: psutil.Process) -> list[str]:
    """The folders that the sandboxes of a process see."""
    words: list[str] = []
    for child in of.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # It has just ended.
            words += child.cmdline()
    return [word for word in words if "autograder-view-" in word]


@pytest.mark.sandbox
def test_the_sandbox_starts_before_anything_is_known_of_the_class(
    scratch: Path, tmp_path: Path
) -> None:
    """It hides what the class is made of, and what is seen of it goes with the foreman."""
    submitted, course = tmp_path / "submitted", tmp_path / "course"
    with foreman.ahead(CHAPTER, submitted, course, 2, unsafe=False) as lead:
        assert lead is not None
        process = psutil.Process(lead._process.pid)
        deadline = time.monotonic() + 60
        while not sandboxes(process):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert all(word.startswith(str(scratch)) for word in sandboxes(process))
    assert not process.is_running()


@pytest.mark.slow
@pytest.mark.sandbox
def test_a_seed_that_is_told_later_decides(scratch: Path, tmp_path: Path) -> None:
    """The same marks as from one who knew it from the beginning, for a class of one too."""
    submitted, course = tmp_path / "submitted", tmp_path / "course"
    put(submitted, "s1")
    submissions, release = collect(submitted, CHAPTER), repair.released(CHAPTER)
    options = {**how(submitted, course), "seed": SEED}
    found = []
    with foreman.ahead(CHAPTER, submitted, course, 2, unsafe=False) as lead:
        assert lead is not None
        assert lead.suits(options, 2)
        lead.begin(SEED)
        lead.leave_room()
        for jobs, who in ((2, lead), (1, None)):
            ((_, graded),) = crew.grade_all(submissions, options, release, jobs, who)
            found.append({**graded.result.to_json(), "seconds": 0})
    assert found[0] == found[1]
    assert found[0]["status"] == "graded"


@pytest.mark.slow
@pytest.mark.sandbox
def test_who_was_called_for_another_class_is_not_asked(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose sandbox does not hide this class's folders must not see this class."""
    submitted, course = tmp_path / "submitted", tmp_path / "course"
    options = {**how(submitted, course), "seed": SEED}
    with foreman.ahead(CHAPTER, tmp_path / "other", course, 2, unsafe=False) as lead:
        assert lead is not None
        assert not lead.suits(options, 2)
        assert lead.suits({**options, "hide": (tmp_path / "other", course)}, 2)
        assert not lead.suits({**options, "hide": (tmp_path / "other", course)}, 3)
        put(submitted, "s1")
        monkeypatch.setattr(lead, "mark", None)  # Asking it would fail.
        graded = classroom.grade(CHAPTER, submitted, course, jobs=2, seed=SEED, foreman=lead)
    assert graded is not None
    assert [result.status for result in graded.results] == ["graded"]


@pytest.mark.slow
@pytest.mark.sandbox
def test_where_nobody_handed_in_anything_it_is_sent_away(scratch: Path, tmp_path: Path) -> None:
    submitted, course = tmp_path / "submitted", tmp_path / "course"
    (submitted / "absent" / CHAPTER).mkdir(parents=True)
    with foreman.ahead(CHAPTER, submitted, course, 2, unsafe=False) as lead:
        assert lead is not None
        graded = classroom.grade(CHAPTER, submitted, course, jobs=2, seed=SEED, foreman=lead)
        assert lead._process.poll() is not None
    assert graded is not None
    assert [result.status for result in graded.results] == ["missing"]


@pytest.mark.sandbox
def test_it_says_nothing_of_an_assignment_that_there_is_not(
    scratch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who grades the class says so in a sentence; the foreman, asked to the end, just ends."""
    with foreman.ahead("nothing", tmp_path, tmp_path, 2, unsafe=False) as lead:
        assert lead is not None
        lead.begin(SEED)
        assert not list(lead.mark({}, ""))
        lead._process.wait(60)
        with pytest.raises(AssignmentError):
            classroom.grade("nothing", tmp_path, tmp_path, foreman=lead)
    assert capfd.readouterr().err == ""


def test_one_job_needs_no_foreman(tmp_path: Path) -> None:
    with foreman.ahead(CHAPTER, tmp_path, tmp_path, 1, unsafe=False) as lead:
        assert lead is None


def test_calling_one_imports_little() -> None:
    script = (
        "import sys; from autograder import foreman;"
        "assert not {'torch', 'nbformat', 'jsonschema', 'nbgrader'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=paths.ROOT)


@pytest.mark.sandbox
@pytest.mark.parametrize("wrong", ["submitted", "roster"])
def test_a_command_that_goes_wrong_takes_it_along(
    scratch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str
) -> None:
    submitted, course = tmp_path / "submitted", tmp_path / "course"
    arguments = ["--submitted", str(submitted), "--course", str(course), "--jobs", "2"]
    if wrong == "roster":
        put(submitted, "s1")
        arguments += ["--roster", str(tmp_path / "nowhere.csv")]
    with pytest.raises(SystemExit) as end:
        main(["grade", CHAPTER, *arguments])
    assert end.value.code == 2
    said = " ".join(capfd.readouterr().err.split())
    assert ("class list" if wrong == "roster" else "no folder of submissions") in said
    assert "Traceback" not in said
