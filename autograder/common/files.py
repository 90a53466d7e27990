"""Files that are either the old ones or the new ones, whenever the program ends.

And what to say when a disk is full, read-only or somebody else's.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autograder.common.errors import ClassroomError

# What is to be done, and what Python and SQLite say when it is.
REMEDIES = {
    "free some space": (
        os.strerror(errno.ENOSPC),
        os.strerror(errno.EDQUOT),
        "database or disk is full",
    ),
    "make the disk writable": (
        os.strerror(errno.EROFS),
        "attempt to write a readonly database",
        "unable to open database file",
    ),
    "see that you may read and write there": (
        os.strerror(errno.EACCES),
        os.strerror(errno.EPERM),
    ),
    "see to the disk and its space": (os.strerror(errno.EIO), "disk I/O error"),
}


ROOM = 4 << 20  # more than is written of one student


class DiskError(ClassroomError):
    """Something could not be written, whoever's it is; the message says what, and the remedy."""


def disk_error(error: Exception, place: Path | None = None) -> DiskError | None:
    """The error in one sentence if it is the disk's; None if it is another.

    Args:
        error: what was raised.
        place: what was being written, where the error does not say.
    """
    if isinstance(error, DiskError):
        return error
    cause = getattr(error, "orig", error)  # SQLAlchemy wraps the database's own.
    if not isinstance(cause, OSError | sqlite3.Error):
        return None
    reason = getattr(cause, "strerror", None) or str(cause)
    for remedy, words in REMEDIES.items():
        for word in words:
            if word in reason:
                file = getattr(cause, "filename", None) or place
                return DiskError(
                    f"{file or 'A file'} could not be written ({word}); {remedy} and give the same "
                    "command again: what was marked is kept."
                )
    return None


@contextmanager
def naming_disk_errors(place: Path) -> Iterator[None]:
    """Say in one sentence what could not be written at `place`, or in it, and the remedy.

    Raises:
        DiskError: the disk is full, read-only or somebody else's.
    """
    try:
        yield
    except Exception as error:
        told = disk_error(error, place)
        if told is None or told is error:
            raise
        raise told from error


def require_room(folder: Path) -> None:
    """Find out whether it is the disk's fault that something could not be written.

    Raises:
        DiskError: it is full, read-only or somebody else's.
    """
    with naming_disk_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(ROOM))
        file.flush()


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A path to write to; what was written takes the place of `path` when all of it is there.

    What a process that was killed has left of it, the next one writes over. A file that several
    processes may write at the same time is `shared`: each of them then writes to a path of its own.
    """
    with naming_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    own = f".{os.getpid()}" if shared else ""
    scratch = path.with_name(f".{path.name}{own}.part")
    try:
        with naming_disk_errors(path):
            yield scratch
            scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
