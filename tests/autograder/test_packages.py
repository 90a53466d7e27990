"""What a package of the autograder says of itself: what it is, and what others may use of it."""

from __future__ import annotations

import ast
import functools
import importlib
from pathlib import Path

import pytest

from autograder.common.paths import PACKAGE

PACKAGES = sorted(
    folder.parent.name
    for folder in PACKAGE.glob("*/__init__.py")
    if folder.parent.name not in ("graders", "misconceptions")
)
# What nbgrader is told by name.
BY_NAME = {"plugin", "feedback"}


@functools.cache
def uses() -> set[tuple[str, str, str]]:
    """Who imports a module of another package: the importing package, the package, the module."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        importing = file.relative_to(PACKAGE).parts[0]
        if importing == "misconceptions":  # They import variants and one another.
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                parts = name.split(".")
                if parts[0] == "autograder" and len(parts) > 2 and parts[1] != importing:
                    found.add((importing, parts[1], parts[2]))
    return found


def modules_used(package: str) -> set[str]:
    """The modules of a package that another one imports."""
    return {module for _, used, module in uses() if used == package}


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_the_modules_that_other_packages_use(package: str):
    module = importlib.import_module(f"autograder.{package}")
    is_module = {name for name in module.__all__ if Path(PACKAGE, package, f"{name}.py").exists()}
    assert modules_used(package) - BY_NAME <= set(module.__all__)
    assert is_module <= modules_used(package) | BY_NAME
    assert all(name in is_module or hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_and_what_it_imports(package: str):
    says = importlib.import_module(f"autograder.{package}").__doc__ or ""
    assert "Imports" in says
    assert len(says.strip().splitlines()) <= 8
