"""The student's zip: works where it is unpacked, and tells no solutions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from autograder.assignments import builder, bundle, recorded
from autograder.common import paths
from autograder.judging.recording import Recording
from autograder.judging.runner import Graders
from autograder.units.assignment import load
from tests.autograder.helpers import assert_no_solutions, handed_out

ATTENTION = load("attention")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.bundle("attention", tmp_path_factory.mktemp("zip") / "attention.zip")


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student's folder, on a machine without the course."""
    target = tmp_path_factory.mktemp("student")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(target)
    return target / "attention"


# Python as a student has it: the packages, but not the course. An editable install of the course
# puts a finder or a path entry in place, so that both are taken out before anything is imported.
ALONE = """
import os, sys
course = {course!r}
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != course]
sys.meta_path[:] = [
    finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")
    and "__editable__" not in getattr(finder, "__name__", "")
]
sys.path.insert(0, os.getcwd())
sys.dont_write_bytecode = True
"""


def alone(folder: Path, code: str) -> str:
    """What `code` prints in a Python that sees the folder and no checkout of the course."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(course=str(paths.ROOT)) + code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(folder: Path, changes: dict[str, tuple[str, str]], name: str = "filled.ipynb") -> Path:
    """The bundle's notebook with the reference's cells, some of them changed."""
    instructor, _ = builder.instructor(paths.SOLUTIONS / "attention.py")
    right = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in instructor.cells
        if "nbgrader" in cell.metadata
    }
    notebook = nbformat.read(folder / "attention.ipynb", as_version=4)
    for cell in notebook.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
        if grade_id in ATTENTION.names:
            source = right[grade_id]
            old, new = changes.get(grade_id, ("", ""))
            assert old in source
            cell.source = source.replace(old, new) if old else source
    path = folder / name
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    return path


def test_the_folder_works_without_the_course(unpacked: Path) -> None:
    out = alone(
        unpacked,
        "import autograder, importlib.util\n"
        "print(autograder.__file__)\n"
        "print(importlib.util.find_spec('solutions'))\n",
    )
    file, solutions = out.splitlines()
    assert Path(file).resolve() == (unpacked / "autograder" / "__init__.py").resolve()
    assert solutions == "None"


def test_a_filled_in_notebook_gets_its_diagnosis_there(unpacked: Path) -> None:
    path = fill(unpacked, {"scaled_dot_product_attention": ("math.sqrt(d_k)", "d_k")})
    cells = [
        cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"
    ]
    out = alone(unpacked, f"namespace = {{}}\nfor cell in {cells!r}: exec(cell, namespace)\n")
    path.unlink()
    assert out.count("✓ `") >= 15
    headline = next(line for line in out.splitlines() if line.startswith("✗") and "√d_k" in line)
    assert headline
    assert "“" in out.split(headline)[1].split("Reread ")[1].splitlines()[0]


def test_the_command_line_works_there(unpacked: Path) -> None:
    path = fill(unpacked, {})
    run = (
        "import runpy\n"
        "sys.argv = ['autograder', 'check', 'filled.ipynb']\n"
        "try: runpy.run_module('autograder', run_name='__main__')\n"
        "except SystemExit as end: print('status', end.code)\n"
    )
    out = alone(unpacked, run)
    path.unlink()
    assert out.splitlines()[-1] == "status 0", out
    assert "23 of 23 exercises pass" in out


def test_the_untouched_notebook_is_friendly(unpacked: Path) -> None:
    notebook = nbformat.read(unpacked / "attention.ipynb", as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    out = alone(unpacked, f"namespace = {{}}\nfor cell in {cells!r}: exec(cell, namespace)\n")
    assert out.count("is not written yet") == len(ATTENTION.names)
    assert "✗" not in out


def test_no_solution_misconception_or_hidden_test_is_inside(unpacked: Path) -> None:
    files = handed_out(unpacked)
    assert_no_solutions(files, "attention")
    hidden = [item.name for item in Graders("attention").items if item.hidden]
    assert hidden
    for data in files.values():
        assert [name for name in hidden if name.split("[")[0].encode() in data] == []


def test_the_visible_tests_are_all_there(unpacked: Path) -> None:
    kept = alone(
        unpacked,
        "from autograder.judging.runner import Graders\n"
        "for item in Graders('attention').items: print(item.name)\n",
    )
    visible = [item.name for item in Graders("attention", hidden=False).items]
    assert kept.splitlines() == visible


def test_the_same_bytes_come_out_each_time(archive: Path, tmp_path: Path) -> None:
    again = bundle.bundle("attention", tmp_path / "again.zip")
    assert again.read_bytes() == archive.read_bytes()


def test_the_zip_unpacks_to_one_folder_with_the_notebook_on_top(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        assert {info.date_time for info in opened.infolist()} == {bundle.STAMP}
    assert {name.split("/")[0] for name in names} == {"attention"}
    for name in ("attention.ipynb", "README.md", "requirements.txt", "autograder/__init__.py"):
        assert f"attention/{name}" in names


def test_requirements_are_the_courses_pins(unpacked: Path) -> None:
    course = (paths.ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = (unpacked / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert "torch==2.13.0" in wanted
    assert set(wanted) <= {line.strip() for line in course}
    assert not [line for line in wanted if line.startswith(("nbgrader", "jupyter-book"))]


def test_the_books_address_reaches_the_checks() -> None:
    files = bundle.contents("attention", book="https://example.org/book")
    data = json.loads(files["exercises/attention/assignment.json"])
    assert data["book"] == "https://example.org/book"
    assert b"https://example.org/book" in files["README.md"]


def test_an_unknown_chapter_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(bundle.AssignmentError, match="There is no assignment called nothing"):
        bundle.bundle("nothing", tmp_path / "x.zip")


def test_outdated_recorded_answers_are_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = paths.EXERCISES / "attention"
    copy = tmp_path / "exercises" / "attention"
    shutil.copytree(source, copy)
    recording = recorded.read(source / recorded.FILE)
    data = {**recording.data, "tests": dict(recording.data["tests"])}
    name = next(name for name, entry in data["tests"].items() if entry["reference"])
    data["tests"][name] = {**data["tests"][name], "reference": []}
    recorded.write(Recording(data), copy / recorded.FILE)
    monkeypatch.setattr(paths, "EXERCISES", copy.parent)
    with pytest.raises(bundle.BundleError, match="run python -m autograder build attention"):
        bundle.bundle("attention", tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


GRADERS = '''from autograder.judging.grader_marks import exercise, hidden

SECRET = 41
SHARED = 1


def helper():
    return deeper()


def deeper():
    return SECRET


# What nobody should read.
@hidden
@exercise("f")
def test_secret(student):
    """A secret."""
    assert student.f() == helper()


# Kept.
@exercise("f")
def test_open(student):
    """Open."""
    assert student.f() == SHARED
'''


@pytest.mark.parametrize("chapter", paths.chapters())
def test_the_graders_of_every_chapter_can_be_handed_out(chapter: str) -> None:
    source = (paths.GRADERS / f"test_{chapter}.py").read_text(encoding="utf-8")
    shown = bundle.visible(source)
    assert "def test_" in shown
    assert len(shown) < len(source)  # every chapter hides something


def test_hidden_tests_go_with_what_only_they_use() -> None:
    left = bundle.visible(GRADERS)
    for gone in ("secret", "SECRET", "helper", "deeper", "nobody should read"):
        assert gone not in left
    for kept in ("test_open", "SHARED = 1", "# Kept."):
        assert kept in left
    compile(left, "graders", "exec")


def test_a_hidden_case_inside_a_visible_test_is_refused() -> None:
    source = (
        "@exercise('f')\n"
        "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.hidden)])\n"
        "def test_open(student, n):\n    pass\n"
    )
    # The mark sits on one case, so the whole test counts as hidden and goes.
    assert "test_open" not in bundle.visible(source)
    with pytest.raises(bundle.BundleError, match="only a whole test function"):
        bundle.visible("CASES = [pytest.param(2, marks=hidden)]\n\n\ndef test_a():\n    CASES\n")
