"""Marks a class with several processes that share what it takes to begin.

One process, the *foreman*, imports PyTorch and the reference, collects the graders, starts the
sandbox and marks the reference's own answers: they must earn everything, or nobody is graded. Then
it forks the workers, each of which begins with all of that in its memory, asks the same sandbox for
its submissions' processes, and ends when the foreman does, as the foreman ends with the process
that grades the class.

    grade ── submissions ──▶ foreman ── fork ──▶ worker, worker, ...
          ◀── results ────────┘                     └── sandbox, shared

It takes seconds until a foreman is ready, so that it is called before there is work for it: the
process that grades the class finds out what there is to mark in the meantime, and sees to the
course while the reference is marked.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from autograder import startup  # isort: split

import nbformat
from nbformat import NotebookNode

from autograder.collect import Submission
from autograder.foreman import Foreman, can_lead, end_with_parent
from autograder.marker import Graded, Marker, grade_one, ungraded
from autograder.results import SubmissionResult

AHEAD = 2  # submissions per worker that are handed out before they are needed

# What a worker inherits from the foreman.
_tools: tuple[Marker, NotebookNode] | None = None


@contextmanager
def called(
    submissions: Sequence[Submission], options: dict[str, Any], jobs: int
) -> Iterator[Foreman | None]:
    """A foreman for these submissions, who is getting ready; None if they need none."""
    if _several(submissions, jobs):
        with Foreman(options, jobs) as foreman:
            yield foreman
    else:
        yield None


def _several(submissions: Sequence[Submission], jobs: int) -> bool:
    return can_lead(jobs) and sum(one.runnable for one in submissions) > 1


def grade_all(
    submissions: Sequence[Submission],
    options: dict[str, Any],
    release: NotebookNode,
    jobs: int,
    foreman: Foreman | None = None,
) -> Iterator[tuple[Submission, Graded]]:
    """Each submission with its result, as they are finished.

    Args:
        submissions: whose notebooks to mark.
        options: arguments of `Marker`.
        release: the notebook that was handed out.
        jobs: how many submissions to mark at a time; 1 marks them in this process.
        foreman: who was `called` for them; without one, another is if they need one.

    Raises:
        SandboxUnavailable: there is no sandbox, and the options do not say to do without.
        ClassroomError: the reference does not earn full marks on this machine.
    """
    several = foreman is not None or _several(submissions, jobs)
    together = [one for one in submissions if one.runnable] if several else []
    with Marker(**options) as marker:  # Nothing of it starts where there is nothing to run.
        for submission in submissions:
            if not (several and submission.runnable):
                yield submission, grade_one(marker, submission, release)
    if together:
        yield from _with_foreman(together, options, release, jobs, foreman)


# ---------------------------------------------------------------------------------------------
# In the process that grades the class


def _with_foreman(
    submissions: Sequence[Submission],
    options: dict[str, Any],
    release: NotebookNode,
    jobs: int,
    called: Foreman | None,
) -> Iterator[tuple[Submission, Graded]]:
    """Results from a foreman; from another one for what is left when one dies."""
    left = dict(enumerate(submissions))
    text = nbformat.writes(release)
    while left:
        before = len(left) if called is None else 0
        with Foreman(options, jobs) if called is None else nullcontext(called) as foreman:
            called = None
            for kind, number, data, notebook in foreman.mark(dict(left), text):
                if kind == "lost":
                    graded = _lost(left[number], options["chapter"], release)
                else:
                    graded = Graded(SubmissionResult.from_dict(data), notebook)
                yield left.pop(number), graded
        if len(left) == before:
            # The next one would fare no better: these are told, and tried again another time.
            for submission in left.values():
                yield submission, _lost(submission, options["chapter"], release)
            return


def _lost(submission: Submission, chapter: str, release: NotebookNode) -> Graded:
    return ungraded(submission, chapter, release, "the grading process ended")


# ---------------------------------------------------------------------------------------------
# In the foreman


def lead(line: Connection, marker: Marker, jobs: int) -> None:
    """Prepare, wait for submissions, fork workers, and send on what they find."""
    global _tools
    from autograder.walls import SandboxUnavailable

    with marker:
        try:
            marker.start()
            import torch

            torch.set_num_threads(1)  # It may have been imported before.
            complaint = marker.begin()
            if complaint:
                line.send(("unfit", 0, complaint, ""))
                return
            startup.collect_seldom()
            gc.enable()
            submissions, release = line.recv()
            _tools = (marker, nbformat.reads(release, as_version=4))
            _hand_out(submissions, min(jobs, len(submissions)), line.send)
            line.send(("done", 0, None, ""))
        except SandboxUnavailable as error:
            line.send(("unavailable", 0, str(error), ""))


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


@contextmanager
def _pool(size: int) -> Iterator[ProcessPoolExecutor]:
    """Workers forked from this process; ended without waiting when something goes wrong."""
    executor = ProcessPoolExecutor(
        size, get_context("fork"), initializer=end_with_parent, initargs=(os.getpid(),)
    )
    fine = False
    try:
        yield executor
        fine = True
    finally:
        executor.shutdown(wait=fine, cancel_futures=True)


# ---------------------------------------------------------------------------------------------
# In a worker


def _work(submission: Submission) -> tuple[dict[str, Any], str]:
    assert _tools is not None
    graded = grade_one(_tools[0], submission, _tools[1])
    return graded.result.to_dict(), graded.notebook
