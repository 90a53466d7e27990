"""Files that are either the old ones or the new ones, whenever the program ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A path to write to; what was written takes the place of `path` when all of it is there.

    What a process that was killed has left of it, the next one writes over. A file that several
    processes may write at the same time is `shared`: each of them then writes to a path of its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    own = f".{os.getpid()}" if shared else ""
    scratch = path.with_name(f".{path.name}{own}.part")
    try:
        yield scratch
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
