"""Lets the process that marks fail where it handles one student's submission.

Each student's name says where and how: `judge-MemoryError`. `PROGRAM` is to be run in the place of
`worker_pool.PROGRAM`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from autograder.grading import worker_pool

ERRORS: dict[str, Callable[[], BaseException]] = {
    "RuntimeError": lambda: RuntimeError("a fault"),
    "RecursionError": lambda: RecursionError("a fault"),
    "MemoryError": lambda: MemoryError(),
    "OSError": lambda: OSError(5, "a fault"),
    "UnicodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a fault"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(),
}
KILLED = "killed"
FAULTS = (*ERRORS, KILLED)
# What goes beyond a submission's bounds, although its own code ended long ago.
SPINS, HOARDS = "spins", "hoards"
STAGES = ("read", "repair", "keep", "run", "judge")
LAST_JUDGED = 3  # exercises before the fault at the stage "judge"; as many come after it

PROGRAM = worker_pool.PROGRAM.replace(
    "; pool_process.main",
    "; from tests.autograder import faults; faults.install(); pool_process.main",
)


def install() -> None:
    """Put the faults into the functions that handle a submission at each stage."""
    from autograder.grading import marker, repair
    from autograder.judging.runner import Graders
    from autograder.sandbox import session

    now: list[str] = [""]

    def fail(stage: str) -> None:
        where, _, how = now[0].partition("-")
        if where == stage:
            if how == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            kept = []
            while how in (SPINS, HOARDS):
                if how == HOARDS:
                    kept.append(bytearray(1 << 20))
                    time.sleep(0.001)
            raise ERRORS[how]()

    def failing(stage: str, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def function(*arguments: Any, **named: Any) -> Any:
            fail(stage)
            return real(*arguments, **named)

        setattr(owner, name, function)

    failing("read", repair, "repair_file")
    failing("repair", repair, "repair")
    failing("run", session.Session, "load")
    kept, grade_one, converse = marker._kept, marker.grade_one, Graders._converse

    def keep(mended: Any, release: Any) -> str:
        if mended is not None:  # The empty notebook, which is kept instead, is not at fault.
            fail("keep")
        return kept(mended, release)

    def grade(a_marker: Any, task: Any, *rest: Any) -> Any:
        now[0] = task.submission.student
        return grade_one(a_marker, task, *rest)

    def converse_about(self: Graders, item: Any, *rest: Any) -> Any:
        names = [exercise.name for exercise in self.assignment.exercises]
        if names.index(item.exercise) >= LAST_JUDGED:
            fail("judge")
        return converse(self, item, *rest)

    marker._kept, marker.grade_one = keep, grade
    Graders._converse = converse_about  # type: ignore[method-assign]
