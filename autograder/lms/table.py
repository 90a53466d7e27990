"""A CSV of which some cells are filled in and every other byte stays as it is."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from autograder.common.errors import ClassroomError

MAX_BYTES = 64 << 20


class Table:
    """Rows of a CSV, and where in the text each cell stands.

    Attributes:
        rows: the cells' values, the heading first.
        delimiter: comma, semicolon or tab, whichever the heading has most of.
    """

    def __init__(self, data: bytes, name: str = "the table") -> None:
        self.name = name
        self.encoding, text = _decoded(data, name)
        self.text = text
        first = text.lstrip("\ufeff").split("\n", 1)[0]
        self.delimiter = max(",;\t", key=first.count)
        self._spans = _spans(text, self.delimiter, name)
        self.rows = [[_value(text[a:b]) for a, b in record] for record in self._spans]
        self._edits: dict[tuple[int, int], str] = {}
        if not self.rows:
            raise ClassroomError(f"{name} is empty.")

    @classmethod
    def read(cls, path: Path, what: str) -> Table:
        """The table in a file; a sentence if there is none."""
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ClassroomError(f"The {what} {path} is too large to be one.")
            data = path.read_bytes()
        except OSError as error:
            raise ClassroomError(
                f"The {what} {path} cannot be opened ({error.strerror or error})."
            ) from error
        return cls(data, f"The {what} {path}")

    @property
    def head(self) -> list[str]:
        return [cell.strip() for cell in self.rows[0]]

    def value(self, row: int, column: int) -> str:
        """A cell's text; empty where the row is too short."""
        cells = self.rows[row]
        return cells[column].strip() if column < len(cells) else ""

    def under(self, row: int, heading: str) -> str:
        """The cell in a row under a heading; empty where there is none."""
        return self.value(row, self.head.index(heading)) if heading in self.head else ""

    @property
    def body(self) -> range:
        """The numbers of the rows below the heading."""
        return range(1, len(self.rows))

    def put(self, row: int, column: int, text: str) -> None:
        """Fill a cell in."""
        self._edits[row, column] = text

    def to_bytes(self) -> bytes:
        """The whole file with the cells that were put."""
        changes = []
        for (row, column), text in self._edits.items():
            record = self._spans[row]
            missing = column - len(record) + 1
            if missing > 0:
                at = record[-1][1]
                changes.append((at, at, self.delimiter * missing + self._quoted(text)))
            else:
                start, end = record[column]
                quoted = self.text[start:end].lstrip(" ").startswith('"')
                changes.append((start, end, self._quoted(text, quoted)))
        text = self.text
        for start, end, new in sorted(changes, reverse=True):
            text = text[:start] + new + text[end:]
        return text.encode(self.encoding)

    def _quoted(self, text: str, always: bool = False) -> str:
        if always or any(char in text for char in (self.delimiter, '"', "\n", "\r")):
            return '"' + text.replace('"', '""') + '"'
        return text


def _decoded(data: bytes, name: str) -> tuple[str, str]:
    """The encoding, one that gives the same bytes back, and the text."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\x00" in data:
        raise ClassroomError(f"{name} is not in UTF-8; save it as CSV in UTF-8.")
    try:
        return "utf-8", data.decode("utf-8")
    except UnicodeDecodeError:
        return "latin-1", data.decode("latin-1")  # which decodes everything


def _spans(text: str, delimiter: str, name: str) -> list[list[tuple[int, int]]]:
    """Where each cell of each row begins and ends; rows of nothing are left out."""
    plain = rf"[^{delimiter}\r\n]*"
    cell = re.compile(rf'( *"(?:[^"]|"")*+"{plain}|(?! *"){plain})({delimiter}|\r\n|\r|\n|\Z)')
    records: list[list[tuple[int, int]]] = []
    record: list[tuple[int, int]] = []
    position = 1 if text.startswith("\ufeff") else 0
    while True:
        found = cell.match(text, position)
        if found is None:
            raise ClassroomError(f"{name} has a quotation mark that is never closed.")
        record.append(found.span(1))
        position = found.end()
        if found[2] != delimiter:
            if len(record) > 1 or text[slice(*record[0])].strip():
                records.append(record)
            record = []
        if not found[2]:
            return records


def _value(raw: str) -> str:
    inner = raw.strip(" ")
    if len(inner) > 1 and inner[0] == inner[-1] == '"':
        return inner[1:-1].replace('""', '"')
    return raw
