"""Points for stock nbgrader: the value of the hidden line in each check cell.

nbgrader reads the points of a cell from its result, and takes anything on stderr for a failure.
Our plug-in grades without executing this; without the plug-in the marks are the same.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING

from autograder.common.errors import AssignmentError
from autograder.units.assignment import load

if TYPE_CHECKING:
    from autograder.judging.runner import Graders


@functools.cache
def _graders(unit: str) -> Graders:
    from autograder.common import paths
    from autograder.judging.runner import Graders

    if not paths.solution(unit).is_file():
        raise AssignmentError(
            f"Points need solutions/{paths.inside(unit, '.py')}; grade in the course's own folder."
        )
    return Graders(unit)


def points(unit: str, name: str) -> float:
    """The points that the calling notebook's `name` earns, hidden tests included.

    Raises:
        AssignmentError: `unit` or the reference is not here.
        KeyError: the unit has no such exercise.
    """
    from autograder.judging.runner import quiet
    from autograder.sandbox.executor import Executor

    namespace = sys._getframe(1).f_globals
    exercise = load(unit).exercise(name)
    executor = Executor(namespace)
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = _graders(unit).run(
            executor.execute,
            exercises=[exercise.name],
            diagnose=False,
            refusing=executor.refusing,
        )
    return float(results[name].points)
