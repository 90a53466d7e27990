"""The process whose workers mark a class: it hands out, holds each to its bounds, and replaces it.

A worker marks one submission at a time and tells what has become certain. One that costs more time
or memory than a submission may, or that dies, is ended and replaced by another, and the others go
on without noticing. What its submission had earned until then stays.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.common import paths
from autograder.common.errors import AssignmentError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from nbformat import NotebookNode

    from autograder.grading.marker import Graded, Marker, Progress, Task
    from autograder.sandbox.launcher import Sandbox

PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 0.1  # between two looks at what a submission costs
MOST_STRETCH = 10.0  # a worker that neither works nor answers is waited for as many times its time
ALLOWED_DEATHS = 2  # of workers with the same submission
MOST_KEPT = 300 << 20  # bytes by which a worker may have grown before it is replaced


def main(descriptor: int, scratch: str) -> None:
    """Be the pool process: start the sandbox first, and import the rest while it imports its own.

    It ends with the command that started it, however that ended, and leaves nothing behind.

    Args:
        descriptor: of the line to the command.
        scratch: the folder for temporary files, which goes with this process.
    """
    # Whoever wants it to end closes the line, or kills it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Connection(descriptor) as line, suppress(EOFError, OSError):  # Nobody listens any more
            _serve(line)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _serve(line: Connection) -> None:
    options, jobs = line.recv()
    from autograder.sandbox.launcher import Sandbox
    from autograder.sandbox.limits import SandboxUnavailable

    sandbox = Sandbox(
        unsafe=options.get("unsafe", False),
        hide=options.get("hide", ()),
        given=paths.given(options["unit"]),
        apart=options.pop("apart", False),
    )
    try:
        with ThreadPoolExecutor(1) as beside:
            beside.submit(_start, sandbox)
            sandbox.launched.wait()  # Two busy threads would keep it waiting.
            from autograder.grading.marker import Marker
            from autograder.judging import runner  # noqa: F401

            try:
                marker = Marker(**options, sandbox=sandbox)
            except AssignmentError:  # Whoever grades the class finds so too, and says it.
                return
            marker.seed, limits = line.recv()
            marker.limits = limits or marker.limits
            marker.start()
        import torch

        torch.set_num_threads(1)  # It may have been imported before.
        complaint = marker.begin()
        if complaint:
            line.send(("unfit", complaint))
            return
        _Pool(line, marker, jobs).run()
    except SandboxUnavailable as error:
        line.send(("unavailable", str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # The command has ended.
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        line.send(("unavailable", f"the process that marks cannot start or go on ({reason})"))
    finally:
        sandbox.close()


def _start(sandbox: Sandbox) -> None:
    from autograder.sandbox.limits import SandboxUnavailable

    with suppress(SandboxUnavailable):  # The marker, too, waits for it, and says why.
        sandbox.start()


# ---------------------------------------------------------------------------------------------
# Handing out


class _Worker:
    """One worker as the pool process sees it.

    Args:
        marker: what it marks with; it inherits it.
        release: the notebook that was handed out.
        line: to the command, which the worker has no use for.
    """

    def __init__(self, marker: Marker, release: NotebookNode, line: Connection) -> None:
        from autograder.sandbox.meter import Meter

        self.limits = marker.limits
        self.meter = Meter()
        self.line, theirs = Pipe()
        with theirs:
            arguments = theirs, (self.line, line), marker, release, self.meter, os.getpid()
            self.process: BaseProcess = get_context("fork").Process(target=_work, args=arguments)
            self.process.start()
        self.number = 0  # that of the submission it marks; 0 if it has none
        self.progress: Progress
        self._inherited = self._used()[1]

    def give(self, number: int, task: Task) -> None:
        """Have it mark a submission."""
        from autograder.grading.marker import Progress

        self.number, self.task = number, task
        self.progress = Progress()
        self.cost = 0.0  # in seconds, when last looked at
        self.meter.running = 0.0
        self._since = time.monotonic()
        self._processor, self._memory = self._used()
        with suppress(OSError):  # It has died, which is seen when it is looked at.
            self.line.send(task)

    def _used(self) -> tuple[float, int]:
        """Seconds of processor, and bytes of memory without what it maps of files."""
        place = Path(f"/proc/{self.process.pid}")
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        resident, shared = map(int, (place / "statm").read_text().split()[1:3])
        return seconds, (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def kept(self) -> int:
        """Bytes that it has besides what it began with; 0 if it has just died."""
        try:
            return self._used()[1] - self._inherited
        except (OSError, IndexError, ValueError):
            return 0

    def excess(self) -> str:
        """Which bound its submission has gone beyond, in words; empty if none."""
        seconds, memory = self._used()
        self.cost = seconds - self._processor + self.meter.running
        most = self.limits.seconds_total
        if self.cost > most or time.monotonic() - self._since > MOST_STRETCH * most:
            return f"the submission used up the {most:g} seconds that one may cost"
        if memory - self._memory > self.limits.judging_bytes:
            size = self.limits.judging_bytes / 2**20
            return f"to read and judge the submission took more than the {size:g} MB that it may"
        return ""

    def end(self) -> None:
        """End it, and with it what runs of its submission."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.line.close()


class _Pool:
    """Marks what the command sends, until it closes the line."""

    def __init__(self, line: Connection, marker: Marker, jobs: int) -> None:
        self.line = line
        self.marker = marker
        self.jobs = jobs
        self.queue: deque[tuple[int, Task]] = deque()
        self.deaths: dict[int, int] = {}
        self.workers: list[_Worker] = []
        self.release: NotebookNode | None = None

    def run(self) -> None:
        """Raises EOFError or OSError when the command has ended or wants no more."""
        try:
            while True:
                self._hand_out()
                busy = {worker.line: worker for worker in self.workers if worker.number}
                ready = wait([self.line, *busy], LOOK_SECONDS if busy else None)
                for line in ready:
                    if isinstance(line, Connection) and line in busy:
                        self._hear(busy[line])
                    else:
                        self._take_order()
                for worker in busy.values():
                    if worker in self.workers and worker.number:
                        self._look_at(worker)
        finally:
            for worker in self.workers:
                worker.end()

    def _take_order(self) -> None:
        kind, *rest = self.line.recv()
        if kind == "release":
            import nbformat

            self.release = nbformat.reads(rest[0], as_version=4)
        else:
            self.queue.append((rest[0], rest[1]))

    def _hand_out(self) -> None:
        assert self.release is not None or not self.queue
        while self.queue:
            idle = next((worker for worker in self.workers if not worker.number), None)
            if idle is None:
                if len(self.workers) == self.jobs:
                    return
                idle = _Worker(self.marker, self.release, self.line)  # type: ignore[arg-type]
                self.workers.append(idle)
            idle.give(*self.queue.popleft())

    def _hear(self, worker: _Worker) -> None:
        """What a worker has to tell; if it has died, another one tries."""
        from autograder.sandbox.limits import SandboxUnavailable

        try:
            kind, value = worker.line.recv()
        except (EOFError, OSError):
            number, task = worker.number, worker.task
            self._remove(worker)
            self.deaths[number] = self.deaths.get(number, 0) + 1
            if self.deaths[number] < ALLOWED_DEATHS:
                self.queue.append((number, task))
            else:
                self._tell(number, self._cut_short(worker, "crashed", DIED))
            return
        if kind == "exercise":
            worker.progress.exercises[value.name] = value
        elif kind == "graded":
            number, worker.number = worker.number, 0
            if worker.kept() > MOST_KEPT:
                self._remove(worker)
            self._tell(number, value)
        elif kind == "unavailable":
            raise SandboxUnavailable(value)
        else:
            setattr(worker.progress, kind, value)

    def _look_at(self, worker: _Worker) -> None:
        """End a worker whose submission has cost too much."""
        try:
            why = worker.excess()
        except (OSError, IndexError, ValueError):  # It has just died: see `_hear`.
            return
        if why:
            self._remove(worker)
            self._tell(worker.number, self._cut_short(worker, "timed_out", why))

    def _cut_short(self, worker: _Worker, status: str, why: str) -> Graded:
        from autograder.grading.marker import UNJUDGED

        assert self.release is not None
        student = worker.task.submission.student
        graded = worker.progress.result(self.marker.assignment, student, status, why, self.release)
        note = f"stopped: {why}" if status == "timed_out" else f"{UNJUDGED} all of it ({why})"
        graded.result.seconds = round(worker.cost, 3)
        graded.result.notes = [*worker.task.submission.notes, note]
        return graded

    def _remove(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.end()

    def _tell(self, number: int, graded: Graded) -> None:
        self.deaths.pop(number, None)
        self.line.send(("graded", number, graded))


DIED = "the process that judged it ended twice"


# ---------------------------------------------------------------------------------------------
# In a worker


def _work(
    line: Connection,
    others: tuple[Connection, ...],
    marker: Marker,
    release: NotebookNode,
    meter: Any,
    parent: int,
) -> None:
    """Mark one submission after the other until there are no more."""
    end_with_parent(parent)
    for one in others:
        one.close()
    from autograder.grading.marker import grade_one
    from autograder.sandbox.limits import SandboxUnavailable

    marker.meter = meter
    with line, suppress(EOFError, OSError):
        while True:
            task = line.recv()
            try:
                graded = grade_one(
                    marker, task, release, lambda what, value: line.send((what, value))
                )
                line.send(("graded", graded))
            except SandboxUnavailable as error:
                line.send(("unavailable", str(error)))


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that started it ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # It has ended already.
