"""Arguments and options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.common import paths
from autograder.units.assignment import require_unit

COURSE = paths.BUILD / "course"
GradedCourse = Annotated[
    Path,
    typer.Option(help="The nbgrader course in which it was graded.", show_default="build/course"),
]
Unit = Annotated[
    str,
    typer.Argument(help="The assignment, such as attention-scores.", callback=require_unit),
]
