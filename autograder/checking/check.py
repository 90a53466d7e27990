"""Checks for students: the visible graders, run in the notebook on what it defines.

Nothing here needs `solutions/`: the reference's answers to the visible tests are recorded in
exercises/<unit>/recorded.bin. Where they no longer fit the graders, as while somebody edits these,
the reference itself is asked.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.checking import ungraded
from autograder.common import cards, paths
from autograder.common.cards import Card, Line
from autograder.common.errors import AssignmentError
from autograder.judging.results import PUT_OFF
from autograder.sandbox.timelimit import TimeLimit, TimeUp
from autograder.units.assignment import Assignment, Exercise, did_you_mean, folder, load

if TYPE_CHECKING:
    from autograder.judging.recording import Recording
    from autograder.judging.results import ExerciseResult
    from autograder.judging.runner import Graders
    from autograder.sandbox.executor import Outcome, Request

# A failing case this small is shown with its values, a larger one with its shapes.
SHOWN_VALUES = 12
# What numbers look like tells these dtypes apart; others are named.
USUAL = ("float32", "int64", "bool")
NOT_RUN = "Its remaining tests were not run."
# Before what a test saw that fails as an earlier one does: nothing is known of its own matter.
FOLLOWS = "Wrong here too, perhaps for the same reason."


def checks_for(unit: str) -> Checks:
    """The `check` function of a unit's notebook, which may have `%%ungraded` cells from now on."""
    ungraded.register()
    return Checks(unit)


class Checks:
    """`check("masked_softmax")` judges one exercise, `check()` all of them.

    The answer is displayed, never returned: a number as the result of a check cell would be
    taken for points.
    """

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self._judge: Judge | None = None

    def __repr__(self) -> str:
        return f"<checks for {self.unit}: call check(name) or check()>"

    def __call__(self, exercise: Any = None) -> None:
        namespace = sys._getframe(1).f_globals
        try:
            if self._judge is None:
                self._judge = Judge(self.unit, functools.partial(TimeLimit, tell=_still_running))
            judge = self._judge
            if exercise is None:
                hung: set[str] = set()
                answers = [judge.card(name, namespace, hung) for name in judge.assignment.names]
                title = judge.assignment.title
                _show(cards.overview_html(answers, title), cards.overview_text(answers, title))
                return
            name = getattr(exercise, "__name__", exercise)
            card = judge.card(str(name), namespace)
        except AssignmentError as error:
            card = Card("problem", str(error))
        except KeyboardInterrupt:
            self._judge = None  # pytest was stopped in the middle; begin afresh next time.
            card = Card(
                "problem", "You stopped the check. If it hung, look for a loop that never ends."
            )
        except Exception as error:  # Ours, not the student's: theirs are outcomes.
            self._judge = None
            card = Card("problem", f"The check itself failed; please report this: {brief(error)}.")
        _show(cards.card_html(card), cards.card_text(card))


def _still_running(late: TimeUp) -> None:
    """Say, while a check still runs, why it does: nothing can interrupt native code."""
    from autograder.sandbox.executor import line_of

    where = f" ({line_of(late.code, late.line)})" if late.code is not None else ""
    card = Card(
        "problem",
        f"Your code takes too long and can't be stopped yet{where}. A single call of a library "
        "may have to end first: wait for it, or restart the kernel.",
    )
    with contextlib.suppress(Exception):
        _show(cards.card_html(card), cards.card_text(card))


def brief(error: BaseException) -> str:
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0]}" if words else type(error).__name__


def _show(html: str, text: str) -> None:
    """Display in a notebook, print elsewhere."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from IPython.display import display

        display({"text/html": html, "text/plain": text}, raw=True)
    else:
        print(text)


@dataclass
class _Asked:
    """A test's first request, to see that the recorded answers fit, and its last, to show it."""

    create: dict[int, dict[str, Any]]
    first: dict[str, Any]
    last: dict[str, Any]


class Judge:
    """Runs the visible graders of a unit on a namespace.

    Args:
        unit: the unit's name.
        limit: makes the limit on the time of each call, from the namespace.

    Raises:
        AssignmentError: the unit is not here, or what is needed to check it is missing.
    """

    def __init__(self, unit: str, limit: Callable[[dict[str, Any]], TimeLimit] = TimeLimit) -> None:
        from autograder.judging.runner import Graders

        self._limit = limit
        self.assignment: Assignment = load(unit)
        self.graders: Graders = Graders(unit, hidden=False, assignment=self.assignment)
        self.recording: Recording | None = _recording(unit, self.graders)

    def card(self, name: str, namespace: dict[str, Any], hung: set[str] | None = None) -> Card:
        """The answer on one exercise.

        Args:
            name: the exercise's name.
            namespace: what the notebook defines.
            hung: exercises that did not return before: one that uses them is not asked. If this one
                does not return, it is added.
        """
        if name not in self.assignment.names:
            near = did_you_mean(self.assignment, name)
            choice = near or f" The exercises are {', '.join(self.assignment.names)}."
            return Card("problem", f"There is no exercise called {name}.{choice}")
        exercise = self.assignment.exercise(name)
        if name not in namespace:
            return Card(
                "todo",
                f"`{name}` is not defined yet: run the cell that defines it, then this one.",
                name=name,
                points=0.0,
                max_points=exercise.points,
            )
        if hung and (used := sorted(hung & names_reached(name, namespace))):
            return Card(
                "todo",
                f"`{name}` was not checked: it uses your `{used[0]}`, which does not return.",
                name=name,
                points=0.0,
                max_points=exercise.points,
            )
        result, asked, timeout = self.judge(exercise, namespace)
        if timeout is not None and hung is not None:
            hung.add(name)
        return self._card(exercise, result, asked, timeout, namespace)

    def judge(
        self, exercise: Exercise, namespace: dict[str, Any]
    ) -> tuple[ExerciseResult, dict[str, _Asked], Outcome | None]:
        """The graders' result on one exercise, what each test asked last, a call that timed out."""
        from autograder.judging.recording import SEED
        from autograder.judging.runner import quiet
        from autograder.sandbox.executor import Executor

        while True:
            asked: dict[str, _Asked] = {}
            with quiet(), self._limit(namespace) as limit:
                executor = Executor(namespace)
                execute = _Limited(executor.execute, limit, exercise.name)
                results = self.graders.run(
                    _noting(execute, self.graders, asked),
                    seed=SEED,
                    exercises=[exercise.name],
                    recording=self.recording,
                    refusing=executor.refusing,
                )
            if self.recording is None or not self._outdated(asked):
                break
            self.recording = None  # Somebody is editing the graders: ask the reference itself.
        return results[exercise.name], asked, execute.timeout

    def _outdated(self, asked: dict[str, _Asked]) -> bool:
        """The tests are no longer the recorded ones, and the reference is here to be asked.

        A student's folder has no reference; there the recorded answers are all that there is.
        """
        from autograder.judging.diagnosis import fingerprint

        if self.recording is None or not _has_reference(self.assignment.unit):
            return False
        tests = self.recording.data["tests"]
        return any(
            tests[name]["asked"][:1] != [fingerprint(entry.first)] for name, entry in asked.items()
        )

    def _card(
        self,
        exercise: Exercise,
        result: ExerciseResult,
        asked: dict[str, _Asked],
        timeout: Outcome | None,
        namespace: dict[str, Any],
    ) -> Card:
        from autograder.judging.proxy import describe_error

        name = exercise.name
        lines: list[Line] = []
        outcomes = {test.outcome for test in result.tests}
        status = "passed"
        if "failed" in outcomes or result.misconception == "forbidden" or timeout is not None:
            status = "failed"  # Right values from a forbidden call earn nothing.
        elif "todo" in outcomes:
            status = "todo"
        notes: list[str] = []
        case = seen = ""
        if status == "passed":
            count = len(result.tests)
            headline = f"`{name}` passes {f'all {count} checks' if count != 1 else 'its check'}."
            lines = _lines(result)
        elif status == "todo":
            headline = self._todo(exercise, result)
        else:
            headline = _sentence(_first_message(result)) or f"`{name}` is not right yet."
            if timeout is not None:
                headline = describe_error(timeout, f"Your {name}")
                result.misconception = None  # Whatever else is wrong, this is to be mended first.
                notes.append(NOT_RUN)
            case, seen = _smallest_case(result, asked)
            lines = _lines(result, said=(headline, seen))
            seen = "" if seen == headline else seen
            if result.misconception is None and timeout is None:
                notes += self._inherited(exercise, namespace)
        reread, link = "", ""
        if status == "failed":
            reread, link = section(self.assignment, result.section or exercise.section)
        return Card(
            status,
            headline,
            name=name,
            points=result.points,
            max_points=result.max_points,
            reread=reread,
            link=link,
            case=case,
            seen=seen,
            notes=notes,
            known=result.misconception is not None,
            tests=lines,
        )

    def _todo(self, exercise: Exercise, result: ExerciseResult) -> str:
        """Whose stub was met: this exercise's own, or one that it calls."""
        messages = {test.message for test in result.tests if test.outcome == "todo"}
        for message in messages:
            found = re.fullmatch(r"(\w+) is yours to write", message)
            if found and found[1] != exercise.name and found[1] in self.assignment.names:
                return (
                    f"`{exercise.name}` calls `{found[1]}`, which is not written yet; "
                    "write that one first."
                )
        return (
            f"`{exercise.name}` is not written yet: put your code in place of "
            "`raise NotImplementedError`, run its cell, then this one."
        )

    def _inherited(self, exercise: Exercise, namespace: dict[str, Any]) -> list[str]:
        """Earlier exercises that this code calls and that are wrong themselves."""
        called = names_used(namespace[exercise.name])
        notes = []
        for earlier in self.assignment.exercises:
            if earlier.name == exercise.name:
                break
            if earlier.name not in called or earlier.name not in namespace:
                continue
            result, _, timeout = self.judge(earlier, namespace)
            if not result.passed:
                notes.append(
                    f"It calls your `{earlier.name}`, which does not pass its own check yet; "
                    "begin there."
                )
            if timeout is not None:
                break  # The next one might take as long.
        return notes


def _first_message(result: ExerciseResult) -> str:
    """The sentence to read first: the diagnosis, or what the first failed test saw."""
    return "" if result.message.startswith(PUT_OFF) else result.message


def _sentence(message: str) -> str:
    """With a capital where the sentence begins with a word rather than with a name of the code."""
    begins = re.match(r"(the|each|every|its|your|a|an|one|some|query|key)\b", message)
    return message[0].upper() + message[1:] if begins else message


def _lines(result: ExerciseResult, said: Collection[str] = ()) -> list[Line]:
    """One line for each visible test; the cases of a parametrised test are one line.

    What stands in `said` need not be said again.
    """
    from autograder.judging import asked_again

    first = next((test for test in result.tests if test.seen_wrong), None)
    grouped: dict[tuple[str, str], list[Any]] = {}
    for test in result.tests:
        grouped.setdefault((test.name.split("[")[0], test.purpose), []).append(test)
    lines = []
    for (_, purpose), tests in grouped.items():
        failed = sorted((t for t in tests if t.outcome == "failed"), key=lambda t: t.follows)
        worst = failed[0] if failed else None
        worst = worst or next((test for test in tests if test.outcome == "todo"), tests[0])
        message = _sentence(worst.message)
        message = "" if message in said else message
        apart = worst.outcome == "failed" and not worst.follows and worst is not first
        apart = apart and purpose != asked_again.PURPOSE
        outcome = "todo" if worst.follows or worst.message.startswith(PUT_OFF) else worst.outcome
        message = f"{FOLLOWS} {message}".rstrip() if worst.follows else message
        lines.append(Line(outcome, purpose, message, apart))
    order = ("failed", "todo", "passed")
    return sorted(lines, key=lambda line: order.index(line.outcome))


def _codes(value: Any) -> list[types.CodeType]:
    """The code of a function, or of each method of a class."""
    codes = []
    for member in vars(value).values() if isinstance(value, type) else [value]:
        function = inspect.unwrap(getattr(member, "__func__", member))
        code = getattr(function, "__code__", None)
        if isinstance(code, types.CodeType):
            codes.append(code)
    return codes


def names_used(value: Any) -> set[str]:
    """Global names that a function's, or a class's methods', code refers to."""
    codes = _codes(value)
    used: set[str] = set()
    while codes:
        code = codes.pop()
        used.update(
            step.argval
            for step in dis.get_instructions(code)
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        )
        codes.extend(item for item in code.co_consts if isinstance(item, types.CodeType))
    return used


def names_reached(name: str, namespace: dict[str, Any]) -> set[str]:
    """The functions and classes of a namespace that `name` uses, directly or not, and itself."""
    reached: set[str] = set()
    waiting = {name}
    while waiting:
        current = waiting.pop()
        value = namespace.get(current)
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            reached.add(current)
            waiting |= names_used(value) - reached
    return reached


def section(assignment: Assignment, anchor: str) -> tuple[str, str]:
    """How to name a section of the book, and a link to it where the book is at hand."""
    chapter = paths.chapter_of(assignment.unit)
    heading = assignment.sections.get(anchor)
    title = assignment.sections.get(chapter, assignment.title)
    words = f"“{heading}” in the chapter “{title}”" if heading else f"section {anchor}"
    if assignment.book:
        return words, assignment.url(anchor)
    page = paths.BOOK / f"{assignment.page(anchor)}.md"
    if heading and page.is_file() and Path.cwd().is_relative_to(paths.ROOT):
        return words, f"{Path(os.path.relpath(page)).as_posix()}#{anchor}"
    return words, ""


def _has_reference(unit: str) -> bool:
    return paths.solution(unit).is_file()


def _recording(unit: str, graders: Graders) -> Recording | None:
    """The recorded answers if they fit the graders; None to ask the reference itself.

    Raises:
        AssignmentError: there are none that can be used; the message says what to run.
    """
    from autograder.assignments import recorded
    from autograder.sandbox.wire import WireError

    file = folder(unit) / recorded.FILE
    try:
        recording = recorded.read(file)
        if {item.name for item in graders.items} <= set(recording.data["tests"]):
            return recording
        reason = "are older than the tests"
    except FileNotFoundError:
        reason = "are missing"
    except (WireError, KeyError, TypeError):
        reason = "are damaged"
    if not _has_reference(unit):
        remedy = "unpack the course's zip again, or ask for a new one"
    elif file.is_file():
        return None
    else:
        remedy = f"make them with python -m autograder build {unit}"
    raise AssignmentError(f"The recorded answers for {unit} ({file.name}) {reason}; {remedy}.")


class _Limited:
    """Carries requests to a student's code until one takes too long; the others have no answer.

    A test that catches what such a call ends in, and the tests after it, would wait as long again.
    """

    def __init__(
        self, execute: Callable[[Request], Outcome], limit: TimeLimit, exercise: str
    ) -> None:
        self.execute = execute
        self.limit = limit
        self.exercise = exercise
        self.timeout: Outcome | None = None

    def __call__(self, request: Request) -> Outcome:
        from autograder.sandbox.executor import line_of, owner_of

        if self.timeout is not None:
            return {"kind": "todo", "message": ""}
        try:
            return self.limit.call(self.execute, request)
        except TimeUp as late:
            where = ""
            if late.code is not None:
                owner = owner_of(late.code)
                where = f"{owner}, " * (owner != self.exercise) + line_of(late.code, late.line)
            self.timeout = {"kind": "timeout", "seconds": self.limit.seconds, "where": where}
            return self.timeout


# The failing case.


def _noting(
    execute: Callable[[dict[str, Any]], dict[str, Any]], graders: Graders, asked: dict[str, _Asked]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """`execute`, with each test's last request kept."""

    def noted(request: dict[str, Any]) -> dict[str, Any]:
        entry = asked.setdefault(graders.running, _Asked({}, request, request))
        entry.last = request
        made = request.get("made", [request] if request["op"] == "create" else [])
        entry.create |= {one["handle"]: one for one in made}
        return execute(request)

    return noted


def _smallest_case(result: ExerciseResult, asked: dict[str, _Asked]) -> tuple[str, str]:
    """The call with the fewest numbers among the failed tests, and what was seen there."""
    cases = []
    for position, test in enumerate(result.tests):
        entry = asked.get(test.name)
        if test.outcome == "failed" and entry is not None:
            again = "asked" in entry.last
            request = entry.last = entry.last.get("asked", entry.last)
            size = _size([request.get("args"), request.get("kwargs")])
            # Creating a module is a case only where nothing else failed, and so is what shows only
            # when it is asked again. A test that is put off has failed in no case.
            plain = again or request["op"] in ("create", "inspect")
            cases.append((not test.seen_wrong, plain, size, position))
    if not cases:
        return "", ""
    test = result.tests[min(cases)[-1]]
    return _call(asked[test.name]), _sentence(test.message)


def _size(value: Any) -> int:
    if hasattr(value, "numel"):
        return value.numel()
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return 0


def _call(entry: _Asked) -> str:
    request = entry.last
    values = _size([request.get("args"), request.get("kwargs")]) <= SHOWN_VALUES
    if request["op"] in ("call", "create"):
        return f"{request['name']}({_arguments(request, values)})"
    create = entry.create.get(request["handle"], {"name": "module", "kwargs": {}})
    made = f"{create['name']}({_arguments(create, values)})"
    if create.get("dtype"):
        made += f".to(torch.{create['dtype']})"
    if request["op"] == "inspect":
        return made
    method = request.get("method", "forward")
    return f"{made}{'' if method == 'forward' else '.' + method}({_arguments(request, values)})"


def _arguments(request: dict[str, Any], values: bool) -> str:
    shown = [_value(value, values) for value in request.get("args") or []]
    shown += [
        f"{key}={_value(item, values)}" for key, item in (request.get("kwargs") or {}).items()
    ]
    return ", ".join(shown)


def _value(value: Any, values: bool) -> str:
    """A tensor as its values or its shape and type; anything else as it is written."""
    if hasattr(value, "numel"):
        kind = str(value.dtype).removeprefix("torch.")
        if values:
            shown = _numbers(value.tolist())
            return shown if kind in USUAL else f"tensor({shown}, dtype={kind})"
        shape = ", ".join(map(str, value.shape))
        return f"<{kind} ({shape}{',' if value.dim() == 1 else ''})>"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{key!r}: {_value(item, values)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        left, right = "[]" if isinstance(value, list) else "()"
        return left + ", ".join(_value(item, values) for item in value) + right
    return repr(value)


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_numbers, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
