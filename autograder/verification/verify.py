"""The graders, judged: by the reference, misconceptions, trivial answers, mutants and slips.

The reference must earn full marks; every misconception must lose points and be named; an answer
without work must earn nothing, whatever the other exercises are; every mutant of the reference,
and the reference with each bad habit that shows in no value, must be noticed, or be listed with
the reason why it is equivalent. Every promise of an exercise's text must be kept by a test.
"""

from __future__ import annotations

import multiprocessing
import signal
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from typing import Any

from autograder.common import paths
from autograder.common.paths import PACKAGE, inside
from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units import promises
from autograder.units.variants import (
    load_variant,
    misconceptions,
    reference_namespace,
    source_of,
    wrong_namespace,
)
from autograder.verification import contract, initial_values, slips, trivial
from autograder.verification.mutants import Mutant, mutants

# Of the processor, whatever else the machine does; the reference answers any exercise in less than
# one. A mutant that goes on for longer never ends, and is waited for in vain.
SECONDS_PER_MUTANT = 4


@dataclass
class Verdict:
    """How the graders of one unit did."""

    unit: str
    exercises: int = 0
    points: float = 0.0
    reference: float = 0.0
    misconceptions: int = 0
    rejected: int = 0
    diagnosed: int = 0
    mutants: int = 0
    killed: int = 0
    equivalent: int = 0
    slips: int = 0
    noticed: int = 0
    trivial: int = 0
    refused: int = 0
    accepted: list[str] = field(default_factory=list)
    unnamed: dict[str, str | None] = field(default_factory=dict)
    as_initialised: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    gifts: list[str] = field(default_factory=list)
    promises: int = 0
    untested: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    without_ids: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Everything holds that the graders promise."""
        return (
            self.reference == self.points
            and self.rejected == self.misconceptions
            and self.diagnosed >= 0.9 * self.misconceptions
            and not (self.survivors or self.stale or self.gifts)
            and not (self.untested or self.unknown or self.without_ids)
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sound": self.sound}


class _TooSlow(BaseException):
    """A mutant that does not end; not an Exception, so that no code under test catches it."""


def _stop(signum: int, frame: object) -> None:
    raise _TooSlow


_graders: dict[str, Graders] = {}


def graders_of(unit: str) -> Graders:
    """The unit's graders, collected once per process."""
    if unit not in _graders:
        _graders[unit] = Graders(unit)
    return _graders[unit]


def equivalents(unit: str) -> dict[str, str]:
    """Mutants that mean the same as the reference, each with the reason."""
    path = PACKAGE / "equivalents" / inside(unit, ".toml")
    if not path.exists():
        return {}
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"]
    return {entry["mutant"]: entry["reason"] for entry in entries}


def judge_misconception(task: tuple[str, str, str, int]) -> tuple[str, bool, str | None, bool]:
    """Name, whether it lost points, what the diagnosis called it, and whether only as it stands.

    A module is judged with other initial values. Where it is not named then, as where the text
    fixes them, it is judged with those of the reference. It is asked again only where it has lost
    nothing yet: that names no mistake.
    """
    unit, name, exercise, seed = task
    wrong = wrong_namespace(unit, name)
    other = initial_values.redrawn(wrong, exercise)
    for namespace in (wrong,) if other is None else (other, wrong):
        graders, execute = graders_of(unit), Executor(namespace).execute
        result = graders.run(execute, seed=seed, exercises=[exercise], again=False)[exercise]
        lost = result.points < result.max_points or not graders.passes_again(
            execute, exercise, seed
        )
        if lost and result.misconception == name:
            break
    return name, lost, result.misconception, other is not None and namespace is wrong


def judge_trivial(task: tuple[str, str]) -> tuple[int, list[str]]:
    """How many answers without work an exercise was given, and those that earn something."""
    unit, exercise = task
    return trivial.gifts(graders_of(unit), exercise)


def judge_mutant(task: tuple[str, Mutant]) -> tuple[str, bool]:
    """Name, and whether a grader noticed."""
    unit, mutant = task
    graders_of(unit).requests_again(mutant.exercise, 0)  # It takes the reference's time.
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_PER_MUTANT)
    try:
        namespace = load_variant(mutant.source, "mutant")
        results = graders_of(unit).run(
            Executor(namespace).execute,
            exercises=[mutant.exercise],
            diagnose=False,
            stop_at_failure=True,
        )
    except (Exception, _TooSlow):
        return mutant.name, True  # it does not even load, or never ends
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return mutant.name, not all(result.passed for result in results.values())


def judge_slip(task: tuple[str, str, str, str]) -> tuple[str, bool] | None:
    """Name, and whether a grader noticed; None where an exercise leaves no room for the habit."""
    unit, exercise, slip, place = task
    noticed = slips.noticed(graders_of(unit), exercise, slip, place)
    where = f".{place}" if place not in ("", "forward", "__init__") else ""
    return None if noticed is None else (f"{exercise}{where}: {slip}", noticed)


def _single_threaded() -> None:
    import torch

    torch.set_num_threads(1)


def judge_reference(task: tuple[str, str, int]) -> tuple[int, float]:
    """A seed, and the points of a unit's reference for an exercise at it."""
    unit, exercise, seed = task
    execute = Executor(reference_namespace(unit)).execute
    return seed, graders_of(unit).run(execute, seed=seed, exercises=[exercise])[exercise].points


Piece = tuple[Callable[[Any], Any], Any]  # a function, and what it is given


def judge(pieces: list[Piece]) -> list[Any]:
    """What comes of pieces of work that share much, so that one process does them all."""
    return [function(task) for function, task in pieces]


def verify(
    units: Sequence[str],
    *,
    jobs: int = 1,
    exercises: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Verdict]:
    """Judge the graders of these units, a verdict each.

    Args:
        units: whose graders.
        jobs: processes to use.
        exercises: only these; all by default.
        seeds: of the inputs with which the reference and the misconceptions are judged. A
            misconception is to be rejected and named at each of them.
        progress: told what is being done, how many are done, and of how many.
    """
    verdicts = {}
    works: list[tuple[str, Callable[[Any], Any], list[Any]]] = []
    for unit in units:
        assignment = graders_of(unit).assignment
        chosen = [item for item in assignment.exercises if not exercises or item.name in exercises]
        names = [item.name for item in chosen]
        verdicts[unit] = Verdict(
            unit, exercises=len(chosen), points=sum(item.points for item in chosen)
        )
        texts = promises.by_exercise(source_of(unit))
        others = [each for each in paths.UNITS if paths.chapter_of(each) == paths.chapter_of(unit)]
        elsewhere = {one for each in others if each != unit for one in promises.named_by(each)}
        said = contract.read(
            graders_of(unit), texts, promises.of_conventions(unit), names, elsewhere
        )
        vars(verdicts[unit]).update(vars(said))
        wrong = [item for item in misconceptions(unit) if item.exercise in names]
        changed = [mutant for mutant in mutants(source_of(unit)) if mutant.exercise in names]
        works += [
            (unit, judge_reference, [(unit, one, seed) for seed in seeds for one in names]),
            (
                unit,
                judge_misconception,
                [(unit, item.name, item.exercise, seed) for item in wrong for seed in seeds],
            ),
            (unit, judge_trivial, [(unit, one) for one in names]),
            (unit, judge_mutant, [(unit, mutant) for mutant in changed]),
            (
                unit,
                judge_slip,
                [(unit, one.name, *slip) for one in chosen for slip in slips.of(unit, one)],
            ),
        ]
    total: Counter[str] = Counter()
    # What is judged of an exercise with the same inputs is asked the same of the reference.
    bundles: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for number, (unit, function, tasks) in enumerate(works):
        total[WORK[function]] += len(tasks)
        for place, task in enumerate(tasks):
            bundles.setdefault((unit, *_inputs(function, task)), []).append((number, place))
    found: list[list[Any]] = [[None] * len(tasks) for _, _, tasks in works]
    done: Counter[str] = Counter()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_single_threaded) as pool:
        running = {}
        for places in bundles.values():
            pieces = [(works[number][1], works[number][2][place]) for number, place in places]
            running[pool.submit(judge, pieces)] = places
        try:
            for finished in as_completed(running):
                for (number, place), result in zip(
                    running[finished], finished.result(), strict=True
                ):
                    found[number][place] = result
                    what = WORK[works[number][1]]
                    done[what] += 1
                    progress(what, done[what], total[what])
        except BaseException:
            pool.shutdown(cancel_futures=True)  # else all that waits would be done first
            raise
    there: dict[str, set[str]] = {unit: set() for unit in units}
    for (unit, function, _), results in zip(works, found, strict=True):
        _enter(verdicts[unit], function, results)
        if function in (judge_mutant, judge_slip):
            there[unit] |= {one[0] for one in results if one}
    if not exercises:
        for unit, known in there.items():
            verdicts[unit].stale += [name for name in equivalents(unit) if name not in known]
    return list(verdicts.values())


def _inputs(function: Callable[[Any], Any], task: Any) -> tuple[str, int]:
    """For which exercise, and from which seed, the inputs are that a task is judged with."""
    if function is judge_reference:
        return task[1], task[2]
    if function is judge_misconception:
        return task[2], task[3]
    return task[1].exercise if function is judge_mutant else task[1], 0


# What is done, as a person is told.
WORK: dict[Callable[..., Any], str] = {
    judge_reference: "reference",
    judge_misconception: "misconceptions",
    judge_trivial: "answers without work",
    judge_mutant: "mutants",
    judge_slip: "bad habits",
}


def _enter(verdict: Verdict, function: Callable[..., Any], found: list[Any]) -> None:
    """Write into a verdict what came of one kind of work."""
    if function is judge_reference:
        points: dict[int, float] = {}
        for seed, earned in found:
            points[seed] = points.get(seed, 0.0) + earned
        verdict.reference = min(points.values(), default=0.0)
    elif function is judge_misconception:
        by_name: dict[str, list[tuple[bool, str | None, bool]]] = {}
        for name, *judged in found:
            by_name.setdefault(name, []).append(tuple(judged))
        for name, at_seeds in by_name.items():
            verdict.misconceptions += 1
            lost = all(one for one, _, _ in at_seeds)
            others = [named for _, named, _ in at_seeds if named != name]
            verdict.rejected += lost
            verdict.diagnosed += not others
            if any(as_it_stands for _, _, as_it_stands in at_seeds):
                verdict.as_initialised.append(name)
            if not lost:
                verdict.accepted.append(name)
            elif others:
                verdict.unnamed[name] = others[0]
    elif function is judge_trivial:
        for count, gifts in found:
            verdict.trivial += count
            verdict.refused += count - len(gifts)
            verdict.gifts += gifts
    else:
        reasons = equivalents(verdict.unit)
        pairs = [pair for pair in found if pair]
        survived = [name for name, noticed in pairs if not noticed]
        if function is judge_mutant:
            verdict.mutants, verdict.killed = len(pairs), len(pairs) - len(survived)
        else:
            verdict.slips, verdict.noticed = len(pairs), len(pairs) - len(survived)
        verdict.equivalent += sum(name in reasons for name in survived)
        verdict.survivors += [name for name in survived if name not in reasons]
        verdict.stale += [name for name, noticed in pairs if noticed and name in reasons]
