"""A disk that is full or read-only: one sentence, nothing lost, and the next start goes on."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from autograder import __main__ as command_line
from autograder.common import paths
from autograder.common.files import DiskError, disk_error, replacing, require_room
from autograder.grading.marker import empty_result
from autograder.grading.result_cache import ResultCache
from tests.autograder.gradebook.test_classroom import ASSIGNMENT, UNIT
from tests.autograder.helpers import put, status_of

STUDENTS = [f"s{number}" for number in range(1, 7)]
# Grade into a course on a disk of its own, first a small one; nothing stays mounted.
SCRIPT = """
mount -t tmpfs -o size=$SIZE tmpfs "$1" || exit 99
shift
"$@"; first=$?
mount -o remount,size=64m $MOUNTED
echo "== again" >&2
"$@" || exit 98
cp -r $MOUNTED/course $KEPT
exit $first
"""

mounting = pytest.mark.skipif(
    os.geteuid() != 0
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
    reason="only root may mount a small disk",
)


@mounting
@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "named"),
    [
        ("16k", "result_cache.db"),
        ("200k", "course"),  # The course is being made.
        ("600k", "course"),  # Some are in the gradebook.
        ("ro", "course"),
    ],
)
def test_a_class_on_a_small_disk_is_completed_by_the_next_start(tmp_path, size, named):
    for student in STUDENTS:
        put(tmp_path / "in" / f"{student}.ipynb", b"\x00 no notebook")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    command = [sys.executable, "-m", "autograder", "grade", UNIT, "--jobs", "1"]
    command += ["--submitted", str(tmp_path / "in"), "--course", str(disk / "course")]
    script = SCRIPT
    if size == "ro":
        script = script.replace("size=$SIZE", "ro,size=64m").replace("size=64m $", "rw,size=64m $")
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "bash", str(disk), *command],
        env={**os.environ, "SIZE": size, "MOUNTED": str(disk), "KEPT": str(kept)},
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    first, _, again = done.stderr.partition("== again")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    (said,) = [line for line in first.splitlines() if line.startswith("autograder: ")]
    assert f"{named} could not be written (" in said
    assert "give the same command again: what was marked is kept." in said
    assert "autograder: " not in again
    with ResultCache(kept) as cache:
        assert cache.students(UNIT) == STUDENTS
        assert set(cache.markings(UNIT).values()) == {1}, "somebody was marked twice"
    assert not any(disk.iterdir())


@mounting
def test_no_room_for_temporary_files(tmp_path):
    put(tmp_path / "in" / "s1.ipynb", b"\x00 no notebook")
    small = tmp_path / "small"
    small.mkdir()
    command = [sys.executable, "-m", "autograder", "grade", UNIT, "--jobs", "1"]
    command += ["--submitted", str(tmp_path / "in"), "--course", str(tmp_path / "course")]
    script = 'mount -t tmpfs -o size=100k tmpfs "$TMPDIR" && "$@"'
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "bash", *command],
        env={**os.environ, "TMPDIR": str(small)},
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert f"autograder: {small} could not be written (" in done.stderr
    assert not (tmp_path / "course").exists()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "free some space"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "free some space"),
        (OSError(errno.EROFS, os.strerror(errno.EROFS)), "make the disk writable"),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES)), "may read and write"),
        (sqlite3.OperationalError("database or disk is full"), "free some space"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "disk writable"),
    ],
    ids=str,
)
def test_each_has_its_remedy_and_names_the_file(tmp_path, error, remedy):
    with pytest.raises(DiskError, match=remedy) as told, replacing(tmp_path / "results.json"):
        raise error
    assert str(tmp_path / "results.json") in str(told.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [ValueError("No space left on device"), OSError(36, "too long")])
def test_what_is_not_the_disks_is_left_to_others(tmp_path, error):
    assert disk_error(error) is None
    require_room(tmp_path)


def test_a_journal_that_has_no_room_keeps_what_it_had(tmp_path):
    with ResultCache(tmp_path) as cache:
        result = empty_result(ASSIGNMENT, "s1", "missing", "")
        cache.keep(UNIT, "key", result, "")
        cache._db.execute("PRAGMA max_page_count = 1")  # as many as there are
        result.student = "s2"
        with pytest.raises(DiskError, match=r"result_cache\.db could not be written"):
            cache.keep(UNIT, "key", result, os.urandom(1 << 16).hex())
        assert list(cache.markings(UNIT)) == [("s1", 1)]


def test_whatever_else_goes_wrong_is_one_sentence_too(monkeypatch, capsys):
    def broken(names):
        raise RuntimeError("somewhere\nin the program")

    monkeypatch.setattr(command_line, "_app", broken)
    with pytest.raises(SystemExit) as end:
        command_line.main(["doctor"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "(RuntimeError: somewhere in the program)" in said
    assert "Traceback" not in said
    monkeypatch.setenv(command_line.TRACEBACK, "1")
    with pytest.raises(RuntimeError):
        command_line.main(["doctor"])


def test_the_folder_of_the_course_is_a_file(tmp_path, capsys):
    put(tmp_path / "in" / "s1.ipynb", b"\x00 no notebook")
    course = put(tmp_path / "course", "")
    where = ["--submitted", str(tmp_path / "in"), "--course", str(course), "--jobs", "1"]
    assert status_of(["grade", UNIT, *where]) == 2
    assert f"{course} is a file; name a folder" in capsys.readouterr().err
