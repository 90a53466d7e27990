"""A gradebook file that survives whatever ends the process that writes it.

While a class is entered, nothing waits for the disk. If the process is killed, SQLite's rollback
journal, a file beside the gradebook, undoes what was half written as soon as somebody opens it. A
power cut can do worse, so a copy from before the run is kept until everything is on the disk, and
a copy that is found at the start tells of a run that did not end.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, event

from autograder.assignment import ClassroomError

DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True)
class Unfinished:
    """What became of a gradebook whose last run did not end.

    Attributes:
        said: one sentence for the person who grades.
        entered: what that run entered is in the gradebook still. If not, everybody has to be
            entered again.
    """

    said: str
    entered: bool


def mend(file: Path) -> Unfinished | None:
    """See to the gradebook at `file` if the last run that wrote it did not end; else None.

    Raises:
        ClassroomError: another run is writing it, or neither it nor its copy can be read.
    """
    copy = _copy_of(file)
    if not copy.is_file():
        return None
    with copy.open("rb") as opened:
        _hold(opened.fileno(), file)
        if not copy.is_file():  # That other run has ended in the meantime.
            return None
        restarted = copy.stat().st_mtime < psutil.boot_time()
        if _is_whole(file):
            copy.unlink()
            if restarted:
                return Unfinished(
                    f"The last run ended with the machine; {file.name} is whole, but marks may be "
                    "missing in it, so everybody is entered again.",
                    entered=False,
                )
            return Unfinished(
                f"The last run did not end; {file.name} is whole and goes on.", entered=True
            )
        if not _is_whole(copy):
            raise ClassroomError(
                f"{file} is damaged, and so is its copy {copy.name}; put a backup in its place, "
                "or move both away and grade again."
            )
        return _restored(file, copy)


def _restored(file: Path, copy: Path) -> Unfinished:
    damaged = file.with_name(file.name + ".damaged")
    if file.is_file():
        copy.chmod(file.stat().st_mode & 0o777)
        file.replace(damaged)
    # What was to be undone in the damaged file must not be undone in the copy.
    for kind in ("-journal", "-wal", "-shm"):
        file.with_name(file.name + kind).unlink(missing_ok=True)
    copy.replace(file)
    return Unfinished(
        f"The last run did not end and {file.name} was damaged; it is as before that run again, "
        f"and everybody is entered again (what was damaged is kept in {damaged.name}).",
        entered=False,
    )


@contextmanager
def in_haste(file: Path) -> Iterator[Unfinished | None]:
    """Write the gradebook at `file` without waiting for the disk; yields what `mend` says.

    Only one run at a time may do so; what other programs write meanwhile, they write as ever.
    """
    unfinished = mend(file)
    copy = _copy_of(file)
    try:
        descriptor = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise _busy(file) from error
    try:
        _hold(descriptor, file)
        if file.is_file():
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                target.execute("PRAGMA journal_mode=OFF")
                source.backup(target)
        os.fsync(descriptor)
        event.listen(Engine, "connect", _hasten)
        try:
            yield unfinished
        finally:
            event.remove(Engine, "connect", _hasten)
        if file.is_file():
            with closing(sqlite3.connect(file)) as connection:
                for mode in ("TRUNCATE", "DELETE"):  # This change removes the journal's file.
                    connection.execute(f"PRAGMA journal_mode={mode}")
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
        copy.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _hasten(connection: Any, _: Any) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    connection.execute("PRAGMA synchronous=OFF")
    # A journal in memory would be faster by a little, and lost with the process.
    connection.execute("PRAGMA journal_mode=TRUNCATE")


def _copy_of(file: Path) -> Path:
    return file.with_name(file.name + ".before")


def _hold(descriptor: int, file: Path) -> None:
    """Lock the copy as long as `descriptor` is open; the lock ends with the process at the latest.

    Raises:
        ClassroomError: another process holds it, which is to say, is writing the gradebook.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _busy(file) from error


def _busy(file: Path) -> ClassroomError:
    return ClassroomError(f"Another run is writing {file}; start again when it has ended.")


def _is_whole(file: Path) -> bool:
    """Whether SQLite finds nothing wrong with `file`, once what was half written is undone."""
    if not file.is_file():
        return False
    try:
        address = f"{file.resolve().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in DAMAGE:
            return False
        raise ClassroomError(f"{file} cannot be read ({error}); mend that first.") from error
