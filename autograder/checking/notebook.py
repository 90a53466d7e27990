"""`check` for a whole notebook, from the command line: its cells run in a process of their own.

That process stops what takes too long as the notebook does. What can't be stopped so, such as one
endless call of native code, ends the process; another one goes on with what is left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib.util
import json
import linecache
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from autograder.checking.check import NOT_RUN, Judge, brief
from autograder.common import paths
from autograder.common.cards import Card, Line
from autograder.common.cells import is_ungraded, source_of
from autograder.common.errors import AssignmentError
from autograder.sandbox import timelimit
from autograder.sandbox.timelimit import GRACE_SECONDS, TimeLimit, TimeUp, did_not_return
from autograder.units.assignment import Assignment, did_you_mean, load, require_unit

NAMED = re.compile(r"""checks_for\(\s*["']([\w-]+)["']""")
# How long a process may say nothing: it imports PyTorch, or asks an exercise call after call.
PATIENCE_SECONDS = 120.0
LONGEST_MESSAGE = 1 << 18


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
    unit: str | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> NotebookReport:
    """Run a notebook's cells in a process of their own and judge what they define.

    Args:
        path: the notebook.
        exercises: only these; all of them when empty.
        unit: the unit, if neither the notebook's text nor its name tells.
        seconds: how long a cell, or a call of an exercise, may take;
            `timelimit.SECONDS_PER_CALL` by default.
        progress: is told what is being done.

    Raises:
        AssignmentError: the notebook cannot be read or checked; one sentence.
    """
    cells = read_cells(path)
    unit = unit or unit_of(path, cells)
    assignment = load(unit)
    for name in exercises:
        if name not in assignment.names:
            near = did_you_mean(assignment, name)
            choice = near or f" The exercises are {', '.join(assignment.names)}."
            raise AssignmentError(f"There is no exercise called {name}.{choice}")
    wanted = list(exercises) or list(assignment.names)
    limit = timelimit.SECONDS_PER_CALL if seconds is None else seconds
    check = _Check(path, assignment, cells, list(wanted), limit, progress)
    while check.left:
        check.run()
    cards = tuple(check.cards[name] for name in wanted)
    troubles = tuple(words for _, words in sorted(check.troubles.items()))
    return NotebookReport(assignment.title, cards, troubles)


@dataclass
class _Check:
    """The check of one notebook: what is known so far, and the process that finds out more."""

    path: Path
    assignment: Assignment
    cells: list[str]
    left: list[str]  # exercises that have no card yet
    seconds: float
    progress: Callable[[str], None]
    cards: dict[str, Card] = field(default_factory=dict)
    troubles: dict[int, str] = field(default_factory=dict)  # by the number of the cell
    skipped: list[int] = field(default_factory=list)  # cells that ended a process
    hung: set[str] = field(default_factory=set)  # exercises that do not return
    doing: int | str | None = None  # the cell or the exercise that the process is at

    def run(self) -> None:
        """Start a process and hear it until it is done, or take note of what ended it."""
        self.doing = None
        order = {
            "unit": self.assignment.unit,
            "cells": self.cells,
            "skipped": self.skipped,
            "exercises": self.left,
            "hung": sorted(self.hung),
            "seconds": self.seconds,
        }
        self.progress("starting Python")
        process = _start(self.path.resolve().parent)
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                # The pipe stays open: the process ends when it is closed, as it is when this one
                # ends, in whatever way.
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()
            said = self._listen(process)
            if said is None:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
            self._ended(said, process.poll())
        finally:
            _end(process)

    def _listen(self, process: subprocess.Popen[bytes]) -> str | None:
        """Take in what the process finds; what it said besides if it ended before it was done."""
        besides = ""
        most = 1000 + 6 * (len(self.cells) + len(self.left))
        for line in _lines(process, PATIENCE_SECONDS + self.seconds):
            most -= 1
            try:
                if line.startswith(b"{"):
                    message = json.loads(line)
                    if "done" in message:
                        break
                    self._take(message)
                else:
                    besides = (besides + line.decode("utf-8", "replace"))[:LONGEST_MESSAGE]
            except (ValueError, KeyError, TypeError, AttributeError):
                most = 0
            if most <= 0:
                raise AssignmentError(
                    f"The check of {self.path.name} can't be understood: code in the notebook "
                    "writes into files that are not its own."
                )
        return besides if self.left else None

    def _take(self, message: dict[str, Any]) -> None:
        if "problem" in message:
            raise AssignmentError(message["problem"])
        if "doing" in message:
            self.doing = message["doing"]
            self.progress(f"code cell {self.doing}" if type(self.doing) is int else str(self.doing))
        elif "trouble" in message:
            self.troubles[int(message["cell"])] = str(message["trouble"])
        else:
            data = message["card"]
            card = Card(**{**data, "tests": [Line(**test) for test in data["tests"]]})
            self.left.remove(card.name)
            self.cards[card.name] = card
            self.hung.update(message["hung"])

    def _ended(self, said: str, status: int | None) -> None:
        """The process ended, or has to, before it was done: take note of what it was doing."""
        found = re.search(r'File "<cell (\d+)>", line (\d+) in (\S+)', said)
        where = _line(self.cells, self.doing, int(found[1]), int(found[2])) if found else ""
        hung = "Timeout (" in said or status is None
        ending = f"; it was in {where}" if where else "."
        if type(self.doing) is int and self.doing not in self.skipped:
            self.skipped.append(self.doing)
            what = _finished(self.seconds) if hung else _how(status)
            self.troubles[self.doing] = f"Code cell {self.doing} {what}{ending}"
        elif self.doing in self.left:
            name = str(self.doing)
            if found and found[3] != name:
                where = f"{found[3]}, {where}"
            headline = f"Your {name} {_how(status)}{ending}"
            if hung:
                headline = did_not_return(f"Your {name}", self.seconds, where)
            most = self.assignment.exercise(name).points
            self.cards[name] = Card(
                "failed", headline, name=name, points=0.0, max_points=most, notes=[NOT_RUN]
            )
            self.left.remove(name)
            self.hung.add(name)
        else:
            raise AssignmentError(
                f"The check of {self.path.name} did not begin; does "
                '`python -c "import torch, pytest"` work here?'
            )


def _finished(seconds: float) -> str:
    return f"did not finish within {seconds:g} seconds"


def _how(status: int | None) -> str:
    """How a process ended, in words that follow the name of the cause."""
    if status is None or status >= 0:
        return "ended Python (remove calls such as exit() or os._exit())"
    if -status == signal.SIGKILL:
        return "was ended by the system, perhaps because it took too much memory"
    return f"made Python crash ({signal.Signals(-status).name})"


def _line(cells: Sequence[str], at: Any, cell: int, number: int) -> str:
    """A line of a code cell, to be shown to somebody who is told about cell or exercise `at`."""
    lines = cells[cell - 1].splitlines() if 0 < cell <= len(cells) else []
    text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    apart = f" of code cell {cell}" if type(at) is int and at != cell else ""
    return f"line {number}{apart}" + (f": {text}" if text else "")


def _start(folder: Path) -> subprocess.Popen[bytes]:
    # The course's own package first, the notebook's folder next, as in Jupyter.
    code = (
        f"import sys; sys.path[:0] = [{str(paths.ROOT)!r}, '']; "
        "from autograder.checking.notebook import _serve; _serve()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "agg", "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=os.name == "posix",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the notebook's process and what it started."""
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


def _lines(process: subprocess.Popen[bytes], patience: float) -> Iterator[bytes]:
    """What a process writes, line by line, until it ends or says nothing for too long."""
    lines: queue.Queue[bytes] = queue.Queue(100)
    output = process.stdout
    assert output is not None
    read = functools.partial(output.readline, LONGEST_MESSAGE)

    def listen() -> None:
        with output:
            for line in iter(read, b""):
                lines.put(line)
        lines.put(b"")

    threading.Thread(target=listen, daemon=True).start()
    heard = time.monotonic()
    while time.monotonic() - heard < patience:
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            if process.poll() is not None:
                _end(process)  # What it started may still hold the pipe.
                patience = min(patience, 1.0)
            continue
        if not line:
            return
        heard = time.monotonic()
        yield line


def read_cells(path: Path) -> list[str]:
    """The source of each code cell; "" for what is not graded, so that numbers stay.

    Raises:
        AssignmentError: there is no readable notebook at `path`.
    """
    sources = [source_of(cell) for cell in read_notebook(path) if cell.get("cell_type") == "code"]
    return ["" if is_ungraded(source) else source for source in sources]


def read_notebook(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook, as its file has them.

    Raises:
        AssignmentError: there is no readable notebook at `path`.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AssignmentError(f"There is no notebook at {path}; check the path.") from None
    except IsADirectoryError:
        raise AssignmentError(f"{path} is a folder; name the notebook in it.") from None
    except (OSError, ValueError, RecursionError):
        raise AssignmentError(
            f"{path.name} is not a readable notebook (broken JSON); open it in Jupyter and save it "
            "again, or start from a fresh copy."
        ) from None
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list):
        raise AssignmentError(
            f"{path.name} holds no cells; start from a fresh copy of the notebook."
        )
    return [cell for cell in cells if isinstance(cell, dict)]


def unit_of(path: Path, cells: Sequence[str]) -> str:
    """The unit that a notebook is about: what its first cells say, or its file's name."""
    known = paths.units()
    named = [name for source in cells for name in NAMED.findall(source)]
    found = [name for name in named if name in known]
    found += [unit for unit in known if path.stem.lower().startswith(unit)]
    if found:
        return found[0]
    for name in named:
        if name in paths.CHAPTERS:
            require_unit(name)  # A notebook of a whole chapter: that says what its units are.
    example = known[0] if known else "attention-scores"
    raise AssignmentError(f"{path.name} does not say which assignment it is; add --unit {example}.")


# In the notebook's process.


def _serve() -> NoReturn:
    """The other side of `check_notebook`: run the cells, judge, say what is found."""
    order = json.loads(sys.stdin.buffer.readline())
    # The notebook's own input is empty and its output dropped: it may print without end. It can't
    # reach the two pipes by closing or writing to the usual files.
    parent, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    faulthandler.enable(answers, all_threads=False)

    def say(**message: Any) -> None:
        data = b"\n" + json.dumps(message).encode() + b"\n"  # apart from whatever else is there
        while data:
            data = data[os.write(answers, data) :]

    try:
        _judge_cells(order, answers, say)
        say(done=True)
    except AssignmentError as error:
        say(problem=str(error))
    except Exception as error:  # Ours, not the student's: theirs are outcomes.
        say(problem=f"The check itself failed; please report this: {brief(error)}.")
    os._exit(0)  # Threads that the notebook has started need not be waited for.


def _end_with(parent: int) -> None:
    """End this process and what it started as soon as the one that started it has ended."""
    with contextlib.suppress(OSError):
        while os.read(parent, 1024):
            pass
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


class _LastLimit(TimeLimit):
    """A limit that ends the process if a call cannot be stopped, and first says where it is.

    Unlike a thread of Python's, the timer of `faulthandler` also runs while native code keeps all
    of Python waiting.
    """

    def __init__(self, namespace: dict[str, Any], *, seconds: float, answers: int) -> None:
        super().__init__(namespace, seconds)
        self._answers = answers

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value of `function(*arguments)`; see TimeLimit."""
        faulthandler.dump_traceback_later(
            self.seconds + GRACE_SECONDS, exit=True, file=self._answers
        )
        try:
            return super().call(function, *arguments)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _judge_cells(order: dict[str, Any], answers: int, say: Callable[..., None]) -> None:
    import autograder

    limit = functools.partial(_LastLimit, seconds=order["seconds"], answers=answers)
    # First of all, as it imports PyTorch: on a cold disk that takes longer than a cell may, and an
    # import that was stopped cannot be made up for.
    judge = Judge(order["unit"], limit)
    _give(paths.given(order["unit"]))
    # While the cells run their own checks say nothing: all exercises are judged at the end.
    silent: Any = lambda unit: lambda *_: None  # noqa: E731
    autograder.checks_for = silent
    namespace: dict[str, Any] = {"__name__": "__main__", "check": lambda *_: None}
    cells = order["cells"]
    troubles: dict[int, str] = {}
    for number in range(1, len(cells) + 1):
        if number not in order["skipped"]:
            say(doing=number)
            with limit(namespace) as limited:
                trouble = run_cell(cells, number, namespace, limited)
            if trouble:
                troubles[number] = trouble
                say(cell=number, trouble=trouble)
    hung = set(order["hung"])
    for name in order["exercises"]:
        say(doing=name)
        card = judge.card(name, namespace, hung)
        if name not in namespace:
            defines = re.compile(rf"^(?:class|def)\s+{re.escape(name)}\b", re.MULTILINE)
            for number, trouble in troubles.items():
                if defines.search(cells[number - 1]):
                    card = replace(card, headline=f"The cell of `{name}` did not run. {trouble}")
        say(card=asdict(card), hung=sorted(hung))


def _give(file: Path) -> None:
    """Let the notebook import the course's own given parts, where there are some.

    As in grading: beside the notebook there may be none, or another unit's.
    """
    if file.is_file():
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def without_magics(source: str) -> str:
    """A cell's source with an empty line for each that is IPython's or the shell's."""
    return "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n")
    )


def run_cell(
    cells: Sequence[str], number: int, namespace: dict[str, Any], limit: TimeLimit, name: str = ""
) -> str:
    """Execute a code cell, counted from 1, as the file `name`; a sentence if it fails."""
    source = without_magics(cells[number - 1])
    name = name or f"<cell {number}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    try:
        limit.call(exec, compile(source, name, "exec", dont_inherit=True), namespace)
    except NotImplementedError:
        pass  # A stub that is called in a cell: the exercise's own card says so.
    except SyntaxError as error:
        return f"Code cell {number}, line {error.lineno}: {error.msg}."
    except ImportError as error:
        if str(error).startswith(paths.GIVEN):
            return str(error)  # The cell says itself what to do.
        return _raised(error, number, name, lines)
    except TimeUp as late:
        found = late.code and re.fullmatch(r"<cell (\d+)>", late.code.co_filename)
        where = f"; it was in {_line(cells, number, int(found[1]), late.line)}" if found else "."
        return f"Code cell {number} {_finished(limit.seconds)}{where}"
    except (Exception, SystemExit) as error:
        return _raised(error, number, name, lines)
    return ""


def _raised(error: BaseException, number: int, file: str, lines: Sequence[str]) -> str:
    """What a cell raised, and in which of its lines."""
    line = _line_in(error, file)
    where = f", line {line}: {lines[line - 1].strip()}" if line else ""
    return f"Code cell {number}{where} raised {brief(error)}."


def _line_in(error: BaseException, file: str) -> int:
    """The last line of `file` on the way to the error."""
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line
