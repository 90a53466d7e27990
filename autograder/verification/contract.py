"""Whether every promise of an exercise's text is kept by a test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autograder.judging.runner import Graders
from autograder.units import promises


@dataclass
class Contract:
    """What the texts of a unit promise, and what of it no test keeps."""

    promises: int = 0
    untested: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    without_ids: list[str] = field(default_factory=list)


def read(
    graders: Graders,
    own: Mapping[str, Sequence[str]],
    conventions: Sequence[str],
    exercises: Sequence[str],
    elsewhere: Collection[str] = (),
) -> Contract:
    """Compare the ids in the texts with those that the tests name.

    Conventions hold in a whole chapter: they are asked for where each exercise of a unit is looked
    at, and its texts have ids, and tests of the chapter's other units may keep them.

    Args:
        graders: of the unit.
        own: the ids in the text of each exercise.
        conventions: the ids in the conventions.
        exercises: those to look at.
        elsewhere: the ids that tests of the chapter's other units name.
    """
    found = Contract()
    named = set(elsewhere)
    for exercise in graders.assignment.exercises:
        if exercise.name not in exercises:
            continue
        ids = own.get(exercise.name, ())
        if not ids:
            found.without_ids.append(exercise.name)
        kept = {promises.NOT_CALLED} if exercise.forbids else set()
        if ids and kept - set(ids):
            found.unknown.append(
                f"{exercise.name} forbids calls, but its text has no id {promises.NOT_CALLED}"
            )
        for item in graders.items:
            if item.exercise == exercise.name:
                kept.update(item.promises)
                # The test that each exercise has names conventions, whatever these are.
                strange = set(item.promises if item.item else ()) - {*ids, *conventions}
                found.unknown += [f"{item.name} names {one}" for one in sorted(strange)]
        found.promises += len(ids)
        found.untested += [f"{exercise.name}: {one}" for one in ids if one not in kept]
        named |= kept
    if len(found.without_ids) < len(exercises) == len(graders.assignment.exercises):
        found.promises += len(conventions)
        found.untested += [f"conventions: {one}" for one in conventions if one not in named]
    return found
