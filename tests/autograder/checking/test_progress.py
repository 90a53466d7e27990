"""How far a student is: a row for each unit's notebook in a folder, whatever became of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from autograder.assignments import recorder
from autograder.checking import progress as checking
from autograder.checking.progress import Progress, notebooks, progress, unanswered
from autograder.commands.progress import lines
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.units.assignment import Question, load
from autograder.units.variants import reference_answers
from tests.autograder.helpers import put, status_of

SCORES, SELF = "attention-scores", "attention-self_attention"


@pytest.fixture(scope="module", autouse=True)
def _recorded() -> None:
    for unit in (SCORES, SELF):
        recorder.record(unit)


def filled(unit: str, names: list[str], **changes: str) -> NotebookNode:
    """The student's notebook with the reference's answers to some exercises."""
    notebook = nbformat.read(paths.EXERCISES / unit / f"{unit}.ipynb", as_version=4)
    answers = {name: reference_answers(unit)[name] for name in names} | changes
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    return notebook


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as students have them: two units, copies, what is damaged and what is not ours."""
    place = tmp_path_factory.mktemp("mine")
    all_of_it = list(load(SELF).names)
    put(place / "week2" / f"{SELF}.ipynb", filled(SELF, all_of_it, why_scale="Because of d_k."))
    half = filled(SCORES, ["DotScore", "masked_softmax"], context_vector="1 / 0")
    put(place / "week1" / "deep" / "renamed.ipynb", half)
    put(place / "week1" / ".ipynb_checkpoints" / f"{SCORES}-checkpoint.ipynb", half)
    put(place / ".venv" / "lib" / f"{SCORES}.ipynb", half)
    put(place / "bert-model.ipynb", '{"cells": [')
    put(place / "torn.ipynb", b"\xff\xfe")
    put(place / "old.ipynb", filled(SCORES, [], **{"setup-2": 'check = checks_for("gpt")'}))
    put(place / "notes.ipynb", '{"cells": [{"cell_type": "code", "source": "1 + 1"}]}')
    put(place / "attention.py", "checks_for('attention-scores')")
    return place


@pytest.fixture(scope="module")
def found(folder: Path) -> list[Progress]:
    return progress(folder)


def test_each_units_notebook_is_a_row_in_the_order_of_the_book(found: list[Progress]) -> None:
    assert [entry.path.name for entry in found] == [
        "renamed.ipynb",
        f"{SELF}.ipynb",
        "bert-model.ipynb",
        "old.ipynb",
        "torn.ipynb",
    ]


def test_a_row_says_what_check_says(found: list[Progress]) -> None:
    half, whole, *_ = found
    assert (half.unit, half.right, half.exercises) == (SCORES, 2, 8)
    assert (half.points, half.max_points) == (6, 21)  # DotScore 2 and masked_softmax 4
    assert (half.open, half.questions) == (0, 0)
    assert half.checked
    assert half.trouble.endswith("1 / 0 raised ZeroDivisionError: division by zero.")
    assert (whole.unit, whole.right, whole.exercises) == (SELF, 6, 6)
    assert (whole.points, whole.max_points) == (15, 15)
    assert (whole.open, whole.questions) == (1, 2)
    assert whole.checked
    assert whole.trouble == ""


def test_a_damaged_notebook_is_a_row_with_a_sentence(found: list[Progress]) -> None:
    for entry, said in zip(
        found[2:],
        ["is not a readable notebook", "gpt is a chapter of 4 units", "is not a readable notebook"],
        strict=True,
    ):
        assert said in entry.trouble
        assert "\n" not in entry.trouble
        assert not entry.checked
    assert [entry.unit for entry in found[2:]] == ["bert-model", "", ""]


def test_the_table_is_readable_at_80_columns(found: list[Progress], folder: Path) -> None:
    shown = [line for line, _ in lines(found, folder)]
    rows = [line for line in shown if not line.startswith("    ")]
    assert max(map(len, rows)) < 80
    assert [row.split() for row in rows] == [
        ["Unit", "Exercises", "Points", "Open", "questions"],
        [SCORES, "2", "/", "8", "6", "/", "21", "–"],
        [SELF, "6", "/", "6", "15", "/", "15", "1", "of", "2"],
        ["bert-model", "?", "?", "?"],
        ["old.ipynb", "?", "?", "?"],
        ["torn.ipynb", "?", "?", "?"],
        ["together", "8", "/", "14", "21", "/", "36", "1", "of", "2"],
    ]
    widest = max(paths.UNITS, key=len)
    longest = Progress(Path("x"), widest, 34, 34, 99.25, 99.5, checked=True)
    _, row = [line for line, _ in lines([longest], Path())]
    assert len(row) < 80
    assert f"{widest} " in row


def test_two_notebooks_of_one_unit_are_told_apart(tmp_path: Path) -> None:
    two = [Progress(tmp_path / name, SCORES, 1, 8, 2.0, 21.0, checked=True) for name in "ab"]
    assert [line for line, _ in lines(two, tmp_path)][2::2] == ["    a", "    b"]


def test_the_command_prints_the_table_whole_and_its_status_says_whether_all_was_checked(
    folder: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "progress", str(folder)],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert f"{SELF:<32}        6 / 6          15 / 15           1 of 2" in done.stdout
    sentence = "open it in Jupyter and save it again, or start from a fresh copy."
    assert (
        f"    ! bert-model.ipynb is not a readable notebook (broken JSON); {sentence}"
        in done.stdout
    )
    assert "Traceback" not in done.stdout + done.stderr


def test_a_class_of_readable_notebooks_ends_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        checking,
        "_checked",
        lambda entry, seconds: Progress(entry.path, entry.unit, 1, 8, 2.0, 21.0, checked=True),
    )
    put(tmp_path / "x.ipynb", filled(SCORES, []))
    assert status_of(["progress", str(tmp_path)]) == 0
    assert "attention-scores" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "nothing"])
def test_a_folder_without_notebooks_is_one_sentence(tmp_path: Path, name: str) -> None:
    expected = (
        f"There is no folder {tmp_path}/nothing;" if name else "No notebook of a unit lies in"
    )
    with pytest.raises(AssignmentError, match=expected) as caught:
        progress(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_notebook_that_cannot_be_checked_is_a_row_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise AssignmentError("The recorded answers are missing.")

    monkeypatch.setattr(checking, "check_notebook", refuses)
    put(tmp_path / "x.ipynb", filled(SELF, []))
    (entry,) = progress(tmp_path)
    assert (entry.unit, entry.checked, entry.trouble) == (
        SELF,
        False,
        "The recorded answers are missing.",
    )
    rows = [line.split() for line, _ in lines([entry], tmp_path)]
    assert rows[1] == [SELF, "?", "/", "6", "?", "/", "15", "2", "of", "2"]


def test_it_is_told_how_far_the_checking_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_checked", lambda entry, seconds: entry)
    for name in "ab":
        put(tmp_path / f"{name}.ipynb", filled(SCORES, []))
    told: list[tuple[int, int]] = []
    progress(tmp_path, tell=lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("source", "answered"),
    [
        ("**Your answer:**\n\n*Your answer here.*", False),
        ("**Your answer:**\n\n  \n", False),
        ("", False),
        ("**Your answer:**\n\nBecause.", True),
        ("**Your answer:** Because.", True),
        ("*Your answer here.* Because.", True),
        (["**Your answer:**\n", "Because."], True),
    ],
)
def test_a_question_is_open_until_somebody_writes_something(
    source: str | list[str], answered: bool
) -> None:
    question = Question("why", "Why", 3.0, "s")
    cell = {
        "cell_type": "markdown",
        "source": source,
        "metadata": {"nbgrader": {"grade_id": "why"}},
    }
    assert unanswered([cell], [question]) == ([] if answered else [question])
    assert unanswered([{"metadata": None}, {"metadata": {"nbgrader": 3}}], [question]) == [question]


def test_folders_of_programs_are_passed_over(folder: Path) -> None:
    assert {path.name for path in notebooks(folder)} == {
        "renamed.ipynb",
        f"{SELF}.ipynb",
        "bert-model.ipynb",
        "torn.ipynb",
        "old.ipynb",
        "notes.ipynb",
    }
