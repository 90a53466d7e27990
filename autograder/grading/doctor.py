"""Is this machine ready to read, do or grade the course? Every lack comes with its remedy."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from autograder.assignments import bundle
from autograder.common.paths import ROOT, UNITS, units

READ, DO, GRADE = "read", "do", "grade"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `remedy` is what to type where `ok` is False."""

    purpose: str
    what: str
    ok: bool
    detail: str
    remedy: str = ""


# Which packages serve which purpose; the versions stand in requirements.txt alone.
PACKAGES = {
    READ: ("jupyter-book", "myst-nb", "sphinx-book-theme", "matplotlib"),
    DO: ("torch", "ipykernel", "jupyterlab", "pytest", "rich"),
    GRADE: ("nbgrader", "nbformat", "nbconvert", "jupytext"),
}


def pins() -> dict[str, str]:
    """Package and version of each line of requirements.txt."""
    return {name: line.partition("==")[2] for name, line in bundle.pinned().items()}


def findings() -> Iterator[Finding]:
    """Look at the machine, one thing at a time."""
    version = sys.version_info
    yield Finding(
        DO,
        "Python",
        (3, 11) <= version[:2] <= (3, 13),
        platform.python_version(),
        "install Python 3.11, 3.12 or 3.13, then: make PYTHON=python3.11 course",
    )
    wanted = pins()
    for purpose, names in PACKAGES.items():
        for name in names:
            yield _package(purpose, name, wanted.get(name))
    yield from _torch()
    there = units()
    what = f"all {len(UNITS)}" if there == list(UNITS) else ", ".join(there) or "none"
    yield Finding(DO, "units", bool(there), what, "python -m autograder build")
    yield from _sandbox()
    free = shutil.disk_usage(ROOT).free / 2**30
    yield Finding(GRADE, "disk", free > 2, f"{free:.0f} GiB free", "free at least 2 GiB")


def _package(purpose: str, name: str, pinned: str | None) -> Finding:
    remedy = "python -m pip install -r requirements.txt"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(purpose, name, False, "missing", remedy)
    if pinned and version.split("+")[0] != pinned:
        return Finding(purpose, name, False, f"{version} instead of {pinned}", remedy)
    return Finding(purpose, name, True, version)


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:  # a broken build fails in its own ways
        yield Finding(
            DO, "PyTorch", False, str(error)[:80], "python -m pip install -r requirements.txt"
        )
        return
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    yield Finding(READ, "device", True, device)


def _sandbox() -> Iterator[Finding]:
    from autograder.sandbox.limits import SandboxUnavailable
    from autograder.sandbox.session import probe

    try:
        facts = probe()
    except SandboxUnavailable as error:
        yield Finding(GRADE, "sandbox", False, str(error), "sudo apt-get install bubblewrap")
        return
    yield Finding(GRADE, "sandbox", True, "; ".join(facts) or "works")
