"""The process that marks a class, as the one that grades the class sees it; see `crew`.

It takes seconds until a foreman is ready, most of them for two imports of PyTorch: its own and
that of the sandbox. So it is called before anything else is known than how to mark, and this
module imports little. Who finds that there is nothing to mark dismisses it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.assignment import AssignmentError, ClassroomError
from autograder.paths import ROOT

if TYPE_CHECKING:
    from autograder.collect import Submission
    from autograder.walls import Limits, Sandbox

PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from autograder import foreman; foreman.main(*map(int, sys.argv[2:]))"
)
# PyTorch works without threads of its own: they would be missing in a fork. A fork of a process in
# which OpenMP has had several threads waits for them for ever, and one whose autograd knows of a
# GPU refuses to work. Nothing is graded on one.
WITHOUT_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
PR_SET_PDEATHSIG = 1
BUSY_CORES = 2  # while a foreman gets ready


class Foreman:
    """A process that becomes ready to mark, and marks what it is given.

    Args:
        options: arguments of `Marker`; without a seed it starts all the same, and goes on when it
            is told one.
        jobs: how many submissions to mark at a time.
    """

    def __init__(self, options: dict[str, Any], jobs: int) -> None:
        self.jobs = jobs
        self._how = {name: value for name, value in options.items() if name != "seed"}
        self._finished = False
        self._told: list[tuple[Any, ...]] = []
        # What it leaves behind when it is ended goes with this folder.
        self._scratch = tempfile.TemporaryDirectory(
            prefix="autograder-foreman-", ignore_cleanup_errors=True
        )
        self._line, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-c", PROGRAM, str(ROOT)]
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **WITHOUT_THREADS, "TMPDIR": self._scratch.name},
            )
        self._send((self._how, jobs))
        if "seed" in options:
            self.begin(options["seed"])

    def __enter__(self) -> Foreman:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def suits(self, options: dict[str, Any], jobs: int) -> bool:
        """Whether it was called with these options, whatever the seed, and is still there."""
        how = {**self._how, "seed": options["seed"]}
        return self.jobs == jobs and how == options and not self._line.closed

    def begin(self, seed: int) -> None:
        """Tell it the seed of the inputs, with which it tries the reference."""
        self._send(seed)

    def leave_room(self) -> None:
        """Wait until the sandbox has PyTorch, where it and the foreman take the only two cores.

        What is put off can be done while the foreman marks the reference, which keeps one core
        busy. If nothing can start, this returns at once, and `mark` says why.
        """
        if usable_cores() <= BUSY_CORES:
            with suppress(EOFError, OSError):
                self._told.append(self._line.recv())

    def mark(self, submissions: dict[int, Submission], release: str) -> Iterator[tuple[Any, ...]]:
        """What it tells of each numbered submission, until there is no more to tell.

        Raises:
            SandboxUnavailable: there is no sandbox, and the options do not say to do without.
            ClassroomError: the reference does not earn full marks on this machine.
        """
        self._send((submissions, release))
        with suppress(EOFError, OSError):  # It may die at any time.
            while True:
                message = self._told.pop(0) if self._told else self._line.recv()
                if message[0] == "unavailable":
                    from autograder.walls import SandboxUnavailable

                    raise SandboxUnavailable(message[2])
                if message[0] == "unfit":
                    raise ClassroomError(message[2])
                if message[0] == "done":
                    self._finished = True
                    return
                if message[0] != "started":
                    yield message

    def dismiss(self) -> None:
        """End it: at once if it has not finished."""
        self._line.close()
        if not self._finished:
            self._process.terminate()
        self._process.wait()
        self._scratch.cleanup()

    def _send(self, message: Any) -> None:
        with suppress(OSError):  # It may have ended, and said why before.
            self._line.send(message)


def marking_options(
    chapter: str, submitted: Path, course: Path, *, unsafe: bool, limits: Limits | None = None
) -> dict[str, Any]:
    """How a class is marked: arguments of `Marker`, without the seed."""
    hide = submitted.resolve(), course.resolve()
    return {"chapter": chapter, "unsafe": unsafe, "limits": limits, "hide": hide}


@contextmanager
def ahead(
    chapter: str, submitted: Path, course: Path, jobs: int, *, unsafe: bool
) -> Iterator[Foreman | None]:
    """A foreman for a class of which nothing is known yet; None where one is of no use."""
    if can_lead(jobs):
        how = marking_options(chapter, submitted, course, unsafe=unsafe)
        with Foreman(how, jobs) as foreman:
            yield foreman
    else:
        yield None


def can_lead(jobs: int) -> bool:
    """Whether a foreman is of use here: elsewhere PyTorch does not survive a fork."""
    return jobs > 1 and sys.platform.startswith("linux")


def usable_cores() -> int:
    """Processor cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that started it ends."""
    # Ctrl-C is for the process that grades the class; the others end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # It has ended already.


def main(descriptor: int, parent: int) -> None:
    """Be the foreman: start the sandbox first, and import the rest while it imports its own."""
    end_with_parent(parent)
    gc.disable()  # until all is imported: next to nothing of it becomes unreachable
    with Connection(descriptor) as line, suppress(EOFError, OSError):  # Nobody listens any more.
        options, jobs = line.recv()
        from autograder.walls import Sandbox

        sandbox = Sandbox(
            options.get("limits"), unsafe=options.get("unsafe", False), hide=options.get("hide", ())
        )
        with ThreadPoolExecutor(1) as beside:
            beside.submit(_start, sandbox, line)
            sandbox.launched.wait()  # Two busy threads would keep it waiting.
            from autograder import crew, runner  # noqa: F401
            from autograder.marker import Marker
            from autograder.walls import SandboxUnavailable

            try:
                marker = Marker(**options, sandbox=sandbox)
            except AssignmentError:  # Whoever grades the class finds so too, and says it.
                return
            marker.seed = line.recv()
            with suppress(SandboxUnavailable):  # `lead` tells.
                marker.start()
        crew.lead(line, marker, jobs)


def _start(sandbox: Sandbox, line: Connection) -> None:
    from autograder.walls import SandboxUnavailable

    with suppress(SandboxUnavailable):  # The marker, too, waits for it, and says why.
        sandbox.start()
        line.send(("started", 0, None, ""))
