"""Makes the recorded answers of a unit, when they are missing or something they hold has changed.

They are not committed: processors round differently, and a few wrong modules train.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from autograder.assignments import recorded
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.common.files import replacing
from autograder.sandbox.wire import WireError
from autograder.units.dependencies import dependencies, digest

MADE_FROM = "made_from"  # the key under which a recording keeps what it was made from
# What asks the reference and the misconceptions.
MACHINERY = ("assignments/recorded", "judging/recording", "judging/runner")


def record(unit: str) -> Path | None:
    """Write the recorded answers of the unit's visible tests, unless those that are there hold.

    Returns:
        The file, if it was written.

    Raises:
        AssignmentError: the unit has no graders, or its reference fails one of them.
    """
    from autograder.judging.recording import record as ask
    from autograder.judging.runner import Graders

    graders, path = paths.graders(unit), paths.EXERCISES / unit / recorded.FILE
    if not graders.is_file():
        raise AssignmentError(
            f"{unit} has no graders; write {graders.relative_to(paths.ROOT)} first."
        )
    stamp = made_from(unit)
    if _kept(path) == stamp:
        return None
    try:
        recording = ask(unit, Graders(unit, hidden=False))
    except ValueError as error:
        raise AssignmentError(f"The answers of {unit} cannot be recorded: {error}.") from error
    recording.data[MADE_FROM] = stamp
    with replacing(path, shared=True) as scratch:
        recorded.write(recording, scratch)
    return path


def record_all(units: Sequence[str]) -> Iterator[Path]:
    """`record` of several units, as many at once as there are processors; the files written."""
    context = multiprocessing.get_context("fork")
    jobs = min(os.cpu_count() or 1, len(units)) or 1
    with ProcessPoolExecutor(
        jobs, context, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield from filter(None, pool.map(record, units))


def made_from(unit: str) -> str:
    """All that the unit's recorded answers are made from, as one hash."""
    versions = f"{torch.__version__} {np.__version__} {platform.machine()}"
    return f"{versions} {digest(dependencies(unit, machinery=MACHINERY))}"


def _kept(path: Path) -> str | None:
    """What the recorded answers at `path` were made from; None if there are none to be read."""
    try:
        return str(recorded.read(path).data[MADE_FROM])
    except (FileNotFoundError, WireError, KeyError, TypeError):
        return None
