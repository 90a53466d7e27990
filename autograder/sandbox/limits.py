"""What one submission may use, and that there is no sandbox to hold it to that."""

from __future__ import annotations

from dataclasses import dataclass

from autograder.sandbox.timelimit import SECONDS_PER_CALL


class SandboxUnavailable(Exception):
    """Student code cannot be isolated on this machine; says why and what to do."""


@dataclass(frozen=True)
class Limits:
    """What one submission may use. `processes` counts threads too; sizes are in bytes.

    `seconds_total` is for everything that a submission costs: reading and repairing the notebook,
    running it, starting its process again, judging it. They are seconds in which one of its
    processes, or the one that judges it, ran or slept; waiting for a core is not counted. Its own
    processes may have `memory_bytes`, and the judging process may grow by `judging_bytes`. Some of
    its processes are ours: one for each set of functions that exercises forbid, at most 4 so far.
    """

    seconds_per_call: float = SECONDS_PER_CALL
    seconds_per_cell: float = SECONDS_PER_CALL
    seconds_total: float = 180.0
    memory_bytes: int = 750 << 20
    judging_bytes: int = 750 << 20
    processes: int = 36
    file_bytes: int = 16 << 20
    output_bytes: int = 1 << 20
    answer_bytes: int = 16 << 20  # of one answer; the largest right one has 0.6 MB
    answers_bytes: int = 128 << 20  # of all answers of a notebook; right ones have 3 MB
