"""Files are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.files import write_whole


def test_a_write_that_fails_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "numbers.txt"
    write_whole(path, lambda half: half.write_text("old"))

    def broken(half: Path) -> None:
        half.write_text("new, and then")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_whole(path, broken)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
