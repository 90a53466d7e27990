"""Points for stock nbgrader: the value of the hidden line in each check cell.

nbgrader reads the points of a cell from its result, and takes anything on stderr for a failure.
Our plug-in grades without executing this; without the plug-in the marks are the same.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

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

    As in `grading/earlier_parts.py`, what fails is judged again with the reference's earlier
    exercises. Here they take the place of the student's in the kernel meanwhile.

    Raises:
        AssignmentError: `unit` or the reference is not here.
        KeyError: the unit has no such exercise.
    """
    from autograder.judging.runner import quiet
    from autograder.sandbox.executor import Executor

    namespace = sys._getframe(1).f_globals
    assignment = load(unit)
    exercise = assignment.exercise(name)
    executor = Executor(namespace)

    def judged() -> float:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = _graders(unit).run(
                executor.execute,
                exercises=[exercise.name],
                diagnose=False,
                refusing=executor.refusing,
            )
        return float(results[name].points)

    earned = judged()
    if earned < exercise.points:
        earlier = assignment.names[: assignment.names.index(name)]
        with _right(unit, namespace, earlier):
            earned = max(earned, judged())
    return earned


@contextlib.contextmanager
def _right(unit: str, namespace: dict[str, Any], names: Sequence[str]) -> Iterator[None]:
    """The reference's exercises in the place of a notebook's own."""
    from autograder.units.variants import reference_namespace

    right = reference_namespace(unit)
    own = {name: namespace[name] for name in names if name in namespace}
    namespace.update({name: right[name] for name in names})
    try:
        yield
    finally:
        for name in names:
            del namespace[name]
        namespace.update(own)
