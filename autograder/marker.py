"""Marks notebooks: repairs one, runs its code once in the sandbox and asks the graders."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbformat import NotebookNode

from autograder import notebooks, paths, repair
from autograder.assignment import Assignment, load
from autograder.cells import cells_of
from autograder.collect import Submission
from autograder.repair import RepairedNotebook
from autograder.results import ExerciseResult, SubmissionResult

if TYPE_CHECKING:
    from autograder.runner import Graders
    from autograder.sandbox import Answer, Limits, Sandbox

MAX_PRINTED = 20_000
UNJUDGED = "could not judge"


def grader_hash(chapter: str) -> str:
    """What the marks depend on besides the submission: graders, reference, machinery, versions."""
    digest = hashlib.sha256()
    files = [
        paths.GRADERS / f"test_{chapter}.py",
        *sorted(set(paths.GRADERS.glob("*.py")) - set(paths.GRADERS.glob("test_*.py"))),
        paths.SOLUTIONS / f"{chapter}.py",
        paths.PACKAGE / "misconceptions" / f"{chapter}.py",
        paths.EXERCISES / chapter / "assignment.json",
        *sorted(paths.PACKAGE.glob("*.py")),
    ]
    for file in files:
        digest.update(file.name.encode())
        if file.is_file():
            digest.update(file.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("torch", "numpy", "pytest")]
    digest.update(repr((versions, sys.version_info[:2], platform.machine())).encode())
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
        chapter: the assignment.
        seed: of the inputs that the graders draw.
        unsafe: run student code without a sandbox.
        limits: what one submission may use.
        cache: a folder for results of code that was graded before; None for none.
        hide: folders that student code must not see.

    Sandbox and graders start with the first notebook that has to be run. `mark` then raises
    SandboxUnavailable when there is no sandbox and `unsafe` is not set.
    """

    def __init__(
        self,
        chapter: str,
        *,
        seed: int = 0,
        unsafe: bool = False,
        limits: Limits | None = None,
        cache: Path | None = None,
        hide: Iterable[Path] = (),
        graders: Graders | None = None,
    ) -> None:
        self.assignment = graders.assignment if graders is not None else load(chapter)
        self.chapter = chapter
        self.seed = seed
        self.unsafe = unsafe
        self.limits = limits
        self.cache = cache
        self.hide = tuple(hide)
        self.grader = grader_hash(chapter)
        self._graders = graders
        self._sandbox: Sandbox | None = None

    def __enter__(self) -> Marker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Import PyTorch, collect the graders, start the sandbox."""
        from autograder.runner import Graders
        from autograder.sandbox import Sandbox

        if self._sandbox is None:
            sandbox = Sandbox(self.limits, unsafe=self.unsafe, hide=self.hide)
            sandbox.start()
            self._sandbox = sandbox
        if self._graders is None:
            self._graders = Graders(self.chapter)

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def mark(self, student: str, mended: RepairedNotebook) -> SubmissionResult:
        """The result of one repaired notebook. Whatever the student's code does, there is one."""
        began = time.monotonic()
        if mended.status == "unreadable":
            reason = f"Nothing could be graded: {mended.reason}."
            result = empty_result(self.assignment, student, "unreadable", reason)
        else:
            result = self._cached(mended.nb) or self._run(mended.nb)
            result.student = student
            if mended.repairs and result.status == "graded":
                result.status = "repaired"
        result.repairs = [*mended.repairs, *result.repairs]
        result.seconds = round(time.monotonic() - began, 3)
        return result

    def _key(self, nb: NotebookNode) -> str:
        cells = [(cell.id, cell.source) for cell in cells_of(nb)]
        state = [cells, self.seed, self.grader, asdict(self.limits) if self.limits else None]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()

    def _cached(self, nb: NotebookNode) -> SubmissionResult | None:
        if self.cache is None:
            return None
        try:
            text = (self.cache / f"{self._key(nb)}.json").read_text(encoding="utf-8")
            return SubmissionResult.from_dict(json.loads(text))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _run(self, nb: NotebookNode) -> SubmissionResult:
        from autograder.innocent import innocent

        self.start()
        assert self._sandbox is not None
        seen: set[str] = set()
        cells = cells_of(nb)
        forbids = [name for exercise in self.assignment.exercises for name in exercise.forbids]
        watched = not innocent([cell.source for cell in cells], forbids)
        with self._sandbox.session(cells, self.limits, watched=watched) as session:

            def ask(*question: Any) -> Answer:
                answer = session.ask(*question)
                seen.add(answer.kind)
                return answer

            reports = session.load()
            seen |= {report.status for report in reports}
            sources = [cell.source for cell in cells]
            exercises, notes = self._judge(ask, sources)
        result = SubmissionResult(
            "",
            status=(
                "timed_out"
                if "timeout" in seen
                else "crashed"
                if seen & {"crash", "memory"}
                else "graded"
            ),
            score=round(sum(exercise.points for exercise in exercises.values()), 6),
            max_score=self.assignment.points,
            exercises=exercises,
            notes=notes,
        )
        for report in reports:
            said = report.printed[:MAX_PRINTED]
            if report.error and report.status != "ok":
                said = f"{said.rstrip()}\n{report.error}".lstrip()
            if said.strip():
                # Printed text can hold what no file can: lone surrogates.
                result.printed[report.cell.id] = said.encode("utf-8", "replace").decode("utf-8")
        # What depends on the machine's load or memory is tried afresh another time.
        if self.cache is not None and result.status == "graded" and not notes:
            self.cache.mkdir(parents=True, exist_ok=True)
            path = self.cache / f"{self._key(nb)}.json"
            scratch = path.with_suffix(f".{os.getpid()}.part")
            scratch.write_text(json.dumps(result.to_dict()), encoding="utf-8")
            scratch.replace(path)
        return result

    def _judge(
        self, ask: Callable[..., Answer], sources: Sequence[str]
    ) -> tuple[dict[str, ExerciseResult], list[str]]:
        """All exercises; where a grader itself fails, all the others."""
        from autograder.sandbox import SandboxUnavailable, request_frame

        assert self._graders is not None

        def execute(request: dict[str, Any]) -> dict[str, Any]:
            return ask(request, request_frame(request)).outcome

        try:
            return self._graders.run(execute, ask=ask, seed=self.seed, sources=sources), []
        except (KeyboardInterrupt, SandboxUnavailable):
            raise
        except Exception:
            exercises, notes = {}, []
            for exercise in self.assignment.exercises:
                name = exercise.name
                try:
                    exercises |= self._graders.run(
                        execute, ask=ask, seed=self.seed, exercises=[name], sources=sources
                    )
                except (KeyboardInterrupt, SandboxUnavailable):
                    raise
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                    notes.append(f"{UNJUDGED} {name}: the grader failed ({reason})")
                    message = "The grader failed on this; your instructor has been told."
                    exercises[name] = ExerciseResult(name, 0.0, exercise.points, message=message)
            return exercises, notes


@functools.cache
def shared_marker(chapter: str, *, seed: int, unsafe: bool) -> Marker:
    """The marker of this process, for nbgrader's own autograde; ends with the process."""
    marker = Marker(chapter, seed=seed, unsafe=unsafe)
    atexit.register(marker.close)
    return marker


@dataclass
class Graded:
    """A result and the notebook that nbgrader will keep."""

    result: SubmissionResult
    notebook: str


def grade_one(
    marker: Marker, submission: Submission, release: NotebookNode, data: bytes | None = None
) -> Graded:
    """Repair and mark one submission. Raises only SandboxUnavailable.

    `data` is what its file holds, where the file itself is on another machine.
    """
    from autograder.sandbox import SandboxUnavailable

    assignment = marker.assignment
    nb = repair.blank(release)
    try:
        if submission.reason:
            mended = RepairedNotebook(nb, [], "unreadable", submission.reason)
        elif submission.path is None and data is None:
            mended = None
        else:
            if data is not None:
                mended = repair.repair(data, release)
            else:
                mended = repair.repair_file(submission.path, assignment, release)
            mended.repairs[:0] = submission.repairs
        if mended is None:
            result = empty_result(
                assignment, submission.student, "missing", "No notebook was handed in."
            )
        else:
            nb = mended.nb
            result = marker.mark(submission.student, mended)
    except SandboxUnavailable:
        raise
    except Exception as error:  # No submission may end the batch.
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        result = empty_result(
            assignment, submission.student, "crashed", "This submission could not be graded."
        )
        result.notes.append(f"{UNJUDGED} the submission ({reason})")
    result.notes[:0] = submission.notes
    own = {cell.get("id") for cell in release.cells}
    nb.metadata["transformers_by_hand"] = {
        "own": [cell.id for cell in nb.cells if cell.id not in own],
        "reason": mended.reason if mended is not None else "",
    }
    return Graded(result, notebooks.writes(nb))
