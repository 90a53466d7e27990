"""Other tools of a course: what they export comes in, marks go out in the form they import.

One module a tool (`canvas`, `moodle`, `gradescope`, `github`) knows its names and columns; what all
of them share is `archive` (reads an export that may be hostile), `base` (submissions and people),
`table` (a CSV whose other cells stay as they are) and `marks`. Imports `gradebook` and what that
may import.
"""

from __future__ import annotations

import importlib
from enum import StrEnum
from types import ModuleType

__all__ = [
    "TITLES",
    "Tool",
    "archive",
    "base",
    "export",
    "github_package",
    "gradescope_package",
    "module",
]


class Tool(StrEnum):
    """A tool that hands submissions over and takes marks back."""

    canvas = "canvas"
    moodle = "moodle"
    gradescope = "gradescope"
    github = "github"


TITLES = {
    Tool.canvas: "Canvas",
    Tool.moodle: "Moodle",
    Tool.gradescope: "Gradescope",
    Tool.github: "GitHub Classroom",
}


def module(tool: Tool) -> ModuleType:
    """The module that knows `tool`."""
    return importlib.import_module(f"autograder.lms.{tool.value}")
