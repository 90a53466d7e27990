"""Exercises that name the mistake: checks for students, grading for instructors.

A notebook's first cell imports this package, so it loads nothing until a check runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autograder.checking.check import Checks

__all__ = ["checks_for"]


def checks_for(unit: str) -> Checks:
    """The `check` of a unit's notebook: `check("masked_softmax")` says what holds and why not.

    `check()` gives an overview of all exercises.
    """
    from autograder.checking import check

    return check.checks_for(unit)
