"""Tests that hold for the graders of every chapter, and what the chapters' own tests share.

A chapter's test file names it in `CHAPTER`, for the fixture `graders`, and has a subclass:

    class TestGraders(ChapterGraders):
        chapter = CHAPTER
        styles = STYLES
        notable = ["attention_not_scaled", ...]
"""

from __future__ import annotations

import dataclasses
import functools
import re
import textwrap
from typing import Any

import pytest

from autograder.assignments.builder import instructor
from autograder.common import paths
from autograder.demo import make_class
from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units.variants import (
    cells_of_source,
    changed_source,
    given_code,
    misconceptions,
    reference_answers,
    reference_namespace,
    wrong_namespace,
)
from autograder.verification import trivial

SEEDS = (0, 1, 2)


class Styles(dict[tuple[str, str], str]):
    """Right answers unlike the reference and those in `autograder/demo`, by exercise and name."""

    def add(self, exercise: str, name: str, source: str) -> None:
        self[exercise, name] = source


@functools.cache
def graders_of(chapter: str) -> Graders:
    """The chapter's graders, with the assignment as its source says it now."""
    return Graders(chapter, assignment=instructor(paths.SOLUTIONS / f"{chapter}.py")[1])


def cell_with(chapter: str, name: str) -> str:
    """The cell of an exercise with that mistake in it."""
    mistake = next(item for item in misconceptions(chapter) if item.name == name)
    return cells_of_source(changed_source(chapter, mistake))[mistake.exercise]


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


def changed(chapter: str, source: str) -> dict[str, Any]:
    """The reference's names, those that `source` defines replaced."""
    namespace = dict(reference_namespace(chapter))
    exec(compile(textwrap.dedent(source), "<answer>", "exec"), namespace)
    return namespace


def whole_notebook(chapter: str, answers: dict[str, str], own: dict[str, Any]) -> list[str]:
    """The code cells of a notebook with these answers, and cells of the student's own."""
    cells = []
    for exercise, code in given_code(chapter).items():
        cells += [*([code] if code else []), *own.get(exercise, ()), answers[exercise]]
    return cells


def run_cells(cells: list[str]) -> dict[str, Any]:
    """The names that the cells define."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("\n\n".join(cells), "<notebook>", "exec"), namespace)
    return namespace


class ChapterGraders:
    """Every right answer earns everything, in any style; a wrong one loses points, and is named."""

    chapter: str
    styles: Styles
    notable: tuple[str, ...]  # mistakes of the sources and of public code; `verify` tries all

    # Right answers.

    def test_a_right_answer_in_another_style_passes_every_test(self, graders, styled):
        namespace = changed(self.chapter, self.styles[styled])
        for seed in SEEDS:
            assert failures(graders, namespace, [styled[0]], seed) == []

    def test_a_whole_notebook_in_another_style_earns_every_point(self, graders):
        for style in make_class.styles(self.chapter).values():
            cells = whole_notebook(self.chapter, style.answers, style.own)
            executor = Executor(run_cells(cells))
            for seed in SEEDS:
                results = graders.run(
                    executor.execute, refusing=executor.refusing, seed=seed, diagnose=False
                )
                assert {
                    r.name: r.message for r in results.values() if r.points < r.max_points
                } == {}

    def test_every_exercise_is_solved_in_at_least_two_styles_besides_the_reference(self, graders):
        solved = [exercise for exercise, _ in self.styles]
        right = reference_answers(self.chapter)
        for style in make_class.styles(self.chapter).values():
            solved += [name for name, answer in style.answers.items() if answer != right[name]]
        assert [e.name for e in graders.assignment.exercises if solved.count(e.name) < 2] == []

    @pytest.mark.parametrize("seed", range(10))
    def test_the_reference_earns_every_point_at_any_seed(self, graders, seed):
        execute = Executor(reference_namespace(self.chapter)).execute
        results = graders.run(execute, seed=seed, diagnose=False)
        assert {r.name: r.message for r in results.values() if r.points < r.max_points} == {}

    # Answers without work, and forbidden ones.

    @pytest.mark.parametrize("setting", trivial.SETTINGS)
    def test_an_answer_without_work_earns_nothing(self, graders, setting):
        names = graders.assignment.names
        assert [gift for name in names for gift in trivial.gifts(graders, name, setting)[1]] == []

    def test_a_forbidden_function_earns_nothing_however_right_the_answer(self, graders):
        extras = make_class.extras(self.chapter)
        right = reference_answers(self.chapter)
        for name, (exercise, _, source) in getattr(extras, "FORBIDDEN", {}).items():
            if name in getattr(extras, "TAMPERING", ()):
                continue  # Only a process of its own survives it; see test_make_class.
            cells = whole_notebook(self.chapter, {**right, exercise: source}, {})
            namespace = run_cells(cells)
            executor = Executor(namespace)
            execute = executor.execute
            results = graders.run(execute, refusing=executor.refusing, exercises=[exercise])
            result = results[exercise]
            assert (result.points, result.misconception) == (0, "forbidden")
            allowed = tuple(
                dataclasses.replace(one, forbids=()) for one in graders.assignment.exercises
            )
            lenient = dataclasses.replace(graders.assignment, exercises=allowed)
            result = Graders(self.chapter, assignment=lenient).run(execute, exercises=[exercise])
            assert result[exercise].points >= result[exercise].max_points / 2, name

    # The shape of the graders.

    def test_tests_say_what_they_are_for_and_some_are_hidden(self, graders):
        for exercise in graders.assignment.exercises:
            tests = [item for item in graders.items if item.exercise == exercise.name]
            hidden = sum(item.hidden for item in tests)
            assert 4 <= len(tests) <= 10, exercise.name
            assert 1 / 5 <= hidden / len(tests) <= 1 / 2, exercise.name
            for item in tests:
                assert item.purpose != item.name, f"{item.name} has no docstring"
                assert item.purpose.endswith("."), item.name
        assert len({item.name for item in graders.items}) == len(graders.items)

    # Known mistakes.

    def test_every_known_mistake_can_be_made_and_says_what_to_do(self):
        page = paths.ROOT.joinpath("book", f"{self.chapter}.md").read_text(encoding="utf-8")
        anchors = set(re.findall(r"^\(([\w-]+)\)=$", page, re.MULTILINE))
        known = misconceptions(self.chapter)
        assert len(known) >= 60
        for mistake in known:
            compile(changed_source(self.chapter, mistake), mistake.name, "exec")
            assert mistake.section in anchors, mistake.name
            assert mistake.says.endswith("."), mistake.name
            assert len(mistake.says) <= 240, mistake.name

    def test_every_exercise_has_known_mistakes(self, graders):
        made = [mistake.exercise for mistake in misconceptions(self.chapter)]
        assert [e.name for e in graders.assignment.exercises if made.count(e.name) < 4] == []

    def test_the_demonstration_makes_known_mistakes_in_different_exercises(self):
        extras = make_class.extras(self.chapter)
        known = {mistake.name: mistake.exercise for mistake in misconceptions(self.chapter)}
        made = [known[name] for name in getattr(extras, "MISTAKES", ())]
        assert len(set(made)) == len(made) >= 8

    def test_a_known_mistake_loses_points_and_is_named(self, graders, mistaken):
        mistake = next(item for item in misconceptions(self.chapter) if item.name == mistaken)
        execute = Executor(wrong_namespace(self.chapter, mistaken)).execute
        result = graders.run(execute, exercises=[mistake.exercise])[mistake.exercise]
        assert result.points < result.max_points
        assert result.misconception == mistaken
        assert result.message == mistake.says
