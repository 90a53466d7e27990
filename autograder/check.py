"""Checks for students: the visible graders, run in the notebook on what it defines.

Nothing here needs `solutions/`: the reference's answers to the visible tests are recorded in
exercises/<chapter>/recorded.bin. Where they are not, the reference itself is asked.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import linecache
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder import paths, render
from autograder.assignment import (
    Assignment,
    AssignmentError,
    Exercise,
    did_you_mean,
    folder,
    load,
)
from autograder.render import Card, Line

if TYPE_CHECKING:
    from autograder.recording import Recording
    from autograder.results import ExerciseResult
    from autograder.runner import Graders

# How the runner puts off a test that an answer without work passes too.
PUT_OFF = ("Refusing bad input counts once", "This counts once")
# A failing case this small is shown with its values, a larger one with its shapes.
SHOWN_VALUES = 12


def checks_for(chapter: str) -> Checks:
    """The `check` function of a chapter's notebook."""
    return Checks(chapter)


class Checks:
    """`check("masked_softmax")` judges one exercise, `check()` all of them.

    The answer is displayed, never returned: a number as the result of a check cell would be
    taken for points.
    """

    def __init__(self, chapter: str) -> None:
        self.chapter = chapter
        self._judge: Judge | None = None

    def __repr__(self) -> str:
        return f"<checks for {self.chapter}: call check(name) or check()>"

    def __call__(self, exercise: Any = None) -> None:
        namespace = sys._getframe(1).f_globals
        try:
            if self._judge is None:
                self._judge = Judge(self.chapter)
            judge = self._judge
            if exercise is None:
                cards = [judge.card(item.name, namespace) for item in judge.assignment.exercises]
                title = judge.assignment.title
                _show(render.overview_html(cards, title), render.overview_text(cards, title))
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
            card = Card("problem", f"The check itself failed; please report this: {_brief(error)}.")
        _show(render.card_html(card), render.card_text(card))


def _brief(error: BaseException) -> str:
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


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What student code prints while it is judged is not shown: it would be printed many times."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@dataclass
class _Asked:
    """A test's first request, to see that the recorded answers fit, and its last, to show it."""

    create: dict[int, dict[str, Any]]
    first: dict[str, Any]
    last: dict[str, Any]


class Judge:
    """Runs the visible graders of a chapter on a namespace.

    Raises:
        AssignmentError: the chapter is not here, or what is needed to check it is missing.
    """

    def __init__(self, chapter: str) -> None:
        from autograder.runner import Graders

        self.assignment: Assignment = load(chapter)
        self.graders: Graders = Graders(chapter, hidden=False, assignment=self.assignment)
        self.recording: Recording | None = _recording(chapter, self.graders)

    def card(self, name: str, namespace: dict[str, Any]) -> Card:
        """The answer on one exercise."""
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
        result, asked = self.judge(exercise, namespace)
        return self._card(exercise, result, asked, namespace)

    def judge(
        self, exercise: Exercise, namespace: dict[str, Any]
    ) -> tuple[ExerciseResult, dict[str, _Asked]]:
        """The graders' result on one exercise, and what each test asked last."""
        from autograder.executor import Executor
        from autograder.recording import SEED

        while True:
            asked: dict[str, _Asked] = {}
            with quiet():
                results = self.graders.run(
                    _noting(Executor(namespace).execute, self.graders, asked),
                    seed=SEED,
                    exercises=[exercise.name],
                    recording=self.recording,
                    sources=current_sources(namespace),
                )
            if self.recording is None or not self._outdated(asked):
                break
            self.recording = None  # Somebody is editing the graders: ask the reference itself.
        return results[exercise.name], asked

    def _outdated(self, asked: dict[str, _Asked]) -> bool:
        """The tests are no longer the recorded ones, and the reference is here to be asked.

        A student's folder has no reference; there the recorded answers are all that there is.
        """
        from autograder.diagnosis import fingerprint

        if self.recording is None or not _has_reference(self.assignment.chapter):
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
        namespace: dict[str, Any],
    ) -> Card:
        name = exercise.name
        lines = _lines(result)
        outcomes = {test.outcome for test in result.tests}
        status = "passed"
        if "failed" in outcomes or result.misconception == "forbidden":
            status = "failed"  # Right values from a forbidden call earn nothing.
        elif "todo" in outcomes:
            status = "todo"
        notes: list[str] = []
        case = seen = ""
        if status == "passed":
            count = len(result.tests)
            headline = f"`{name}` passes {f'all {count} checks' if count != 1 else 'its check'}."
        elif status == "todo":
            headline = self._todo(exercise, result)
            lines = []
        else:
            headline = _sentence(_first_message(result)) or f"`{name}` is not right yet."
            case, seen = _smallest_case(result, asked)
            said = (headline, seen)  # Nothing need be said twice.
            lines = [
                Line(line.outcome, line.purpose, "" if line.message in said else line.message)
                for line in lines
            ]
            seen = "" if seen == headline else seen
            if result.misconception is None:
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
            result, _ = self.judge(earlier, namespace)
            if not result.passed:
                notes.append(
                    f"It calls your `{earlier.name}`, which does not pass its own check yet; "
                    "begin there."
                )
        return notes


def _first_message(result: ExerciseResult) -> str:
    """The sentence to read first: the diagnosis, or what the first failed test saw."""
    if not result.message.startswith(PUT_OFF):
        return result.message
    failed = [test.message for test in result.tests if test.outcome == "failed"]
    return next((message for message in failed if not message.startswith(PUT_OFF)), "")


def _sentence(message: str) -> str:
    """With a capital where the sentence begins with a word rather than with a name of the code."""
    begins = re.match(r"(the|each|every|its|your|a|an|one|some|query|key)\b", message)
    return message[0].upper() + message[1:] if begins else message


def _lines(result: ExerciseResult) -> list[Line]:
    """One line for each visible test; the cases of a parametrised test are one line."""
    grouped: dict[tuple[str, str], list[Any]] = {}
    for test in result.tests:
        grouped.setdefault((test.name.split("[")[0], test.purpose), []).append(test)
    lines = []
    for (_, purpose), tests in grouped.items():
        worst = next((test for test in tests if test.outcome == "failed"), None)
        worst = worst or next((test for test in tests if test.outcome == "todo"), tests[0])
        outcome = "todo" if worst.message.startswith(PUT_OFF) else worst.outcome
        lines.append(Line(outcome, purpose, _sentence(worst.message)))
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
        used.update(code.co_names)
        codes.extend(item for item in code.co_consts if isinstance(item, types.CodeType))
    return used


def current_sources(namespace: dict[str, Any]) -> list[str]:
    """The text of the cells behind what `namespace` now holds, to be read for forbidden names.

    Cells that define nothing are all there, since they may import; of those that define something
    only the ones whose definitions are still in force, since a student may have tried others.
    """
    history = namespace.get("In", [])
    plain = [
        cell
        for cell in (history if isinstance(history, list) else [])
        if isinstance(cell, str)
        and not re.search(r"^\s*(async def|def|class)\s", cell, re.MULTILINE)
    ]
    files: dict[str, None] = {}
    for value in list(namespace.values()):
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            files.update((code.co_filename, None) for code in _codes(value))
    return plain + ["".join(linecache.getlines(file)) for file in files]


def section(assignment: Assignment, anchor: str) -> tuple[str, str]:
    """How to name a section of the book, and a link to it where the book is at hand."""
    chapter = assignment.chapter
    heading = assignment.sections.get(anchor)
    title = assignment.sections.get(chapter, assignment.title)
    words = f"“{heading}” in the chapter “{title}”" if heading else f"section {anchor}"
    if assignment.book:
        return words, f"{assignment.book.rstrip('/')}/{chapter}.html#{anchor}"
    page = paths.ROOT / "book" / f"{chapter}.md"
    if heading and page.is_file() and Path.cwd().is_relative_to(paths.ROOT):
        return words, f"{Path(os.path.relpath(page)).as_posix()}#{anchor}"
    return words, ""


def _has_reference(chapter: str) -> bool:
    return (paths.SOLUTIONS / f"{chapter}.py").is_file()


def _recording(chapter: str, graders: Graders) -> Recording | None:
    """The recorded answers if they fit the graders; None to ask the reference itself."""
    from autograder import recorded
    from autograder.wire import WireError

    file = folder(chapter) / recorded.FILE
    reason = "are missing"
    try:
        recording = recorded.read(file)
        if {item.name for item in graders.items} <= set(recording.data["tests"]):
            return recording
        reason = "are older than the tests"
    except FileNotFoundError:
        pass
    except (WireError, KeyError, TypeError):
        reason = "are damaged"
    if _has_reference(chapter):
        return None
    raise AssignmentError(
        f"The recorded answers for {chapter} ({file.name}) {reason}; "
        "unpack the course's zip again, or ask for a new one."
    )


# The failing case.


def _noting(
    execute: Callable[[dict[str, Any]], dict[str, Any]], graders: Graders, asked: dict[str, _Asked]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """`execute`, with each test's last request kept."""

    def noted(request: dict[str, Any]) -> dict[str, Any]:
        entry = asked.setdefault(graders.running, _Asked({}, request, request))
        entry.last = request
        if request["op"] == "create":
            entry.create[request["handle"]] = request
        return execute(request)

    return noted


def _smallest_case(result: ExerciseResult, asked: dict[str, _Asked]) -> tuple[str, str]:
    """The call with the fewest numbers among the failed tests, and what was seen there."""
    cases = []
    for position, test in enumerate(result.tests):
        entry = asked.get(test.name)
        if test.outcome == "failed" and entry is not None:
            request = entry.last
            size = _size([request.get("args"), request.get("kwargs")])
            # Creating a module is a case only where nothing else failed.
            plain = request["op"] in ("create", "inspect") or test.message.startswith(PUT_OFF)
            cases.append((plain, size, position))
    if not cases:
        return "", ""
    test = result.tests[min(cases)[2]]
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
            return _numbers(value.tolist())
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
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# A whole notebook, from the command line.


@dataclass(frozen=True)
class NotebookReport:
    """What a notebook's check found: a card for each exercise, and cells that did not run."""

    title: str
    cards: tuple[Card, ...]
    troubles: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(card.status == "passed" for card in self.cards)


def check_notebook(
    path: Path,
    exercises: Sequence[str] = (),
    chapter: str | None = None,
    seconds: float = 300.0,
) -> NotebookReport:
    """Run a notebook's cells in a process of their own and judge what they define.

    Args:
        path: the notebook.
        exercises: only these; all of them when empty.
        chapter: the chapter, if neither the notebook's text nor its name tells.
        seconds: the time that the cells and the checks may take together.

    Raises:
        AssignmentError: the notebook cannot be read or does not end; one sentence.
    """
    import subprocess
    import tempfile

    cells = read_cells(path)
    chapter = chapter or chapter_of(path, cells)
    assignment = load(chapter)
    for name in exercises:
        if name not in assignment.names:
            near = did_you_mean(assignment, name)
            choice = near or f" The exercises are {', '.join(assignment.names)}."
            raise AssignmentError(f"There is no exercise called {name}.{choice}")
    with tempfile.TemporaryDirectory(prefix="check-") as scratch:
        answer = Path(scratch) / "answer.json"
        order = {
            "chapter": chapter,
            "cells": cells,
            "exercises": list(exercises) or list(assignment.names),
            "answer": str(answer),
        }
        # The course's own package first, the notebook's folder next, as in Jupyter.
        code = (
            f"import sys; sys.path[:0] = [{str(paths.ROOT)!r}, '']; "
            "from autograder.check import _judge_cells; _judge_cells(sys.stdin.buffer.read())"
        )
        # Output is not read but dropped: a notebook may print without end.
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=path.resolve().parent,
            env={**os.environ, "MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=os.name == "posix",
        )
        try:
            process.communicate(json.dumps(order).encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssignmentError(
                f"{path.name} did not finish within {seconds:g} seconds; "
                "is there a loop that never ends?"
            ) from None
        finally:
            _end(process)
        try:
            data = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise AssignmentError(
                f"{path.name} ended Python before its check was done; "
                "remove calls such as exit() or os._exit()."
            ) from None
    if "problem" in data:
        raise AssignmentError(data["problem"])
    cards = tuple(
        Card(**{**card, "tests": [Line(**test) for test in card["tests"]]})
        for card in data["cards"]
    )
    return NotebookReport(assignment.title, cards, tuple(data["troubles"]))


def _end(process: Any) -> None:
    """End the notebook's process and what it started."""
    import signal

    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


def read_cells(path: Path) -> list[str]:
    """The source of each code cell.

    Raises:
        AssignmentError: there is no readable notebook at `path`.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AssignmentError(f"There is no notebook at {path}; check the path.") from None
    except IsADirectoryError:
        raise AssignmentError(f"{path} is a folder; name the notebook in it.") from None
    except (OSError, ValueError):
        raise AssignmentError(
            f"{path.name} is not a readable notebook (broken JSON); open it in Jupyter and save it "
            "again, or start from a fresh copy."
        ) from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise AssignmentError(
            f"{path.name} holds no cells; start from a fresh copy of the notebook."
        )
    sources = []
    for cell in cells:
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        if isinstance(source, str):
            sources.append(source)
    return sources


def chapter_of(path: Path, cells: Sequence[str]) -> str:
    """The chapter that a notebook is about: what its first cell says, or its file's name."""
    known = paths.chapters()
    for source in cells:
        found = re.search(r"""checks_for\(\s*["'](\w+)["']""", source)
        if found and found[1] in known:
            return found[1]
    named = [chapter for chapter in known if path.stem.lower().startswith(chapter)]
    if named:
        return named[0]
    raise AssignmentError(
        f"{path.name} does not say which assignment it is; add --chapter "
        f"{known[0] if known else 'attention'}."
    )


def _judge_cells(raw: bytes) -> None:
    """The other side of `check_notebook`: run the cells, judge, write the answer."""
    from dataclasses import asdict

    import autograder

    order = json.loads(raw)
    answer: dict[str, Any]
    # While the cells run their own checks say nothing: all exercises are judged at the end.
    autograder.checks_for = lambda chapter: lambda *_: None  # type: ignore[assignment]
    namespace: dict[str, Any] = {"__name__": "__main__", "check": lambda *_: None}
    troubles = _run_cells(order["cells"], namespace)
    try:
        judge = Judge(order["chapter"])
        cards = [judge.card(name, namespace) for name in order["exercises"]]
        answer = {"cards": [asdict(card) for card in cards], "troubles": troubles}
    except AssignmentError as error:
        answer = {"problem": str(error)}
    except Exception as error:
        answer = {"problem": f"The check itself failed; please report this: {_brief(error)}."}
    Path(order["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _run_cells(cells: Sequence[str], namespace: dict[str, Any]) -> list[str]:
    """Execute cells in order; a cell that fails is reported and the next one runs."""
    troubles = []
    for number, source in enumerate(cells, 1):
        source = "\n".join(
            "" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n")
        )
        name = f"<cell {number}>"
        lines = source.splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)
        try:
            exec(compile(source, name, "exec", dont_inherit=True), namespace)
        except NotImplementedError:
            pass  # A stub that is called in a cell: the exercise's own card says so.
        except SyntaxError as error:
            troubles.append(f"Code cell {number}, line {error.lineno}: {error.msg}.")
        except (Exception, SystemExit) as error:
            line = _line_in(error, name)
            where = f", line {line}: {lines[line - 1].strip()}" if line else ""
            troubles.append(f"Code cell {number}{where} raised {_brief(error)}.")
    return troubles


def _line_in(error: BaseException, file: str) -> int:
    """The last line of `file` on the way to the error."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
