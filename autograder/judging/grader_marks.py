"""Marks for graders: a test's exercise and weight, whether it is hidden, and what it pays for."""

from __future__ import annotations

import pytest


def exercise(name: str, weight: float = 1.0) -> pytest.MarkDecorator:
    """The test judges exercise `name` and counts `weight` among that exercise's tests."""
    return pytest.mark.exercise(name, weight)


hidden = pytest.mark.hidden
"""The test counts but is absent from the student's bundle; its docstring says what it is for."""


def promises(*ids: str) -> pytest.MarkDecorator:
    """The test keeps these promises of the exercise's text, or of the conventions.

    An id stands beside its sentence, in a comment (`units/promises.py`). `verify` says which
    promises no test keeps.
    """
    return pytest.mark.promises(*ids)


aspect = pytest.mark.aspect
"""The test looks at something besides values, so that an answer without work may pass it.

It pays only where a test of values passes too, or a known mistake explains all that is wrong.
`verify` says which tests need this mark.
"""


class Mistake(AssertionError):
    """A wrong answer, in words for the student.

    `misconception` names a known mistake where the test itself can tell which one it is.
    """

    kind = ""  # see `TestResult`

    def __init__(self, message: str, misconception: str | None = None) -> None:
        super().__init__(message)
        self.misconception = misconception


class WrongValues(Mistake):
    """Numbers are not those that are expected."""

    kind = "values"


class WrongParameters(Mistake):
    """A module has other parameters than the exercise asks for."""

    kind = "parameters"


class WrongError(Mistake):
    """Bad input ends in an error, but in another one than is asked for."""

    kind = "another error"


class WrongShape(Mistake):
    """A tensor has not the shape that is expected."""

    kind = "shape"
