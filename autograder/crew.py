"""Marks a class with several processes that share what it takes to begin.

One process, the *foreman*, imports PyTorch and the reference, collects the graders, starts the
sandbox and marks the reference's own answers: they must earn everything, or nobody is graded. Then
it forks the workers, each of which begins with all of that in its memory, asks the same sandbox for
its submissions' processes, and ends when the foreman does, as the foreman ends with the process
that grades the class.

    grade ── submissions ──▶ foreman ── fork ──▶ worker, worker, ...
          ◀── results ────────┘                     └── sandbox, shared
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from autograder import startup  # isort: split

import nbformat
from nbformat import NotebookNode

from autograder import repair
from autograder.assignment import ClassroomError, load
from autograder.collect import Submission
from autograder.marker import UNJUDGED, Graded, Marker, empty_result, grade_one
from autograder.results import SubmissionResult

AHEAD = 2  # submissions per worker that are handed out before they are needed
PR_SET_PDEATHSIG = 1

# What a worker inherits from the foreman.
_tools: tuple[Marker, NotebookNode] | None = None


def grade_all(
    submissions: Sequence[Submission], options: dict[str, Any], release: NotebookNode, jobs: int
) -> Iterator[tuple[Submission, Graded]]:
    """Each submission with its result, as they are finished.

    Args:
        submissions: whose notebooks to mark.
        options: arguments of `Marker`.
        release: the notebook that was handed out.
        jobs: how many submissions to mark at a time; 1 marks them in this process.

    Raises:
        SandboxUnavailable: there is no sandbox, and the options do not say to do without.
        ClassroomError: the reference does not earn full marks on this machine.
    """
    there = [one for one in submissions if one.path is not None and not one.reason]
    # Elsewhere PyTorch does not survive a fork.
    several = jobs > 1 and len(there) > 1 and sys.platform.startswith("linux")
    together = there if several else []
    with Marker(**options) as marker:  # Nothing of it starts where there is nothing to run.
        for submission in submissions:
            if submission not in together:
                yield submission, grade_one(marker, submission, release)
    if together:
        yield from _with_foreman(together, options, release, jobs)


# ---------------------------------------------------------------------------------------------
# In the process that grades the class


def _with_foreman(
    submissions: Sequence[Submission], options: dict[str, Any], release: NotebookNode, jobs: int
) -> Iterator[tuple[Submission, Graded]]:
    """Results from a foreman; from another one for what is left when one dies."""
    left = dict(enumerate(submissions))
    text = nbformat.writes(release)
    context = get_context("spawn")
    while left:
        before = len(left)
        ours, theirs = context.Pipe(duplex=False)
        arguments = (theirs, dict(left), options, text, jobs, os.getpid())
        foreman = context.Process(target=_lead, args=arguments, name="foreman")
        foreman.start()
        theirs.close()
        try:
            while True:
                try:
                    kind, number, data, notebook = ours.recv()
                except (EOFError, OSError):
                    break
                if kind == "unavailable":
                    from autograder.walls import SandboxUnavailable

                    raise SandboxUnavailable(data)
                if kind == "unfit":
                    raise ClassroomError(data)
                if kind == "lost":
                    graded = _lost(left[number], options["chapter"], release)
                else:
                    graded = Graded(SubmissionResult.from_dict(data), notebook)
                yield left.pop(number), graded
        finally:
            ours.close()
            if left:
                foreman.terminate()  # The caller wants no more, or the foreman is gone already.
            foreman.join()
        if len(left) == before:
            # Another one would fare no better: these are told, and tried again another time.
            for submission in left.values():
                yield submission, _lost(submission, options["chapter"], release)
            return


def _lost(submission: Submission, chapter: str, release: NotebookNode) -> Graded:
    result = empty_result(
        load(chapter), submission.student, "crashed", "This submission could not be graded."
    )
    result.notes = [*submission.notes, f"{UNJUDGED} the submission (the grading process ended)"]
    return Graded(result, nbformat.writes(repair.blank(release)))


# ---------------------------------------------------------------------------------------------
# In the foreman


def _lead(
    results: Connection,
    submissions: dict[int, Submission],
    options: dict[str, Any],
    release: str,
    jobs: int,
    parent: int,
) -> None:
    """Prepare, fork workers, and send on what they find."""
    global _tools
    _end_with_parent(parent)
    _prepare_to_fork()
    from autograder.walls import SandboxUnavailable

    with Marker(**options) as marker:
        try:
            marker.start()
            _prepare_to_fork()  # PyTorch may have been imported before, and with threads.
            complaint = marker.begin()
        except SandboxUnavailable as error:
            results.send(("unavailable", 0, str(error), ""))
            return
        if complaint:
            results.send(("unfit", 0, complaint, ""))
            return
        startup.collect_seldom()
        _tools = (marker, nbformat.reads(release, as_version=4))
        try:
            _hand_out(submissions, min(jobs, len(submissions)), results.send)
        except SandboxUnavailable as error:
            results.send(("unavailable", 0, str(error), ""))
        except OSError:
            return  # Nobody listens any more.


def _prepare_to_fork() -> None:
    """See to it that PyTorch works without threads of its own: they would be missing in a fork.

    A fork of a process in which OpenMP has had several threads waits for them for ever, and one
    whose autograd knows of a GPU refuses to work. Nothing is graded on one.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _hand_out(
    submissions: dict[int, Submission], jobs: int, tell: Callable[[tuple[Any, ...]], None]
) -> None:
    """Mark all of `submissions` in workers and tell of each."""
    left = dict(submissions)
    alone = False
    while left:
        # A process that dies takes the others of its pool along: go on with those unfinished,
        # one by one, so that whoever ends the process is found.
        with _pool(1 if alone else jobs) as pool:
            if alone:
                number = next(iter(left))
                try:
                    tell(("graded", number, *pool.submit(_work, left[number]).result()))
                except BrokenProcessPool:
                    tell(("lost", number, None, ""))
                del left[number]
                alone = False
                continue
            queue = list(left.items())[::-1]
            running: dict[Future, int] = {}
            while queue or running:
                while queue and len(running) < (1 + AHEAD) * jobs:
                    number, submission = queue.pop()
                    try:
                        running[pool.submit(_work, submission)] = number
                    except BrokenProcessPool:
                        alone, queue = True, []
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    number = running.pop(future)
                    try:
                        tell(("graded", number, *future.result()))
                    except BrokenProcessPool:
                        alone, queue = True, []
                        continue
                    del left[number]


class _pool:
    """Workers forked from this process; ended without waiting when something goes wrong."""

    def __init__(self, size: int) -> None:
        parent = os.getpid()
        self.executor = ProcessPoolExecutor(
            size, get_context("fork"), initializer=_end_with_parent, initargs=(parent,)
        )

    def __enter__(self) -> ProcessPoolExecutor:
        return self.executor

    def __exit__(self, kind: object, *_: object) -> None:
        self.executor.shutdown(wait=kind is None, cancel_futures=True)


# ---------------------------------------------------------------------------------------------
# In a worker


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this process when the one that started it ends."""
    # Ctrl-C is for the process that grades the class; the others end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)  # It has ended already.


def _work(submission: Submission) -> tuple[dict[str, Any], str]:
    assert _tools is not None
    graded = grade_one(_tools[0], submission, _tools[1])
    return graded.result.to_dict(), graded.notebook
