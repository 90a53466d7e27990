"""From an exercise's tests to its points: the passed share, and what takes it away again."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch

from autograder.judging import asked_again
from autograder.judging.diagnosis import Evidence
from autograder.judging.expectations import IN_PLACE
from autograder.judging.proxy import WRITE_YOURSELF
from autograder.judging.results import PUT_OFF, ExerciseResult, TestResult

# How a failure shows that nothing else can be looked at behind.
SPREADS = ("values", "shape", "error", "parameters")


def score(name: str, points: float, section: str, tests: list[TestResult]) -> ExerciseResult:
    """The passed share of the points; the first line is what the first failed test says.

    Values come first: tests that don't count before values are right are passed over.
    """
    total = sum(test.weight for test in tests)
    passed = sum(test.weight for test in tests if test.outcome == "passed")
    share = passed / total if total else 0.0
    result = ExerciseResult(name, round(points * share, 2), points, section=section, tests=tests)
    open_tests = [test for test in tests if test.outcome != "passed"]
    if open_tests and all(test.outcome == "todo" for test in open_tests):
        result.message = f"{name} is not written yet."
    elif open_tests:
        failed = [test.message for test in open_tests if test.outcome == "failed"]
        result.message = next((m for m in failed if not m.startswith(PUT_OFF)), failed[0])
    return result


def withdraw(
    result: ExerciseResult,
    used: list[str],
    written: Collection[str] = (),
    given: Collection[str] = (),
) -> None:
    """Calling the function that the exercise asks for earns nothing, however right the values.

    Args:
        result: of the exercise.
        used: the forbidden functions that were called.
        written: earlier exercises that this one may use; some have the name of a function of torch.
        given: what the unit is given, likewise.
    """
    ending = WRITE_YOURSELF
    if allowed := [name for name in used if name in written]:
        ending = f"which is not allowed here; use your own {', '.join(allowed)}."
    elif allowed := [name for name in used if name in given]:
        ending = (
            f"which is not allowed here; use the {', '.join(allowed)} that this unit gives you "
            "(given.py)."
        )
    result.points = 0.0
    result.misconception = "forbidden"
    result.message = f"Your {result.name} calls torch's {', '.join(used)}, {ending}"
    for test in result.tests:
        test.message = test.message.replace(WRITE_YOURSELF, ending)


def withdraw_undone(result: ExerciseResult, undone: list[str]) -> None:
    """Code that makes a forbidden function callable again could have called it."""
    result.points = 0.0
    result.misconception = "forbidden"
    result.message = (
        f"While {result.name} is judged, torch's {', '.join(undone)} can't be called; "
        "something in this notebook undoes that."
    )


def answers_right(tests: list[TestResult], evidence: list[Evidence]) -> bool:
    """Whether a test is passed in which good input was answered, not only bad input refused.

    Otherwise code that raises ValueError whatever it is given would earn points.
    """
    answered = {seen.test for seen in evidence if seen.answered}
    return any(test.outcome == "passed" and test.name in answered for test in tests)


def only_one_number(evidence: list[Evidence]) -> bool:
    """Whether good input got one number as an answer, over and over: no work, refusals or not."""
    found = {
        number
        for seen in evidence
        if seen.failed and seen.answered
        for exchange in seen.transcript
        if exchange.request["op"] in ("call", "invoke") and exchange.outcome["kind"] == "value"
        for number in _numbers(exchange.outcome["value"])
    }
    return len(found) <= 1


def _numbers(value: Any) -> Iterator[str]:
    """Different numbers and strings of an answer, two of each tensor at most."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().flatten().to(torch.complex128)  # a dtype that compares any other
        if flat.numel():
            yield str(flat[0].item())
            yield from (str(other.item()) for other in flat[flat != flat[0]][:1])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, dict):
        yield from _numbers(list(value.values()))
    else:
        yield str(value)


def tell_once(name: str, tests: list[TestResult]) -> None:
    """Where another test says that an argument is changed in place, `asked_again` costs nothing."""
    said = [test for test in tests if test.outcome == "failed" and IN_PLACE in test.message]
    if len(said) > 1 and said[-1].name == asked_again.test_name(name):
        said[-1].weight = 0.0


def right_somewhere(tests: list[TestResult], evidence: list[Evidence], aspects: set[str]) -> bool:
    """Whether a test is passed that an answer without work does not pass."""
    passed = {test.name for test in tests if test.outcome == "passed"}
    return bool(passed & {seen.test for seen in evidence if seen.answered} - aspects)


def not_yet(name: str, tests: list[TestResult]) -> tuple[str, str]:
    """Outcome and message of what says nothing of values, where no value is right."""
    open_ = "todo" if any(test.outcome == "todo" for test in tests) else "failed"
    return open_, f"This counts once {name} gives right values."


def note_followers(name: str, tests: list[TestResult], explained: Collection[str]) -> None:
    """Note which failures say nothing of what their test is for.

    Wherever numbers are wrong, or the code raises an error, every later test sees it too, whatever
    else it looks at. Where a mistake is named, what it doesn't explain fails for another reason.

    Args:
        name: of an exercise.
        tests: its tests, in their order.
        explained: those that fail for the mistake that is named.
    """
    failed = [test for test in tests if test.seen_wrong]
    named = [test for test in failed if test.name in explained]
    for test in failed[1:]:
        kind = failed[0].kind
        both = kind == "error" and test.kind == "another error"
        alike = kind in SPREADS and (both or test.kind in ("values", "error", kind))
        again = test.name == asked_again.test_name(name)
        test.follows = test in named[1:] or (alike and (again or not named))


def put_off(tests: list[TestResult], message: str) -> None:
    """What is passed does not count yet."""
    open_ = "todo" if any(test.outcome == "todo" for test in tests) else "failed"
    for test in tests:
        if test.outcome == "passed":
            test.outcome = open_
            test.message = message
