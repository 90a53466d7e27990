"""Marks a class with several processes, each with a sandbox and graders of its own."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from autograder import startup  # isort: split

import nbformat
from nbformat import NotebookNode

from autograder import repair
from autograder.assignment import load
from autograder.collect import Submission
from autograder.marker import UNJUDGED, Graded, Marker, empty_result, grade_one
from autograder.results import SubmissionResult

_worker: tuple[Marker, NotebookNode] | None = None


def _start_worker(options: dict[str, Any], release: str) -> None:
    """Begin a process of the pool."""
    global _worker
    startup.collect_seldom()
    marker = Marker(**options)
    atexit.register(marker.close)
    _worker = (marker, nbformat.reads(release, as_version=4))


def _work(submission: Submission) -> tuple[dict[str, Any], str]:
    assert _worker is not None
    graded = grade_one(_worker[0], submission, _worker[1])
    return graded.result.to_dict(), graded.notebook


def grade_all(
    submissions: Sequence[Submission], options: dict[str, Any], release: NotebookNode, jobs: int
) -> Iterator[tuple[Submission, Graded]]:
    """Each submission with its result, as they are finished."""
    if jobs <= 1 or len(submissions) == 1:
        with Marker(**options) as marker:
            for submission in submissions:
                yield submission, grade_one(marker, submission, release)
        return
    text = nbformat.writes(release)
    left = list(submissions)
    alone = False
    while left:
        # A process that dies takes the others of its pool along: go on with those unfinished,
        # one by one, so that whoever ends the process is found.
        size = 1 if alone else min(jobs, len(left))
        pool = ProcessPoolExecutor(
            size,
            mp_context=get_context("spawn"),
            initializer=_start_worker,
            initargs=(options, text),
        )
        try:
            if alone:
                submission = left[0]
                try:
                    data, notebook = pool.submit(_work, submission).result()
                    graded = Graded(SubmissionResult.from_dict(data), notebook)
                except BrokenProcessPool:
                    graded = _lost(submission, options["chapter"], release)
                left.remove(submission)
                alone = False
                yield submission, graded
                continue
            waiting: dict[Future, Submission] = {pool.submit(_work, one): one for one in left}
            while waiting:
                done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in done:
                    submission = waiting.pop(future)
                    try:
                        data, notebook = future.result()
                    except BrokenProcessPool:
                        alone = True
                        continue
                    left.remove(submission)
                    yield submission, Graded(SubmissionResult.from_dict(data), notebook)
        finally:
            pool.shutdown(cancel_futures=True)


def _lost(submission: Submission, chapter: str, release: NotebookNode) -> Graded:
    result = empty_result(
        load(chapter), submission.student, "crashed", "This submission could not be graded."
    )
    result.notes = [*submission.notes, f"{UNJUDGED} the submission (the grading process ended)"]
    return Graded(result, nbformat.writes(repair.blank(release)))
