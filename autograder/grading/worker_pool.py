"""Hands out submissions to worker processes, each of which can be ended and replaced.

    command ── submissions ──▶ pool process ── fork ──▶ worker, worker, ...
            ◀── results ───────┘                            └── sandbox, shared

The pool process (`pool_process.py`) imports PyTorch and the reference, collects the graders, starts
the sandbox and marks the reference's own answers: they must earn everything, or nobody is graded.
Its workers are forked from it and begin with all of that in their memory. It takes seconds until it
is ready, so it may be started before it is known what there is to mark: this module, which is what
the command sees of it, imports little.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.common.errors import ClassroomError
from autograder.common.paths import ROOT

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from autograder.grading.collect import Submission
    from autograder.grading.marker import Graded, Task
    from autograder.sandbox.limits import Limits

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from autograder.grading import pool_process; pool_process.main(int(sys.argv[2]), sys.argv[3])"
)
# PyTorch works without threads of its own: they would be missing in a fork. A fork of a process in
# which OpenMP has had several threads waits for them for ever, and one whose autograd knows of a
# GPU refuses to work. Nothing is graded on one.
WITHOUT_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
AHEAD = 2  # submissions per worker that are handed out before they are needed


class WorkerPool:
    """A process that becomes ready to mark, and marks what it is given in workers of its own.

    Args:
        options: arguments of `Marker`; without a seed it starts all the same, and goes on when it
            is told one by `begin`.
        jobs: how many submissions to mark at a time.
    """

    def __init__(self, options: dict[str, Any], jobs: int) -> None:
        self.jobs = jobs
        self.options = dict(options)
        self._given = 0
        self._start()
        if "seed" in options:
            self.begin(options["seed"], options.get("limits"))

    def _start(self) -> None:
        self._released = self._closed = False
        # Temporary files of the pool and of its sandbox; if we are killed, it removes them.
        self._scratch = Path(tempfile.mkdtemp(prefix="autograder-pool-"))
        self._scratch.chmod(0o711)  # Student code that runs as another user finds its files in it.
        self._line, theirs = Pipe()
        with theirs:
            arguments = [str(ROOT), str(theirs.fileno()), str(self._scratch)]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **WITHOUT_THREADS, "TMPDIR": str(self._scratch)},
                start_new_session=True,  # Ctrl-C is for the command, which then ends the pool
            )
        later = ("seed", "limits")
        how = {name: value for name, value in self.options.items() if name not in later}
        self._send((how, self.jobs))

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, seed: int, limits: Limits | None) -> None:
        """Tell it the seed of the inputs, with which it tries the reference, and the limits."""
        self.options |= {"seed": seed, "limits": limits}
        self._send((seed, limits))

    def mark(
        self, tasks: Iterable[Task], release: NotebookNode
    ) -> Iterator[tuple[Submission, Graded]]:
        """Each submission with its result, as they are finished.

        A pool process that dies is replaced; nobody is lost with it.

        Raises:
            SandboxUnavailable: there is no sandbox, and the options do not say to do without.
            ClassroomError: the reference does not earn full marks on this machine.
            EOFError, OSError: it was closed meanwhile.
        """
        waiting = iter(tasks)
        left: dict[int, Task] = {}
        died = False
        while True:
            while len(left) < (1 + AHEAD) * self.jobs and (task := next(waiting, None)):
                self._given += 1
                left[self._given] = task
                self._hand_out(self._given, task, release)
            if not left:
                return
            try:
                number, graded = self._next()
            except (EOFError, OSError):
                if self._closed:  # by another thread: nobody wants these any more
                    raise
                # Another one that dies before anybody has a mark would fare no better: these are
                # told, and tried again another time.
                if died:
                    for task in left.values():
                        yield task.submission, self._lost(task, release)
                    left.clear()
                    died = False
                else:
                    self._replace()
                    for number, task in left.items():
                        self._hand_out(number, task, release)
                    died = True
                continue
            died = False
            yield left.pop(number).submission, graded

    def _hand_out(self, number: int, task: Task, release: NotebookNode) -> None:
        if not self._released:
            import nbformat

            self._send(("release", nbformat.writes(release)))
            self._released = True
        self._send(("mark", number, task))

    def _next(self) -> tuple[int, Graded]:
        """The next submission that is finished."""
        while True:
            message = self._line.recv()
            if message[0] == "unavailable":
                from autograder.sandbox.limits import SandboxUnavailable

                raise SandboxUnavailable(message[1])
            if message[0] == "unfit":
                raise ClassroomError(message[1])
            if message[0] == "graded":
                return message[1], message[2]

    def _lost(self, task: Task, release: NotebookNode) -> Graded:
        from autograder.grading.marker import ungraded

        return ungraded(task, self.options["unit"], release, "the grading process ended")

    def _replace(self) -> None:
        self.close()
        self._start()
        self.begin(self.options["seed"], self.options["limits"])

    def close(self) -> None:
        """End the pool process, its workers and its sandbox, whatever they are doing."""
        if self._closed:
            return
        self._closed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._line.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # It may have ended, and said why before.
            self._line.send(message)


def grade_all(
    submissions: Sequence[Submission],
    options: dict[str, Any],
    release: NotebookNode,
    jobs: int,
    pool: WorkerPool | None = None,
) -> Iterator[tuple[Submission, Graded]]:
    """Each submission with its result, as they are finished.

    Args:
        submissions: whose notebooks to mark.
        options: arguments of `Marker`.
        release: the notebook that was handed out.
        jobs: how many submissions to mark at a time.
        pool: one that was started for them; without, another is started if they need one.

    Raises:
        SandboxUnavailable: there is no sandbox, and the options do not say to do without.
        ClassroomError: the reference does not earn full marks on this machine.
    """
    from autograder.grading.marker import Marker, Task, grade_one

    with Marker(options["unit"]) as marker:  # Nothing of it starts: there is nothing to run.
        for submission in submissions:
            if not submission.runnable:
                yield submission, grade_one(marker, Task(submission), release)
    tasks = [Task(submission) for submission in submissions if submission.runnable]
    if tasks:
        with closing(pool or WorkerPool(options, min(jobs, len(tasks)))) as pool:
            yield from pool.mark(tasks, release)


def marking_options(unit: str, submitted: Path, course: Path, *, unsafe: bool) -> dict[str, Any]:
    """How a class is marked: arguments of `Marker`, without seed and limits."""
    hide = submitted.resolve(), course.resolve()
    return {"unit": unit, "unsafe": unsafe, "hide": hide}


def usable_cores() -> int:
    """Processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1
