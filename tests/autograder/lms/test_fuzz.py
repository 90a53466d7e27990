"""Archives and tables that nobody would make on purpose: never a traceback, nothing outside."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder.common.errors import ClassroomError
from autograder.lms import Tool, module
from autograder.lms.archive import Archive, safe_path
from autograder.lms.base import People, place, read_export
from autograder.lms.table import Table
from tests.autograder.lms.exports import EXPORTS, zipped

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("originals")
    return {tool: zipped(folder / tool, files).read_bytes() for tool, files in EXPORTS.items()}


def test_zips_with_changed_bytes(originals: dict[str, bytes]) -> None:
    taken: list[str] = []

    @SETTINGS
    @given(
        st.sampled_from(list(EXPORTS)),
        st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=12),
        st.floats(0, 1),
    )
    def is_refused_or_stays_inside(tool: str, changes: list[tuple[float, int]], end: float) -> None:
        data = bytearray(originals[tool])
        for where, value in changes:
            data[int(where * (len(data) - 1))] = value
        if end > 0.8:
            del data[int(end * len(data)) :]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "export.zip").write_bytes(data)
            to = folder / "class" / "submitted"
            with suppress(ClassroomError), Archive(folder / "export.zip") as archive:
                found = read_export(tool, archive, People(), "attention-scores")
                place(found, "attention-scores", to, People(), module(Tool(tool)).COLUMNS)
                taken.append(tool)
            written = {path.relative_to(folder).parts[0] for path in folder.rglob("*")}
            assert written <= {"export.zip", "class"}
            beside = {path.name for path in (folder / "class").glob("*")}
            assert beside <= {"submitted", "roster.csv"}

    is_refused_or_stays_inside()
    assert len(taken) >= 5  # Else all were refused, which says nothing of what is written.


def test_tables_keep_every_byte() -> None:
    filled: list[str] = []

    @SETTINGS
    @given(st.text(st.sampled_from('a=1,;\t" \r\n'), max_size=40), st.booleans())
    def is_refused_or_keeps_them(text: str, mark: bool) -> None:
        data = (("\ufeff" if mark else "") + text).encode()
        try:
            table = Table(data)
        except ClassroomError:
            return
        assert table.to_bytes() == data
        table.put(0, len(table.rows[0]), "7")
        again = Table(table.to_bytes())
        if again.delimiter == table.delimiter:
            assert again.value(0, len(table.rows[0])) == "7"
            filled.append(text)

    is_refused_or_keeps_them()
    assert len(filled) >= 5


def test_names_never_lead_out() -> None:
    taken: list[str] = []

    @SETTINGS
    @given(st.text(max_size=30) | st.text(st.sampled_from("./\\:aC"), max_size=12))
    def is_refused_or_stays_inside(name: str) -> None:
        path = safe_path(name)
        if isinstance(path, str):
            return
        base = Path("/base/folder")
        assert (base / path).is_relative_to(base)
        assert ".." not in path.parts
        assert not path.is_absolute()
        taken.append(name)

    is_refused_or_stays_inside()
    assert len(taken) >= 5
