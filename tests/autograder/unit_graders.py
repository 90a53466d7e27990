"""Tests that hold for the graders of every unit, and what the units' own tests share.

A unit's test file names it in `UNIT`, for the fixture `graders`, and has a subclass:

    class TestGraders(UnitGraders):
        unit = UNIT
        styles = STYLES
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import dataclasses
import functools
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from autograder.assignments import given
from autograder.assignments.builder import instructor
from autograder.common import paths
from autograder.demo import make_class
from autograder.demo.styles import styles
from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units.sections import sections
from autograder.units.variants import (
    Misconception,
    cell_spans,
    cells_of_source,
    changed_cell,
    changed_source,
    given_code,
    load_code,
    misconception,
    misconceptions,
    reference_answers,
    reference_namespace,
    source_of,
    wrong_namespace,
)
from autograder.verification.seeds import VARIABLE, rotating


class Styles(dict[tuple[str, str], str]):
    """Right answers unlike the reference and those in `autograder/demo`, by exercise and name."""

    def add(self, exercise: str, name: str, source: str) -> None:
        self[exercise, name] = source


@functools.cache
def graders_of(unit: str) -> Graders:
    """The unit's graders, with the assignment as its source says it now."""
    return Graders(unit, assignment=instructor(paths.solution(unit))[1])


def cell_with(unit: str, name: str) -> str:
    """The cell of an exercise with that mistake in it."""
    mistake = misconception(unit, name)
    return cells_of_source(changed_source(unit, mistake))[mistake.exercise]


def failures(
    graders: Graders, namespace: dict[str, Any], exercises: list[str], seed: int = 0
) -> list[str]:
    """What fails, in words, when `namespace` answers the exercises."""
    executor = Executor(namespace)
    results = graders.run(
        executor.execute,
        refusing=executor.refusing,
        seed=seed,
        exercises=exercises,
        diagnose=False,
    )
    return [
        f"{test.name}: {test.message}"
        for result in results.values()
        for test in result.tests
        if test.outcome != "passed"
    ]


@contextlib.contextmanager
def given_parts(unit: str) -> Iterator[None]:
    """Let `from given import ...` find what the unit is given, as in the folder of its notebook."""
    parts = types.ModuleType("given")
    exec(given.source(unit), vars(parts))
    sys.modules["given"] = parts
    try:
        yield
    finally:  # what was imported in the meantime stays
        del sys.modules["given"]


def changed(unit: str, source: str) -> dict[str, Any]:
    """The reference's names, those that `source` defines replaced."""
    namespace = dict(reference_namespace(unit))
    with given_parts(unit):
        exec(compile(textwrap.dedent(source), "<answer>", "exec"), namespace)
    return namespace


def unknown_names(unit: str, mistake: Misconception) -> list[str]:
    """Names that the changed cell uses and nothing defines; only a NameError would come of them."""
    known = wrong_namespace(unit, mistake.name).keys() | vars(builtins).keys()
    tables = [symtable.symtable(changed_cell(unit, mistake)[1], mistake.name, "exec")]
    used = set()
    for table in tables:
        tables += table.get_children()
        top = table.get_type() == "module"
        used |= {name.get_name() for name in table.get_symbols() if top or name.is_global()}
    return sorted(used - known)


def whole_notebook(unit: str, answers: dict[str, str], own: dict[str, Any]) -> list[str]:
    """The code cells of a notebook with these answers, and cells of the student's own."""
    cells = []
    for exercise, code in given_code(unit).items():
        code = re.sub(r"(?m)^from solutions\.\S+ import", "from given import", code)
        cells += [*([code] if code else []), *own.get(exercise, ()), answers[exercise]]
    return cells


def run_cells(unit: str, cells: list[str]) -> dict[str, Any]:
    """The names that the cells define."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with given_parts(unit):
        exec(compile("\n\n".join(cells), "<notebook>", "exec"), namespace)
    return namespace


def unit_with(unit: str, mistake: str) -> str:
    """The unit among those of the same chapter in which the mistake is known."""
    chapter = paths.chapter_of(unit)
    units = (f"{chapter}-{name}" for name in paths.CHAPTERS[chapter])
    return next(one for one in units if mistake in {item.name for item in misconceptions(one)})


def with_own(unit: str, code: str) -> dict[str, Any]:
    """The names of a right notebook in which `code` stands before the exercises, and is used."""
    source = source_of(unit)
    first = source.rindex("# %%", 0, min(start for start, _ in cell_spans(source).values()))
    text = source[:first] + code + source[first:]
    return load_code([compile(text, "<notebook>", "exec")], "own_parts")


def with_part(unit: str, mistake: str) -> dict[str, Any]:
    """The names of a notebook with a mistake in an exercise, or in the parts that it is given.

    All that use the wrong part use it as it is.
    """
    owner = unit_with(unit, mistake)
    if owner == unit:
        return dict(wrong_namespace(unit, mistake))
    return with_own(unit, changed_source(owner, misconception(owner, mistake)))


class UnitGraders:
    """Every right answer earns everything, in any style. `verify` judges the wrong ones.

    Whole notebooks in the styles of `autograder/demo` are graded in `test_make_class`.
    """

    unit: str
    styles: Styles

    # Right answers.

    def test_a_right_answer_in_another_style_passes_every_test(self, graders, styled):
        namespace = changed(self.unit, self.styles[styled])
        seed = rotating()
        found = failures(graders, namespace, [styled[0]], seed)
        assert found == [], f"{VARIABLE}={seed} repeats it"

    def test_every_exercise_is_solved_in_at_least_two_styles_besides_the_reference(self, graders):
        solved = [exercise for exercise, _ in self.styles]
        right = reference_answers(self.unit)
        for style in styles(self.unit).values():
            solved += [name for name, answer in style.answers.items() if answer != right[name]]
        assert [e.name for e in graders.assignment.exercises if solved.count(e.name) < 2] == []

    # Forbidden answers.

    def test_a_forbidden_function_earns_nothing_however_right_the_answer(self, graders):
        extras = make_class.extras(self.unit)
        right = reference_answers(self.unit)
        allowed = tuple(
            dataclasses.replace(one, forbids=()) for one in graders.assignment.exercises
        )
        lenient = copy.copy(graders)  # It knows what the reference has answered.
        lenient.assignment = dataclasses.replace(graders.assignment, exercises=allowed)
        for name, (exercise, _, source) in extras.forbidden.items():
            if name in extras.tampering:
                continue  # Only a process of its own survives it; see test_make_class.
            cells = whole_notebook(self.unit, {**right, exercise: source}, {})
            namespace = run_cells(self.unit, cells)
            executor = Executor(namespace)
            asked = {"exercises": [exercise], "diagnose": False, "seed": rotating()}
            results = graders.run(executor.execute, refusing=executor.refusing, **asked)
            result = results[exercise]
            assert (result.points, result.misconception) == (0, "forbidden")
            result = lenient.run(executor.execute, **asked)[exercise]
            assert result.points >= result.max_points / 2, name

    # The shape of the graders.

    def test_tests_say_what_they_are_for_and_some_are_hidden(self, graders):
        for exercise in graders.assignment.exercises:
            tests = [item for item in graders.items if item.exercise == exercise.name and item.item]
            hidden = sum(item.hidden for item in tests)
            assert 4 <= len(tests) <= 10, exercise.name
            assert 1 / 5 <= hidden / len(tests) <= 1 / 2, exercise.name
            for item in tests:
                assert item.purpose != item.name, f"{item.name} has no docstring"
                assert item.purpose.endswith("."), item.name
        assert len({item.name for item in graders.items}) == len(graders.items)

    # Known mistakes.

    def test_every_known_mistake_can_be_made_and_says_what_to_do(self):
        explained = sections(paths.chapter_of(self.unit))
        for mistake in misconceptions(self.unit):
            compile(changed_source(self.unit, mistake), mistake.name, "exec")
            assert unknown_names(self.unit, mistake) == [], mistake.name
            assert mistake.section in explained, mistake.name
            assert mistake.says.endswith("."), mistake.name
            assert len(mistake.says) <= 240, mistake.name

    def test_every_exercise_has_known_mistakes(self, graders):
        made = [mistake.exercise for mistake in misconceptions(self.unit)]
        assert [e.name for e in graders.assignment.exercises if made.count(e.name) < 4] == []

    def test_the_demonstration_makes_known_mistakes_in_different_exercises(self):
        made = [misconception(self.unit, name) for name in make_class.extras(self.unit).mistakes]
        exercises = {mistake.exercise for mistake in made}
        assert len(exercises) == len(made) >= 3


class EarlierParts:
    """A module answers for itself, and not for its parts.

    Parts are earlier exercises of the unit, and what it gives of earlier units, which students may
    replace by their own.
    """

    unit: str
    kept: dict[str, list[str]]  # an early mistake: later exercises that lose nothing
    unexcused: tuple[tuple[str, str], ...] = ()  # an early mistake, and a later one that costs

    def test_an_early_mistake_costs_later_exercises_nothing(self, graders, early):
        owner = unit_with(self.unit, early)
        exercise = misconception(owner, early).exercise
        assert failures(graders_of(owner), wrong_namespace(owner, early), [exercise]) != []
        assert failures(graders, with_part(self.unit, early), self.kept[early]) == []

    def test_an_early_mistake_excuses_no_later_one(self, graders, made):
        early, late = made
        namespace = with_part(self.unit, early)
        exec(cell_with(self.unit, late), namespace)
        assert failures(graders, namespace, [misconception(self.unit, late).exercise]) != []
