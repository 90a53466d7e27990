"""The student's zip: works where it is unpacked, and tells no solutions."""

from __future__ import annotations

import builtins
import json
import os
import re
import shutil
import subprocess
import symtable
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest

from autograder.assignments import builder, bundle, recorded, recorder
from autograder.common import paths
from autograder.common.cells import is_ungraded
from autograder.judging.recording import Recording
from autograder.judging.runner import Graders
from autograder.units.assignment import load
from tests.autograder.helpers import assert_no_solutions, handed_out

UNIT = "attention-self_attention"
ATTENTION = load(UNIT)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.bundle(UNIT, tmp_path_factory.mktemp("zip") / f"{UNIT}.zip")


@pytest.fixture(scope="module")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The student's folder, on a machine without the course."""
    target = tmp_path_factory.mktemp("student")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(target)
    return target / UNIT


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
    instructor, _ = builder.instructor(paths.solution(UNIT))
    right = {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in instructor.cells
        if "nbgrader" in cell.metadata
    }
    notebook = nbformat.read(folder / f"{UNIT}.ipynb", as_version=4)
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


RUN = "namespace = {{}}\nfor cell in {cells!r}: exec(cell, namespace)\n"
OFFLINE = """
import socket
def refused(*_, **__): raise OSError("there is no network")
socket.socket.connect = socket.getaddrinfo = refused
"""


def graded(path: Path) -> list[str]:
    """The code cells of a notebook but the last, ungraded ones."""
    cells = nbformat.read(path, as_version=4).cells
    return [c.source for c in cells if c.cell_type == "code" and not is_ungraded(c.source)]


def test_the_last_cells_find_their_models_there(unpacked: Path) -> None:
    path = fill(unpacked, {})
    cells = nbformat.read(path, as_version=4).cells
    last = [cell.source.partition("\n")[2] for cell in cells if is_ungraded(cell.source)]
    answers = [source for source in graded(path) if not source.startswith('check("')]
    run = RUN.format(cells=[*answers, *last, "print(shipped.name, len(maps), own_models.__file__)"])
    name, count, file = alone(unpacked, OFFLINE + run).splitlines()[-1].split()
    path.unlink()
    assert (name, count) == ("bert", "3")
    assert Path(file).is_relative_to(unpacked.resolve())


def test_every_unit_brings_the_models_that_its_last_cells_read() -> None:
    for unit in paths.UNITS:
        script = paths.ungraded(unit).read_text(encoding="utf-8")
        files = bundle.contents(unit)
        chapter, _, name = unit.partition("-")
        if name == paths.CHAPTERS[chapter][-1]:
            script += paths.ungraded(f"{chapter}-mine").read_text(encoding="utf-8")
        brought = {name.split("/")[1] for name in files if name.startswith("models/")}
        assert brought == set(re.findall(r"own_models\.read\(\"(.+?)\"\)", script)), unit


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
    out = alone(unpacked, RUN.format(cells=graded(path)))
    path.unlink()
    assert out.count("✓ `") == 3  # the masks; both self-attentions call what is wrong
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
    assert "6 of 6 exercises pass" in out


def test_the_untouched_notebook_is_friendly(unpacked: Path) -> None:
    out = alone(unpacked, RUN.format(cells=graded(unpacked / f"{UNIT}.ipynb")))
    assert out.count("is not written yet") == len(ATTENTION.names)
    assert "✗" not in out


def test_no_solution_misconception_or_hidden_test_is_inside(unpacked: Path) -> None:
    files = handed_out(unpacked)
    assert_no_solutions(files, UNIT)
    hidden = [item.name for item in Graders(UNIT).items if item.hidden]
    assert hidden
    for data in files.values():
        assert [name for name in hidden if name.split("[")[0].encode() in data] == []


def test_the_visible_tests_are_all_there(unpacked: Path) -> None:
    kept = alone(
        unpacked,
        "from autograder.judging.runner import Graders\n"
        f"for item in Graders({UNIT!r}).items: print(item.name)\n",
    )
    visible = [item.name for item in Graders(UNIT, hidden=False).items]
    assert kept.splitlines() == visible


def test_the_same_bytes_come_out_each_time(archive: Path, tmp_path: Path) -> None:
    again = bundle.bundle(UNIT, tmp_path / "again.zip")
    assert again.read_bytes() == archive.read_bytes()


def test_the_zip_unpacks_to_one_folder_with_the_notebook_on_top(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        assert {info.date_time for info in opened.infolist()} == {bundle.STAMP}
    assert {name.split("/")[0] for name in names} == {UNIT}
    for name in (f"{UNIT}.ipynb", "given.py", "README.md", "requirements.txt"):
        assert f"{UNIT}/{name}" in names
    assert f"{UNIT}/autograder/__init__.py" in names


def test_the_graders_stand_in_their_folders_and_no_other_units_are_there(unpacked: Path) -> None:
    graders = unpacked / "autograder" / "graders"
    found = {path.relative_to(graders).as_posix() for path in graders.rglob("*.py")}
    assert found == {
        "__init__.py",
        "common.py",
        "attention/__init__.py",
        "attention/common.py",
        "attention/test_self_attention.py",
    }
    assert {path.name for path in (unpacked / "exercises").iterdir()} == {UNIT}
    other = {name for unit in paths.UNITS if unit != UNIT for name in (unit, f"{unit}.ipynb")}
    assert not other & {path.name for path in unpacked.rglob("*")}


def test_given_parts_are_earlier_units_and_no_answer_of_this_one(unpacked: Path) -> None:
    """They hold what an earlier unit asks for, by design, and the README says what they are."""
    given = (unpacked / "given.py").read_text(encoding="utf-8")
    assert given == paths.given(UNIT).read_text(encoding="utf-8")
    assert "def masked_softmax(" in given
    for unit in ("attention-self_attention", "attention-multi_head"):
        assert not [name for name in load(unit).names if f"{name}(" in given]
    assert "`given.py`" in (unpacked / "README.md").read_text(encoding="utf-8")
    assert b"given.py" not in bundle.contents("attention-scores")["README.md"]


def test_requirements_are_the_courses_pins(unpacked: Path) -> None:
    course = (paths.ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = (unpacked / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert "torch==2.13.0" in wanted
    assert set(wanted) <= {line.strip() for line in course}
    assert not [line for line in wanted if line.startswith(("nbgrader", "jupyter-book"))]


def test_the_books_address_reaches_the_checks() -> None:
    files = bundle.contents(UNIT, book="https://example.org/book")
    data = json.loads(files[f"exercises/{UNIT}/assignment.json"])
    assert data["book"] == "https://example.org/book"
    assert b"https://example.org/book" in files["README.md"]


def test_an_unknown_unit_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(bundle.AssignmentError, match="There is no assignment called nothing"):
        bundle.bundle("nothing", tmp_path / "x.zip")
    with pytest.raises(bundle.AssignmentError, match="attention is a chapter of 3 units; name one"):
        bundle.bundle("attention", tmp_path / "x.zip")


@pytest.mark.parametrize("made_from", ["an older version", None])
def test_outdated_or_missing_recorded_answers_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_from: str | None
) -> None:
    recorder.record(UNIT)
    source = paths.EXERCISES / UNIT
    copy = tmp_path / "exercises" / UNIT
    shutil.copytree(source, copy)
    whole = (source / recorded.FILE).read_bytes()
    recording = recorded.read(source / recorded.FILE)
    data = {**recording.data, "tests": dict(recording.data["tests"])}
    name = next(name for name, entry in data["tests"].items() if entry["reference"])
    data["tests"][name] = {**data["tests"][name], "reference": []}
    recorded.write(Recording({**data, recorder.MADE_FROM: made_from}), copy / recorded.FILE)
    if made_from is None:
        (copy / recorded.FILE).unlink()
    monkeypatch.setattr(paths, "EXERCISES", copy.parent)
    files = bundle.contents(UNIT)
    assert files[f"exercises/{UNIT}/{recorded.FILE}"] == (copy / recorded.FILE).read_bytes()
    entry = recorded.read(copy / recorded.FILE).data["tests"][name]
    assert len(entry["reference"]) == len(
        recorded.read(source / recorded.FILE).data["tests"][name]["reference"]
    )
    assert (source / recorded.FILE).read_bytes() == whole


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


@pytest.mark.parametrize("unit", paths.units())
def test_the_graders_of_every_unit_can_be_handed_out(unit: str) -> None:
    """What is left compiles, and every name that it imports or uses is there."""
    texts = bundle.visible_graders(unit)
    own = f"autograder/graders/{paths.inside(unit, '.py', 'test_')}"
    assert "def test_" in texts[own]
    assert len(texts[own]) < len(paths.graders(unit).read_text(encoding="utf-8"))  # each hides some
    tables = {name: symtable.symtable(text, name, "exec") for name, text in texts.items()}
    for name, table in tables.items():
        assert global_names(table) <= known_names(table) | set(dir(builtins)) | {"__file__"}, name
        for module, names in bundle._names_from(texts[name]).items():
            assert names <= known_names(tables[f"{module.replace('.', '/')}.py"]), name


def test_folders_of_several_units_can_lie_in_one() -> None:
    """As on a JupyterHub: what they share is the same file."""
    together: dict[str, str] = {}
    for unit in paths.units():
        for name, text in bundle.visible_graders(unit).items():
            assert together.setdefault(name, text) == text, f"{name} of {unit}"
    assert "autograder/graders/attention/common.py" in together
    assert "autograder/graders/common.py" in together


def known_names(table: symtable.SymbolTable) -> set[str]:
    """What a module defines or imports."""
    return {one.get_name() for one in table.get_symbols() if one.is_assigned() or one.is_imported()}


def global_names(table: symtable.SymbolTable) -> set[str]:
    """What a module, its functions and classes look up in it."""
    found = {
        one.get_name()
        for one in table.get_symbols()
        if one.is_referenced() and (one.is_global() or table.get_type() == "module")
    }
    return found.union(*map(global_names, table.get_children()))


def test_common_parts_are_reduced_to_what_is_used() -> None:
    source = (
        "import math\nimport torch\nfrom os import path, sep\n\nLIMIT = 3\n\n\n"
        "def shared(x):\n    return torch.sum(x) + LIMIT\n\n\n"
        "# Only a hidden test asks for this.\ndef secret(x):\n    return math.sqrt(x)\n\n\n"
        "def place():\n    return sep\n"
    )
    assert bundle.reduced(source, {"shared", "place"}) == (
        "import torch\nfrom os import sep\n\nLIMIT = 3\n\n\n"
        "def shared(x):\n    return torch.sum(x) + LIMIT\n\n\n"
        "def place():\n    return sep\n"
    )


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
