"""CONTRIBUTING.md is true: its paths are there, and its examples work as they stand."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from autograder.common.paths import PACKAGE, ROOT
from tests.conftest import FAST

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]*)+(?:\.py|\.md)?)`", TEXT))
    assert len(named) > 20
    missing = [
        name for name in sorted(named) if not any((p / name).exists() for p in (ROOT, PACKAGE))
    ]
    assert missing == []


def test_the_table_has_the_packages_in_the_order_in_which_they_may_import() -> None:
    table = re.findall(r"^\| `(\w+)/` \|", TEXT.partition("| package of")[2], re.MULTILINE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    assert table == [name for layer in contract["layers"] for name in layer.split(" | ")]


def room_of(name: str) -> str:
    """The room of a module: a package of `autograder`, `solutions` or `toolkit`; or nothing."""
    first, *rest = name.split(".")
    if first == "autograder":
        return rest[0] if rest and (PACKAGE / rest[0]).is_dir() else ""
    return first if first in ("solutions", "toolkit") else ""


def imports() -> set[tuple[str, str]]:
    """Which room imports from which, anywhere in its files."""
    found = set()
    for folder in ("autograder", "solutions", "toolkit"):
        for path in (ROOT / folder).rglob("*.py"):
            here = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {(here, room_of(name)) for name in names}
    return {(one, other) for one, other in found if one and other and one != other}


def picture() -> str:
    """The rooms as a Mermaid flowchart; an import that others imply gets no arrow of its own."""
    pairs = imports()

    def below(room: str) -> set[str]:
        direct = {other for one, other in pairs if one == room}
        return direct.union(*map(below, direct))

    arrows = [
        f"    {one} --> {other}"
        for one, other in sorted(pairs)
        if not any(other in below(third) for first, third in pairs if first == one)
    ]
    return "\n".join(["flowchart TD", *arrows]) + "\n"


def test_its_picture_is_what_the_code_imports() -> None:
    (drawn,) = re.findall(r"```mermaid\n(.*?)```", TEXT, re.S)
    assert drawn == picture(), f"put this into CONTRIBUTING.md:\n{picture()}"


def test_what_is_fast_has_something_of_every_package() -> None:
    assert all(place.exists() for place in FAST)
    tests = ROOT / "tests"
    rooms = [room for room in (*tests.iterdir(), *(tests / "autograder").iterdir())
             if room.name != "autograder" and any(room.rglob("test_*.py"))]  # fmt: skip
    assert len(rooms) > 14
    assert [room for room in rooms if not any(place.is_relative_to(room) for place in FAST)] == []


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def obey(text: str, tree: Path) -> None:
    """Run a section's commands in a copy of the repository."""
    commands = re.findall(r"^\$ \.venv/bin/python (.*)$", text, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command.split()],
            cwd=tree,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree), "HOME": str(tree)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository, as far as the examples need it."""
    for name in ("autograder", "solutions", "toolkit", "exercises", "book", "models"):
        ignored = shutil.ignore_patterns("__pycache__", "recorded.bin", "_assets")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("requirements.txt", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.slow
def test_its_exercise_can_be_added_as_it_says(tree: Path) -> None:
    text = section("Add an exercise in ten minutes")
    blocks = re.findall(r"^At the end of `([^`]+)`.*?```python\n(.*?)```", text, re.M | re.S)
    assert len(blocks) == 3
    for name, code in blocks:
        with (tree / name).open("a", encoding="utf-8") as file:
            file.write(code)
    obey(text, tree)
    notebook = tree / "exercises" / "attention-scores" / "attention-scores.ipynb"
    assert "attention_entropy" in notebook.read_text(encoding="utf-8")


@pytest.mark.slow
def test_its_unit_can_be_added_as_it_says(tree: Path) -> None:
    text = section("Add a unit")
    ((name, old, new),) = re.findall(r"```diff\n# (.+)\n-(.+)\n\+(.+)\n```", text)
    lines = (tree / name).read_text(encoding="utf-8")
    assert lines.count(f"{old}\n") == 1
    (tree / name).write_text(lines.replace(old, new), encoding="utf-8")
    files = re.findall(r"```(?:python|toml)\n# ([^\n]+)\n(.*?)```", text, re.S)
    assert len(files) == 4
    for name, code in files:
        assert not (tree / name).exists()
        (tree / name).write_text(code, encoding="utf-8")
    obey(text, tree)
    released = tree / "exercises" / "attention-reach"
    assert "attended_distance" in (released / "attention-reach.ipynb").read_text(encoding="utf-8")
    given = (released / "given.py").read_text(encoding="utf-8")
    assert "def scaled_dot_product_attention" in given
    assert "def masked_softmax" in given
    assert "attended_distance" not in given
    with zipfile.ZipFile(tree / "build" / "reach.zip") as bundle:
        assert any(name.endswith("given.py") for name in bundle.namelist())
