"""What several test files do alike: folders of files, processes by name, nbgrader's commands."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.__main__ import main
from autograder.assignments import bundle
from autograder.common import paths
from autograder.sandbox.launcher import Sandbox
from autograder.sandbox.limits import SandboxUnavailable


@functools.cache
def no_sandbox() -> str:
    """Why no sandbox can be had here; empty if there is one. Tried once in each test process."""
    try:
        with Sandbox():
            return ""
    except SandboxUnavailable as error:
        return str(error)


def until(holds: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `holds` and return what it says."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, f"{holds} did not come true"
        time.sleep(0.05)
    return found


def put(path: Path, content: NotebookNode | str | bytes = "{}") -> Path:
    """Write a file, and the folders in which it is to stand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else nbformat.writes(content)
        path.write_text(text, encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, str]:
    """The digests of what stands in a folder, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def processes(name: str) -> list[int]:
    """The processes that go by `name`, other people's included."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "comm").read_text().strip() == name:
                found.append(int(entry.name))
        except OSError:
            continue  # It has just ended.
    return found


def nbgrader(*command: str, cwd: Path, **environment: str) -> str:
    """What one of nbgrader's own commands says in a folder; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *command],
        cwd=cwd,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    return said


def status_of(arguments: list[str]) -> int:
    """The exit status of `python -m autograder`, run in this process."""
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def handed_out(folder: Path) -> dict[str, bytes]:
    """The files of a folder that students are given, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def assert_no_solutions(files: dict[str, bytes], unit: str) -> None:
    """No file has the name of a private one, and no code a line of the reference's answers."""
    script = paths.solution(unit).read_text(encoding="utf-8")
    regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", script, flags=re.DOTALL)
    lines = {line.strip("# ") for region in regions for line in region.splitlines()}
    private = [line.encode() for line in lines if len(line) > 30]
    assert len(private) > 10, "the reference's answers were not found"
    for name, data in files.items():
        assert not re.search(r"solutions|misconceptions", name)
        assert not bundle.PRIVATE.intersection(name.removesuffix(".py").split("/")), name
        if name.endswith((".py", ".yml")):
            assert [line for line in private if line in data] == [], name
