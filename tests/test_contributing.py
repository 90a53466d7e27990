"""CONTRIBUTING.md is true: its paths are there, and its example works as it stands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from autograder.common.paths import PACKAGE, ROOT

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


@pytest.mark.slow
def test_its_exercise_can_be_added_as_it_says(tmp_path: Path) -> None:
    for name in ("autograder", "solutions", "toolkit", "exercises", "book/attention.md"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    blocks = re.findall(r"^At the end of `([^`]+)`.*?```python\n(.*?)```", TEXT, re.M | re.S)
    assert len(blocks) == 3
    for name, code in blocks:
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(code)
    commands = re.findall(r"^\$ \.venv/bin/python (-m autograder .*attention.*)$", TEXT, re.M)[1:]
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command.split()],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "attention_entropy" in (
        tmp_path / "exercises" / "attention" / "attention.ipynb"
    ).read_text(encoding="utf-8")
