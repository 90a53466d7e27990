"""One mistake costs once: what fails is judged again with the course's own earlier exercises.

An exercise that calls earlier ones, or reads a list that they change, fails when they are wrong.
Then the notebook is run once more, in a process of its own, with the reference's answers to those
earlier exercises behind the student's: what passes now is credited. An answer's own mistakes stay,
and are told more truly.

The earlier answers are no secret any more: they lie in `given.py` of the units that come later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autograder.common.cells import Cell
from autograder.judging.results import FOR_A_LOOK, ExerciseResult
from autograder.units.assignment import Assignment
from autograder.units.variants import reference_answers

WORD = re.compile(r"[^\W\d]\w*")
# A name that gets a list, a dictionary or a set, outside of functions and classes
CHANGEABLE = re.compile(r"^([^\W\d]\w*)[ \t]*=[ \t]*[\[{]", re.MULTILINE)


@dataclass
class Round:
    """Exercises that are judged again in one process, and what is the reference's in it."""

    exercises: list[str] = field(default_factory=list)
    replaced: set[str] = field(default_factory=set)


def rounds(
    assignment: Assignment, results: Mapping[str, ExerciseResult], cells: Sequence[Cell]
) -> list[Round]:
    """What is to be judged again: a failed exercise never beside its own replacement."""
    words = mentioned(assignment, cells)
    planned: list[Round] = []
    for exercise in assignment.exercises:
        result = results.get(exercise.name)
        if result is None or not result.tests or result.points >= result.max_points:
            continue
        earlier = used(assignment, exercise.name, words[exercise.name])
        if not earlier:
            continue
        for one in planned:
            if exercise.name not in one.replaced and earlier.isdisjoint(one.exercises):
                break
        else:
            one = Round()
            planned.append(one)
        one.exercises.append(exercise.name)
        one.replaced |= earlier
    return planned


def mentioned(assignment: Assignment, cells: Sequence[Cell]) -> dict[str, set[str]]:
    """The words of each answer, and the exercises that name a list of the notebook's as it does.

    An answer that changes such a list, the course's `SPECIALS` for instance, changes it for all.
    """
    names = [exercise.name for exercise in assignment.exercises]
    sources = {cell.name: cell.source for cell in cells}
    words = {name: set(WORD.findall(sources.get(name, ""))) for name in names}
    others = (cell.source for cell in cells if cell.name not in names)
    lists = {name for source in others for name in CHANGEABLE.findall(source)}
    return {
        name: words[name] | {other for other in names if lists & words[name] & words[other]}
        for name in names
    }


def used(assignment: Assignment, name: str, words: Collection[str] = ()) -> set[str]:
    """The unit's earlier exercises that an exercise uses, itself or through another.

    Args:
        words: what the student's answer mentions, which may be more than the reference does.
    """
    names = [exercise.name for exercise in assignment.exercises]
    before = set(names[: names.index(name)])
    waiting = before & {*assignment.exercise(name).needs, *words}
    found: set[str] = set()
    while waiting:
        part = waiting.pop()
        found.add(part)
        waiting |= (before & set(assignment.exercise(part).needs)) - found
    return found


def with_reference(unit: str, cells: Sequence[Cell], replaced: set[str]) -> list[Cell]:
    """The cells, each answer that is replaced followed by the reference's.

    The student's stays in front: it may define what later cells need.
    """
    right = reference_answers(unit)
    both: list[Cell] = []
    for cell in cells:
        both.append(cell)
        if cell.name in replaced:
            both.append(replace(cell, id=f"{cell.id}-reference", source=right[cell.name]))
    return both


def credit(
    assignment: Assignment,
    results: dict[str, ExerciseResult],
    again: Mapping[str, ExerciseResult],
    one: Round,
    cells: Sequence[Cell],
) -> list[str]:
    """Put what was earned in a round in the place of what was lost.

    In `results`, whose exercises are changed.

    Returns:
        Notes for the instructor: an exercise whose tests let something pass.
    """
    words = mentioned(assignment, cells)
    order = [exercise.name for exercise in assignment.exercises]
    notes = []
    for name in one.exercises:
        new, old = again.get(name), results[name]
        if new is None or not _says_more(old, new):
            continue
        earlier = used(assignment, name, words[name])
        parts = [part for part in order if part in earlier]
        if wrong := [part for part in parts if not _whole(results.get(part))]:
            parts = wrong
        else:
            notes.append(
                f"{FOR_A_LOOK}: {name} passes only with the course's own {_list(parts)}; these "
                "earned full marks here, so that their tests may miss a mistake"
            )
        results[name] = _merged(old, new, _list(parts))
    return notes


def _says_more(old: ExerciseResult, new: ExerciseResult) -> bool:
    """Whether the second judging earns more, or knows the exercise's own mistake."""
    if new.points == old.points:
        return new.misconception not in (None, old.misconception)
    return new.points > old.points


def _merged(old: ExerciseResult, new: ExerciseResult, parts: str) -> ExerciseResult:
    """The points and the mistake of the second judging, the words of the first.

    In the second the student's code may read the course's earlier answers, so that nothing it says
    or returns there is shown.
    """
    said = {test.name: test.message for test in old.tests if test.outcome != "passed"}
    for test in new.tests:
        if test.outcome != "passed":
            test.message = said.get(test.name) or f"It fails with the course's {parts}, too."
    if _whole(new):
        new.message = (
            f"This fails only with your {parts}. With the course's {parts} it passes, so it costs "
            "nothing here."
        )
        return new
    judged = f"Judged with the course's {parts}, since yours is not right."
    if new.misconception is None:
        new.message = next(test.message for test in new.tests if test.outcome != "passed")
    new.message = f"{new.message} {judged}"
    return new


def _whole(result: ExerciseResult | None) -> bool:
    return result is not None and result.points >= result.max_points


def _list(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
