"""What the tests of several units of positional encoding share: cheats that must earn nothing."""

from __future__ import annotations

import copy

import pytest
import torch

from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units.variants import reference_namespace
from tests.autograder.unit_graders import UnitGraders, failures

CONSTANTS = {
    "no list": "[]",
    "one id": "[256]",
    "an empty text": "''",
    "a zero": "torch.zeros(3, 3)",
    "NaN": "torch.full((2, 2), math.nan)",
    "its arguments": "(args, kwargs)",
    "itself": "args",
    "a million": "torch.zeros(1).expand(1000, 1000)",
}


def plain(value):
    """Something hashable that tells arguments apart."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple((key, plain(item)) for key, item in sorted(value.items()))
    return type(value).__name__, value


class PositionalGraders(UnitGraders):
    """What every unit's graders hold to, and that neither memory nor a constant earns a point."""

    def test_answers_learned_by_heart_from_the_visible_tests_miss_the_hidden_ones(self, graders):
        reference = reference_namespace(self.unit)
        functions = [
            e.name for e in graders.assignment.exercises if not isinstance(reference[e.name], type)
        ]
        learned: dict = {}

        def remembering(name):
            def function(*args, **kwargs):
                key = name, plain(args), plain(kwargs)
                try:
                    learned[key] = reference[name](*args, **kwargs)
                except ValueError as error:
                    learned[key] = error
                    raise
                return copy.deepcopy(learned[key])

            return function

        def reciting(name):
            def function(*args, **kwargs):
                value = learned.get((name, plain(args), plain(kwargs)))
                if isinstance(value, ValueError):
                    raise value
                return copy.deepcopy(value)

            return function

        visible = Graders(self.unit, hidden=False)
        watched = reference | {name: remembering(name) for name in functions}
        assert failures(visible, watched, functions, 0) == []
        recited = reference | {name: reciting(name) for name in functions}
        assert failures(visible, recited, functions, 0) == []
        results = graders.run(
            Executor(recited).execute, seed=0, exercises=functions, diagnose=False
        )
        for name, result in results.items():
            hidden = [test for test in result.tests if test.hidden]
            assert [test.outcome for test in hidden] == ["failed"] * len(hidden), name

    @pytest.mark.parametrize("name", CONSTANTS)
    def test_a_constant_earns_nothing(self, graders, name):
        reference = reference_namespace(self.unit)
        namespace = dict(reference)
        for exercise in graders.assignment.exercises:
            if isinstance(reference[exercise.name], type):
                exec(
                    f"class {exercise.name}(nn.Module):\n"
                    "    def __init__(self, *args, **kwargs):\n        super().__init__()\n"
                    f"    def forward(self, *args, **kwargs):\n        return {CONSTANTS[name]}\n",
                    namespace,
                )
            else:
                exec(
                    f"def {exercise.name}(*args, **kwargs):\n    return {CONSTANTS[name]}\n",
                    namespace,
                )
        results = graders.run(Executor(namespace).execute, diagnose=False)
        assert {exercise: r.points for exercise, r in results.items() if r.points} == {}
