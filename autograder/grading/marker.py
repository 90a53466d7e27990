"""Marks notebooks: repairs one, runs its code once in the sandbox and asks the graders."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from nbformat import NotebookNode

from autograder.common import paths
from autograder.common.cells import Cell, cells_of
from autograder.grading import earlier_parts, repair
from autograder.grading.collect import Submission
from autograder.grading.repair import RepairedNotebook
from autograder.judging.results import FOR_A_LOOK, ExerciseResult, SubmissionResult
from autograder.sandbox.launcher import Sandbox
from autograder.sandbox.limits import Limits, SandboxUnavailable
from autograder.sandbox.meter import Meter
from autograder.units.assignment import Assignment, load
from autograder.units.dependencies import dependencies
from autograder.units.variants import reference_answers

if TYPE_CHECKING:
    from autograder.judging.runner import Graders
    from autograder.sandbox.session import Answer, Session

MAX_PRINTED = 20_000  # characters of one cell
MAX_PRINTED_ALL = 400_000  # of all the cells of a notebook, which may be thousands
LEFT_OUT = "[not shown: this notebook prints more than a page can hold]"
UNJUDGED = "could not judge"
# With these a program can change itself, or compute elsewhere, so that what is refused to an
# exercise could be called all the same. Whoever names them is shown to the instructor, not judged.
WORTH_A_LOOK = re.compile(
    r"\b(?:gc|ctypes|sys\.modules|torch\.library|torch\._C|forbidden_calls|make_fx"
    r"|threading|concurrent\.futures|multiprocessing|subprocess|os\.fork)\b"
)
FAILED = "the grading failed; your instructor has been told"
RUNS_ON = ("torch", "numpy", "pytest", "IPython")


def versions() -> dict[str, str]:
    """What marks depend on besides the course's own files, in words."""
    python = ".".join(map(str, sys.version_info[:2]))
    found = {name: importlib.metadata.version(name) for name in RUNS_ON}
    return {"Python": python, "processor": platform.machine(), **found}


def grader_hash(unit: str, root: Path = paths.ROOT) -> str:
    """What the marks depend on besides the submission and the seed.

    Graders, reference, misconceptions, the machinery of marking (see `dependencies`),
    and the versions of what they run on. Not how marks are shown or kept.
    """
    digest = hashlib.sha256()
    for file in dependencies(unit, root):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    known = versions()
    runs_on = [known[name] for name in RUNS_ON]
    digest.update(repr((runs_on, sys.version_info[:2], known["processor"])).encode())
    return digest.hexdigest()[:16]


def empty_result(
    assignment: Assignment, student: str, status: str, reason: str
) -> SubmissionResult:
    """A result of 0 points with one reason for everything."""
    exercises = {
        exercise.name: ExerciseResult(exercise.name, 0.0, exercise.points, message=reason)
        for exercise in assignment.exercises
    }
    return SubmissionResult(student, status, 0.0, assignment.points, exercises=exercises)


class Marker:
    """Grades notebooks one after the other, with one sandbox and one set of graders.

    Args:
        unit: the assignment.
        seed: of the inputs that the graders draw.
        unsafe: run student code without a sandbox.
        limits: what one submission may use.
        hide: folders that student code must not see.
        graders: those of the unit, where they have been collected already.
        sandbox: one to use instead of starting one; it is closed with the marker all the same.

    Sandbox and graders start with the first notebook that has to be run. `mark` then raises
    SandboxUnavailable when there is no sandbox and `unsafe` is not set.
    """

    def __init__(
        self,
        unit: str,
        *,
        seed: int = 0,
        unsafe: bool = False,
        limits: Limits | None = None,
        hide: Iterable[Path] = (),
        graders: Graders | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.meter = Meter()
        self.assignment = graders.assignment if graders is not None else load(unit)
        self.unit = unit
        self.seed = seed
        self.unsafe = unsafe
        self.limits = limits or Limits()
        self.hide = tuple(hide)
        self._graders = graders
        self._sandbox = sandbox

    def __enter__(self) -> Marker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the sandbox and, while it imports PyTorch, do so here and collect the graders."""
        if self._sandbox is not None and self._graders is not None:
            return
        with ThreadPoolExecutor(1) as beside:
            sandbox = self._sandbox or Sandbox(
                self.limits, unsafe=self.unsafe, hide=self.hide, given=paths.given(self.unit)
            )
            started = beside.submit(sandbox.start)
            sandbox.launched.wait()  # Two busy threads would keep it waiting.
            if self._graders is None:
                from autograder.judging.runner import Graders

                self._graders = Graders(self.unit)
            self._graders.foresee(self.seed)
            started.result()
            self._sandbox = sandbox

    def begin(self) -> str:
        """Start, and mark the reference's own answers, which must earn everything here.

        What the reference answers, most right answers answer too: it is known from here on.

        Returns:
            Why this machine cannot be trusted to grade; empty if it can.
        """
        self.start()
        notebook = repair.released(self.unit)
        answers = reference_answers(self.unit)
        for cell in notebook.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            cell.source = answers.get(name, cell.source)
        result = self._run(notebook)
        lost = [exercise for exercise in result.exercises.values() if not exercise.passed]
        if not lost or result.status != "graded":  # A busy machine is no unfit one.
            return ""
        return (
            f"The reference's own {lost[0].name} does not pass on this machine "
            f"({lost[0].message}), so that nobody was graded; `python -m autograder doctor` says "
            "what it lacks."
        )

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def mark(
        self,
        student: str,
        mended: RepairedNotebook,
        tell: Callable[[ExerciseResult], None] = lambda result: None,
    ) -> SubmissionResult:
        """The result of one repaired notebook. Whatever the student's code does, there is one.

        `tell` is told of every exercise as it is judged.
        """
        if mended.status == "unreadable":
            reason = f"Nothing could be graded: {mended.reason}."
            result = empty_result(self.assignment, student, "unreadable", reason)
        else:
            result = self._run(mended.nb, tell)
            result.student = student
            if mended.repairs and result.status == "graded":
                result.status = "repaired"
        result.repairs = [*mended.repairs, *result.repairs]
        result.seconds = round(self.meter.seconds, 3)
        return result

    def _run(
        self, nb: NotebookNode, tell: Callable[[ExerciseResult], None] = lambda result: None
    ) -> SubmissionResult:
        from autograder.sandbox.session import Session

        self.start()
        assert self._sandbox is not None
        seen: set[str] = set()
        cells = cells_of(nb)
        with Session(self._sandbox, cells, self.limits, meter=self.meter) as session:
            reports = session.load()
            seen |= {report.status for report in reports}
            exercises, notes = self._judge(session, seen, tell)
        if not session.used_up:
            notes += self._judge_with_reference(exercises, cells, tell)
        else:
            notes.append(f"stopped: {session.used_up}")
        named = dict.fromkeys(name for cell in cells for name in WORTH_A_LOOK.findall(cell.source))
        if named and any(exercise.forbids for exercise in self.assignment.exercises):
            notes.append(
                f"{FOR_A_LOOK}: its code names {', '.join(named)}, by which it could call what "
                "an exercise forbids"
            )
        result = SubmissionResult(
            "",
            status=(
                "timed_out"
                if seen & {"timeout", "memory"}
                else "crashed"
                if "crash" in seen
                else "graded"
            ),
            score=round(sum(exercise.points for exercise in exercises.values()), 6),
            max_score=self.assignment.points,
            exercises=exercises,
            notes=notes,
        )
        room = MAX_PRINTED_ALL
        for report in reports:
            said = report.printed[:MAX_PRINTED]
            if report.error and report.status != "ok":
                said = f"{said.rstrip()}\n{report.error}".lstrip()
            if said.strip() and room <= 0:
                result.printed[report.cell.id] = LEFT_OUT
                break
            room -= len(said)
            if said.strip():
                # Printed text can hold what no file can: lone surrogates.
                result.printed[report.cell.id] = said.encode("utf-8", "replace").decode("utf-8")
        return result

    def _judge_with_reference(
        self,
        exercises: dict[str, ExerciseResult],
        cells: list[Cell],
        tell: Callable[[ExerciseResult], None],
    ) -> list[str]:
        """Judge what failed again, with the course's earlier exercises; see `earlier_parts`."""
        from autograder.sandbox.session import Session

        assert self._sandbox is not None
        notes: list[str] = []
        for one in earlier_parts.rounds(self.assignment, exercises, cells):
            both = earlier_parts.with_reference(self.unit, cells, one.replaced)
            with Session(self._sandbox, both, self.limits, meter=self.meter) as session:
                again, faults = self._judge(session, set(), exercises=one.exercises)
            if faults or session.used_up:
                continue
            notes += earlier_parts.credit(self.assignment, exercises, again, one, cells)
            for name in one.exercises:
                tell(exercises[name])
        return notes

    def _judge(
        self,
        session: Session,
        seen: set[str],
        tell: Callable[[ExerciseResult], None] = lambda result: None,
        exercises: list[str] | None = None,
    ) -> tuple[dict[str, ExerciseResult], list[str]]:
        """All exercises, or those named; where a grader itself fails, all the others.

        `seen` takes the kinds of outcomes.
        """
        from autograder.sandbox.session import request_frame

        assert self._graders is not None

        def ask(*question: Any) -> Answer:
            answer = session.ask(*question)
            seen.add(answer.kind)
            return answer

        def execute(request: dict[str, Any]) -> dict[str, Any]:
            return ask(request, request_frame(request)).outcome

        run = functools.partial(
            self._graders.run,
            execute,
            ask=ask,
            ahead=session.ahead,
            seed=self.seed,
            refusing=session.refusing,
            tell=tell,
        )
        try:
            return run(exercises=exercises), []
        except (KeyboardInterrupt, SandboxUnavailable):
            raise
        except Exception:
            results: dict[str, ExerciseResult] = {}
            notes: list[str] = []
            for exercise in self.assignment.exercises:
                name = exercise.name
                if exercises is not None and name not in exercises:
                    continue
                try:
                    results |= run(exercises=[name])
                except (KeyboardInterrupt, SandboxUnavailable):
                    raise
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                    notes.append(f"{UNJUDGED} {name}: the grader failed ({reason})")
                    message = "The grader failed on this; your instructor has been told."
                    results[name] = ExerciseResult(name, 0.0, exercise.points, message=message)
            return results, notes


@dataclass
class Graded:
    """A result and the notebook that nbgrader will keep."""

    result: SubmissionResult
    notebook: str


@dataclass
class Task:
    """One submission to mark; `data` is what its file holds, if that is on another machine."""

    submission: Submission
    data: bytes | None = None


@dataclass
class Progress:
    """What is certain of a submission while it is marked.

    It outlives the process that marks: `result` makes of it what the submission has earned.
    """

    repairs: list[str] = field(default_factory=list)
    notebook: str = ""
    exercises: dict[str, ExerciseResult] = field(default_factory=dict)

    def result(
        self, assignment: Assignment, student: str, status: str, why: str, release: NotebookNode
    ) -> Graded:
        """The points that were earned until the marking was ended, and why it was."""
        reason = f"Not judged: {why}."
        result = empty_result(assignment, student, status, reason)
        result.exercises |= self.exercises
        result.score = round(sum(one.points for one in result.exercises.values()), 6)
        result.repairs = self.repairs
        return Graded(result, self.notebook or _kept(None, release))


# Told what has become certain: which fields of `Progress`, or of which exercise.
Tell = Callable[[str, Any], None]


def _nobody_listens(what: str, value: Any) -> None:
    pass


def grade_one(
    marker: Marker, task: Task, release: NotebookNode, tell: Tell = _nobody_listens
) -> Graded:
    """Repair and mark one submission. Raises only SandboxUnavailable.

    `tell` is told of everything that is certain, such as the points of an exercise, as
    ("exercise", its result), ("repairs", ...) or ("notebook", ...).
    """
    marker.meter.begin()
    assignment, submission = marker.assignment, task.submission
    earned = Progress()
    mended = None

    def judged(result: ExerciseResult) -> None:
        earned.exercises[result.name] = result
        tell("exercise", result)

    try:
        mended = _mended(task, assignment, release)
        earned.repairs = mended.repairs if mended is not None else []
        tell("repairs", earned.repairs)
        earned.notebook = _kept(mended, release)
        tell("notebook", earned.notebook)
        if mended is None:
            reason = "No notebook was handed in."
            result = empty_result(assignment, submission.student, "missing", reason)
        else:
            result = marker.mark(submission.student, mended, judged)
    except SandboxUnavailable:
        raise
    except Exception as error:  # No submission may end the batch.
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        graded = earned.result(assignment, submission.student, "crashed", FAILED, release)
        graded.result.notes = [*submission.notes, f"{UNJUDGED} the submission ({reason})"]
        return graded
    result.notes[:0] = submission.notes
    return Graded(result, earned.notebook)


def ungraded(task: Task, unit: str, release: NotebookNode, reason: str) -> Graded:
    """What is kept of a submission of which nothing became known: no points."""
    student = task.submission.student
    graded = Progress().result(load(unit), student, "crashed", FAILED, release)
    graded.result.notes = [*task.submission.notes, f"{UNJUDGED} the submission ({reason})"]
    return graded


def _mended(task: Task, assignment: Assignment, release: NotebookNode) -> RepairedNotebook | None:
    """The repaired notebook of a submission; None if nothing was handed in."""
    submission = task.submission
    if submission.reason:
        return RepairedNotebook(repair.blank(release), [], "unreadable", submission.reason)
    if task.data is not None:
        mended = repair.repair(task.data, release)
    elif submission.path is not None:
        mended = repair.repair_file(submission.path, assignment, release)
    else:
        return None
    mended.repairs[:0] = submission.repairs
    return mended


def _kept(mended: RepairedNotebook | None, release: NotebookNode) -> str:
    """The notebook that nbgrader will keep, as text."""
    nb = repair.blank(release) if mended is None else mended.nb
    own = {cell.get("id") for cell in release.cells}
    nb.metadata["transformers_by_hand"] = {
        "own": [cell.id for cell in nb.cells if cell.id not in own],
        "reason": mended.reason if mended is not None else "",
    }
    return nbformat.writes(nb, version=4)
