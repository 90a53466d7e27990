"""Whatever a student hands in, made into a notebook that can be graded.

The result always holds exactly the released cells, in the released order and with the released
metadata, and between them the student's own cells. Each change is reported in plain words.

Two rules hold throughout:

- **No invented points.** Instructions, setup and check cells are the released ones; what a student
  wrote is only ever moved to the cell it belongs to. A cell that is gone comes back as its stub.
- **No lost text.** Code or prose that has no place of its own stays as an extra cell: a code cell
  that still runs where it stood, or a raw cell where running it would change what is graded.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.common import paths
from autograder.common.definitions import DEFINITIONS
from autograder.grading.collect import MAX_FILE_BYTES, too_large

MAX_BYTES = 64 * 2**20  # of what is parsed: in memory it can take ten times as much
MAX_CELLS = 5000
MAX_VALUES = 4_000_000  # Python needs a hundred bytes for a value that takes three in the file.
MAX_BRACKETS = 10_000_000  # in outputs that are left out unread: seconds
MAX_TEXT = 8 * 2**20  # of all sources together
MAX_PARSED = 200_000
BIG_OUTPUTS = 2**20
SCHEMA = 3
CELL_TYPES = ("code", "markdown", "raw")
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
DEFINITION = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
CHECK_CALL = re.compile(r"""^check\(\s*(["'])(\w+)\1\s*\)\s*;?\s*(?:#.*)?$""", re.MULTILINE)
# An unescaped quote stands in no string, so that these are keys, whatever else a notebook holds.
OUTPUTS = re.compile(rb'[\s{,]"outputs"\s*:\s*\[')
CELL_TYPE = re.compile(rb'[\s{,]"cell_type"\s*:')
TO_BRACKET = re.compile(rb'(?:[^"\[\]]++|"(?:[^"\\]++|\\.)*+")*+([\[\]])', re.DOTALL)
CELL_START = re.compile(
    r'\{\s*"(?:cell_type|attachments|execution_count|id|metadata|outputs|source|collapsed)"\s*:'
)
JSON_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)("|\Z)', re.DOTALL)
# Both sides of a conflict; between them may stand what they had in common.
LINES = r"(?:(?![<|=>]{7}).*\n)*+"
CONFLICT = re.compile(
    rf"^<{{7}}.*\n({LINES})(?:\|{{7}}.*\n{LINES})?={{7}}[ \t\r]*\n({LINES})>{{7}}.*\n?",
    re.MULTILINE,
)
CUT_SHORT = object()  # The "fragment" of a cell that is one: nothing in a file can be this.
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")

Way = Callable[[str], tuple[dict[str, Any], list[str]] | None]  # of reading a file's text


class Unreadable(Exception):
    """The file holds no notebook; the message says what it is instead."""


@dataclass
class RepairedNotebook:
    """`nb` can always be graded; `status` is "ok", "repaired" or "unreadable" (all stubs then)."""

    nb: NotebookNode
    repairs: list[str] = field(default_factory=list)
    status: str = "ok"
    reason: str = ""


# ---------------------------------------------------------------------------------------------
# From bytes to JSON


def read_notebook(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """The notebook in `data` as plain JSON with a list of cells, and what had to be mended.

    Raises Unreadable, and nothing else, when there is no notebook to be found.
    """
    data, dropped = _bounded(data)
    if not data.strip(b"\x00 \t\r\n"):
        raise Unreadable("the file is empty")
    text, repairs = _decode(data)
    repairs = dropped + repairs
    text = text.strip("\x00 \t\r\n")
    found = _understood(text, (_whole, _merged, _salvaged))
    if found is None:
        raise Unreadable(_what_is(text))
    notebook, how = found
    return notebook, repairs + how


def _understood(text: str, ways: Iterable[Way]) -> tuple[dict[str, Any], list[str]] | None:
    """What the first of several ways to read a text makes of it."""
    for way in ways:
        try:
            found = way(text)
        except (ValueError, RecursionError, MemoryError):
            continue
        if found is not None:
            return found
    return None


def _bounded(data: bytes) -> tuple[bytes, list[str]]:
    """The file's bytes, without the outputs if they are too many with them; and what was dropped.

    Raises Unreadable when they are too many all the same.
    """
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(too_large(len(data)))
    repairs = []
    if _too_much(data):
        size = len(data)
        data = _without_outputs(data)
        if len(data) < size:
            repairs.append(f"dropped {(size - len(data)) / 2**20:.0f} MB of outputs")
        said = _too_much(data)
        if said:
            raise Unreadable(f"the file has {said} besides its outputs; hand in the notebook alone")
    return data, repairs


def _too_much(data: bytes) -> str:
    """What there is more of than can be parsed; "" if it can."""
    if len(data) > MAX_BYTES:
        return f"{len(data) >> 20} MB, more than {MAX_BYTES >> 20} MB,"
    if sum(data.count(sign) for sign in (b"{", b"[", b",")) > MAX_VALUES:
        return f"more than {MAX_VALUES // 10**6} million values"
    return ""


def _without_outputs(data: bytes) -> bytes:
    """A notebook's JSON with empty outputs; where they do not end, the rest stays as it is."""
    parts: list[bytes] = []
    kept = 0
    brackets = MAX_BRACKETS
    while len(parts) < 10 * MAX_CELLS and (match := OUTPUTS.search(data, kept)):
        start = position = match.end()
        depth = 1
        while depth and brackets and (found := TO_BRACKET.match(data, position)):
            position = found.end()
            depth += 1 if found[1] == b"[" else -1
            brackets -= 1
        # In damaged JSON they could end anywhere, and take cells with them.
        if depth or CELL_TYPE.search(data, start, position):
            break
        parts.append(data[kept:start])
        kept = position - 1
    return b"".join([*parts, data[kept:]])


def _decode(data: bytes) -> tuple[str, list[str]]:
    """The text of `data`, whatever its encoding."""
    magic = {
        b"PK\x03\x04": "a zip archive",
        b"\x1f\x8b": "a gzip archive",
        b"%PDF": "a PDF",
        b"Rar!": "a RAR archive",
        b"7z\xbc\xaf": "a 7z archive",
        b"\x89PNG": "a picture",
        b"\xff\xd8\xff": "a picture",
    }
    for start, kind in magic.items():
        if data.startswith(start):
            raise Unreadable(f"the file is {kind}, not a notebook; hand in the .ipynb file")
    encoding = json.detect_encoding(data)
    if encoding == "utf-8-sig":
        text = data.decode(encoding, "replace")
        return text, ["removed a byte-order mark at the start of the file"]
    if encoding != "utf-8":
        text = data.decode(encoding, "replace")
        return text, [f"converted the file from {encoding[:6].upper()} to UTF-8"]
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
    if re.search("[^\x00-\x7f\ufffd]", text):
        return text, ["replaced bytes that are not UTF-8"]  # UTF-8 with a few damaged bytes.
    return data.decode("cp1252", "replace"), ["converted the file from Latin-1 to UTF-8"]


def _loads(text: str) -> Any:
    return json.loads(text, strict=False)


def _as_notebook(value: Any) -> dict[str, Any] | None:
    """`value` as a notebook with "cells", or None when it is other JSON."""
    if isinstance(value, list) and value and all(_is_cell(item) for item in value):
        return {"cells": value}
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("cells"), list):
        return value
    sheets = value.get("worksheets")
    if isinstance(sheets, list):
        cells: list[Any] = []
        for sheet in sheets:
            if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list):
                cells += sheet["cells"]
        return {**{k: v for k, v in value.items() if k != "worksheets"}, "cells": cells}
    return None


def _is_cell(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("cell_type"), str)
        and ("source" in value or "input" in value)
    )


def _whole(text: str) -> tuple[dict[str, Any], list[str]] | None:
    """Undamaged JSON."""
    notebook = _as_notebook(_loads(text))
    return None if notebook is None else (notebook, [])


def _merged(text: str) -> tuple[dict[str, Any], list[str]] | None:
    """A notebook with the marks of an unresolved merge: both versions, the second after the first.

    Which of two filled-in cells counts is decided as for any duplicate, by `_choose`.
    """
    mine, conflicts = CONFLICT.subn(r"\1", text)
    if not conflicts:
        return None
    versions = (mine, CONFLICT.sub(r"\2", text))
    sides = [_understood(version, (_whole, _salvaged)) for version in versions]
    notebooks = [side[0] for side in sides if side is not None]
    if not notebooks:
        return None
    cells = list(notebooks[0]["cells"])
    seen = {_source(cell) for cell in cells if isinstance(cell, dict)}
    for other in notebooks[1:]:
        cells += [
            cell for cell in other["cells"] if isinstance(cell, dict) and _source(cell) not in seen
        ]
    repairs = ["resolved an unfinished merge: both versions were kept"]
    return {**notebooks[0], "cells": cells}, repairs


def _salvaged(text: str) -> tuple[dict[str, Any], list[str]] | None:
    """The cells that can still be read in damaged JSON."""
    cells = _cells_in(text)
    if not cells:
        return None
    whole = sum(not _is_fragment(cell) for cell in cells)
    version = re.search(r'"nbformat"\s*:\s*(\d)', text)
    notebook: dict[str, Any] = {"cells": cells}
    if version:
        notebook["nbformat"] = int(version[1])
    say = f"recovered {_count(whole, 'cell')} from a damaged file"
    if whole < len(cells):
        say += f"; what was left of {_count(len(cells) - whole, 'more cell')} is kept as text"
    return notebook, [say]


def _cells_in(text: str) -> list[dict[str, Any]]:
    """All cells in a piece of damaged JSON, those cut short as cells with a "fragment" mark."""
    decoder = json.JSONDecoder(strict=False)
    # All attempts together scan a few times as much as there is: values that are open at the end
    # could otherwise be scanned once for each start.
    left = 4 * len(text) + 2**20
    cells: list[dict[str, Any]] = []
    position, damaged = 0, None
    for number, match in enumerate(CELL_START.finditer(text)):
        if left <= 0 or number > 10 * MAX_CELLS or len(cells) > MAX_CELLS:
            break  # A damaged file is worth some effort, but not minutes.
        start = match.start()
        if start < position:
            continue
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            # An open string is reported where it begins, and was scanned to the end.
            told = len(text)
            if isinstance(error, json.JSONDecodeError) and "Unterminated" not in error.msg:
                told = error.pos
            left -= told - start + 1
            damaged = start if damaged is None else damaged
            continue
        notebook = _as_notebook(value)
        if _is_cell(value) or notebook is not None:
            if damaged is not None:
                cells += _fragments(text[damaged:start])
            cells += [value] if notebook is None else notebook["cells"]
            damaged = None
    if damaged is not None:
        cells += _fragments(text[damaged:])
    return cells


def _fragments(text: str) -> list[dict[str, Any]]:
    """The sources in a stretch of JSON that does not parse."""
    cells = []
    before = 0
    for match in re.finditer(r'"(?:source|input)"\s*:\s*(\[|(?="))', text):
        if match.start() < before:
            continue
        listed, position = match[1] == "[", match.end()
        parts: list[str] = []
        complete = False
        while True:
            blank = re.compile(r"[\s,]*").match(text, position)
            position = blank.end() if blank else position
            string = JSON_STRING.match(text, position)
            if not string:
                complete = listed and text[position : position + 1] == "]"
                break
            begin, end = string.span(1)
            body = text[begin : min(end, begin + MAX_TEXT + 1)]  # More would be left out anyway.
            if not string[2] or len(body) < end - begin:
                body = re.sub(r"\\(?:u[0-9a-fA-F]{0,3})?\Z", "", body)
            try:
                parts.append(json.loads(f'"{body}"', strict=False))
            except ValueError:
                parts.append(body)
            position = string.end()
            if not string[2]:
                break
            if not listed:
                complete = True
                break
        head = text[before : match.start()]
        before = position
        source = "".join(parts)
        if not source.strip():
            continue
        kinds = re.findall(r'"cell_type"\s*:\s*"(\w+)"', head)
        grade = re.findall(r'"grade_id"\s*:\s*"([^"\\]*)"', head)
        if complete and kinds:
            cell: dict[str, Any] = {"cell_type": kinds[-1], "source": source, "metadata": {}}
            if grade:
                cell["metadata"] = {"nbgrader": {"grade_id": grade[-1], "schema_version": SCHEMA}}
            cells.append(cell)
        else:
            cell = {"cell_type": "raw", "source": source, "metadata": {}, "fragment": CUT_SHORT}
            cells.append(cell)
    return cells


def _is_fragment(value: Any) -> bool:
    return isinstance(value, dict) and value.get("fragment") is CUT_SHORT


def _what_is(text: str) -> str:
    """One clause on what a file without a notebook seems to be."""
    if text[:1] == "<":
        return "the file is a web page, not a notebook; hand in the .ipynb file"
    if text[:1] in "{[":
        try:
            _loads(text)
        except (ValueError, RecursionError):
            return "the file is damaged and no cell in it can be read; hand it in again"
        return "the file holds other data than a notebook; hand in the .ipynb file"
    if DEFINITION.search(text) or re.search(r"^(?:import|from) \w+", text, re.MULTILINE):
        return "the file is a Python script, not a notebook; hand in the .ipynb file"
    return "the file is not a notebook; hand in the .ipynb file"


# ---------------------------------------------------------------------------------------------
# Cells


@dataclass
class Cell:
    """One submitted cell, cleaned of everything that could not be trusted."""

    type: str
    source: str
    id: str | None = None
    grade_id: str | None = None
    graded: bool = False  # It carries nbgrader metadata of some kind.
    schema: int | None = None
    attachments: dict[str, Any] | None = None
    fragment: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """What the cell defines at its top level; empty for prose."""
        return () if self.fragment else defined_names(self.source)


def _source(cell: dict[str, Any]) -> str:
    """The source of a raw JSON cell as text that can be written as UTF-8."""
    source = cell.get("source", cell.get("input", ""))
    if isinstance(source, list):
        try:
            source = "".join(source)
        except TypeError:
            source = "".join(map(str, source))
    elif source is None:
        source = ""
    elif not isinstance(source, str):
        source = json.dumps(source, default=str)
    # Lone surrogates cannot be encoded, NUL cannot be compiled.
    source = source.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
    return source.replace("\r\n", "\n").replace("\r", "\n")


def _attachments(value: Any) -> dict[str, Any] | None:
    """The pictures of a markdown cell; anything else that calls itself an attachment goes."""
    if not isinstance(value, dict):
        return None
    kept = {}
    for name, bundle in value.items():
        if isinstance(bundle, dict):
            images = {
                kind: body
                for kind, body in bundle.items()
                if kind in IMAGES
                and isinstance(body, str)
                and re.fullmatch(r"[A-Za-z0-9+/=\s]*", body)
            }
            if images:
                kept[name] = images
    return kept or None


def _clean(value: Any) -> Cell | None:
    """One JSON value from the list of cells; None when nothing in it is worth keeping."""
    if not isinstance(value, dict):
        text = value if isinstance(value, str) else ""
        return Cell("raw", _source({"source": text})) if text.strip() else None
    kind = value.get("cell_type")
    source = _source(value)
    if kind == "heading":  # Notebook format 3.
        level = value.get("level")
        depth = level if isinstance(level, int) and 1 <= level <= 6 else 1
        kind, source = "markdown", "#" * depth + " " + source
    if kind in ("html", "text"):
        kind = "markdown"
    if kind not in CELL_TYPES:
        kind = "raw"
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    nbgrader = metadata.get("nbgrader")
    nbgrader = nbgrader if isinstance(nbgrader, dict) else {}
    grade_id = nbgrader.get("grade_id")
    schema = nbgrader.get("schema_version", 0)
    own = value.get("id")
    return Cell(
        type=kind,
        source=source,
        id=own if isinstance(own, str) and CELL_ID.fullmatch(own) else None,
        grade_id=grade_id if isinstance(grade_id, str) and grade_id else None,
        graded=bool(nbgrader),
        schema=schema if isinstance(schema, int) else 0,
        attachments=_attachments(value.get("attachments")) if kind == "markdown" else None,
        fragment=_is_fragment(value),
    )


def _plain_python(source: str) -> str:
    """`source` with lines for IPython (magics, shell, help) turned into comments."""
    return re.sub(r"(?m)^(\s*)([%!?].*|.*\?{1,2}[ \t]*)$", r"\1pass", source)


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes and the like are not ours.
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _parse(source: str) -> ast.Module | None:
    """The syntax tree of `source`, or None; its magics count as comments."""
    if len(source) > MAX_PARSED:
        return None
    tree = _parsed(source)
    return _parsed(_plain_python(source)) if tree is None else tree


def defined_names(source: str) -> tuple[str, ...]:
    """Functions and classes defined at the top level of `source`, even if it does not parse."""
    tree = _parse(source)
    if tree is None:
        return tuple(dict.fromkeys(DEFINITION.findall(source)))
    return tuple(dict.fromkeys(node.name for node in tree.body if isinstance(node, DEFINITIONS)))


def checked_name(source: str) -> str | None:
    """`masked_softmax` for a cell that only says `check("masked_softmax")`, else None."""
    if "check(" not in source:
        return None
    lines = [line.strip() for line in source.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if len(lines) == 1 and (match := CHECK_CALL.match(lines[0])):
        return match[2]
    return None


def _same(one: str, other: str) -> bool:
    """Equal but for trailing blanks and blank lines."""
    return one == other or _lines(one) == _lines(other)


def _lines(source: str) -> list[str]:
    return [line.rstrip() for line in source.splitlines() if line.strip()]


def _untouched(source: str, stub: str) -> bool:
    """Nothing was written: the stub, whatever became of its comments, or nothing at all."""
    if not source.strip() or _same(source, stub):
        return True
    mine, released = _parse(source), _parse(stub)
    if mine is None or released is None or not mine.body or not released.body:
        return False
    try:
        return ast.dump(mine) == ast.dump(released)
    except RecursionError:
        return False


# ---------------------------------------------------------------------------------------------
# The released notebook


@dataclass
class Slot:
    """One released cell and what was handed in for it."""

    cell: NotebookNode
    kind: str  # "solution", "check", "written", "locked" or "text"
    grade_id: str | None
    names: tuple[str, ...] = ()  # What a solution cell defines.
    found: list[Cell] = field(default_factory=list)
    before: list[Cell] = field(default_factory=list)
    after: list[Cell] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The name by which a person knows the cell."""
        if self.kind == "check":
            return checked_name(self.cell.source) or str(self.grade_id)
        return str(self.grade_id)


def released(unit: str) -> NotebookNode:
    """The notebook that was handed out for `unit`; LookupError says how to make it."""
    path = paths.EXERCISES / unit / f"{unit}.ipynb"
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except OSError as error:
        raise LookupError(
            f"There is no released notebook for {unit}; "
            f"write it with python -m autograder build {unit}."
        ) from error


def _slots(release: NotebookNode) -> list[Slot]:
    slots = []
    for cell in release.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution"):
            kind = "written" if marks.get("grade") else "solution"
        elif marks.get("grade"):
            kind = "check"
        else:
            kind = "locked" if marks.get("grade_id") else "text"
        names: tuple[str, ...] = ()
        if kind == "solution":
            names = defined_names(cell.source)
            # Helpers may be given in a stub; what identifies it is the exercise's own name.
            if marks["grade_id"] in names:
                names = (marks["grade_id"],)
        slots.append(Slot(cell, kind, marks.get("grade_id"), names))
    return slots


# ---------------------------------------------------------------------------------------------
# Fitting the one to the other


def repair(data: bytes, release: NotebookNode) -> RepairedNotebook:
    """A gradable notebook from the bytes of a submitted one. Never raises."""
    try:
        raw, repairs = read_notebook(data)
    except Unreadable as error:
        return RepairedNotebook(blank(release), [], "unreadable", str(error))
    return _finish(raw, release, repairs)


def repair_file(
    path: Path, assignment: Any, release: NotebookNode | None = None
) -> RepairedNotebook:
    """Repair the file at `path`, a submission of `assignment` (an Assignment or its unit)."""
    unit = getattr(assignment, "unit", assignment)
    release = released(unit) if release is None else release
    try:
        size = path.stat().st_size
        if size <= MAX_FILE_BYTES:
            return repair(path.read_bytes(), release)
        reason = too_large(size)
    except OSError as error:
        reason = f"the file cannot be opened ({error.strerror or error})"
    return RepairedNotebook(blank(release), [], "unreadable", reason)


def blank(release: NotebookNode) -> NotebookNode:
    """The released notebook itself: what is graded when nothing was handed in."""
    notebook = copy.deepcopy(release)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def _finish(raw: dict[str, Any], release: NotebookNode, repairs: list[str]) -> RepairedNotebook:
    if len(raw["cells"]) > MAX_CELLS:
        repairs.append(f"left out all but the first {MAX_CELLS} cells")
        raw = {**raw, "cells": raw["cells"][:MAX_CELLS]}
    repairs += _about_notebook(raw)
    cells: list[Cell] = []
    room = MAX_TEXT
    for number, cell in enumerate(map(_clean, raw["cells"])):
        if cell is None:
            continue
        room -= len(cell.source)
        if room < 0:
            say = f"left out all but the first {_count(number, 'cell')}"
            repairs.append(f"{say}; their text had more than {MAX_TEXT // 2**20} MB")
            raw = {**raw, "cells": raw["cells"][:number]}
            break
        cells.append(cell)
    repairs += _about_cells(raw, cells)
    slots = _slots(release)
    front, found = _match(cells, slots)
    repairs += found
    repairs += _join_split(slots)
    repairs += _choose(slots)
    repairs += _join_split(slots)  # Some parts stand together only now.
    try:
        notebook = _compose(front, slots, release)
    except nbformat.ValidationError as error:
        # No damage known leads here; whatever it is, the text is there for a person to read.
        notebook = blank(release)
        notebook.cells += [
            nbformat.v4.new_raw_cell(cell.source) for cell in cells if cell.source.strip()
        ]
        message = str(error).splitlines()[0]
        repairs = [f"could not put the cells in place ({message}); all of them are kept as text"]
    status = "repaired" if repairs else "ok"
    return RepairedNotebook(notebook, repairs, status)


def _about_notebook(raw: dict[str, Any]) -> list[str]:
    """What the notebook's own fields say: format, kernel."""
    repairs = []
    version = raw.get("nbformat")
    if isinstance(version, int) and not isinstance(version, bool) and 0 < version < 4:
        repairs.append(f"converted the notebook from format {version} to format 4")
    metadata = raw.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    if isinstance(kernel, dict):
        language = kernel.get("language")
        name = str(kernel.get("name", "")).lower()
        known = isinstance(language, str) and language.lower() not in ("", "python")
        if known or ((not language and name in ("ir", "bash", "octave")) or "julia" in name):
            repairs.append(f"replaced the kernel {_quoted(name or str(language))} by Python's")
    return repairs


def _about_cells(raw: dict[str, Any], cells: Sequence[Cell]) -> list[str]:
    """What had to be corrected in the cells as such."""
    repairs = []
    outputs = (cell.get("outputs") for cell in raw["cells"] if isinstance(cell, dict))
    size = sum(len(json.dumps(value, ensure_ascii=False)) for value in outputs if value)
    if size > BIG_OUTPUTS:
        repairs.append(f"dropped {size / 2**20:.0f} MB of outputs")
    old = sorted({cell.schema or 0 for cell in cells if cell.graded and cell.schema != SCHEMA})
    if old:
        versions = " and ".join(str(version) for version in old)
        repairs.append(f"brought nbgrader's cell metadata up to date (it had version {versions})")
    minor = raw.get("nbformat_minor")
    if raw.get("nbformat") == 4 and isinstance(minor, int) and minor >= 5:
        own = [cell.id for cell in cells]
        repeated = sum(one is not None for one in own) - len({one for one in own if one})
        bad = own.count(None) + repeated
        if bad:
            repairs.append(f"gave {_count(bad, 'cell')} a new id (missing, invalid or used twice)")
    return repairs


def _match(cells: list[Cell], slots: list[Slot]) -> tuple[list[Cell], list[str]]:
    """Give each submitted cell to the slot it belongs to; the others follow the cell above them.

    Returns the cells that stand before all released ones, and the repairs.
    """
    home = _homes(cells, slots)
    repairs = _about_matching(cells, slots, home)
    front: list[Cell] = []
    anchor: Slot | None = None
    for index, cell in enumerate(cells):
        slot = home.get(index)
        if slot is not None:
            slot.found.append(cell)
            anchor = slot
            continue
        # An own cell runs where the student ran it: after the cell above it.
        (front if anchor is None else anchor.after).append(cell)
    return front, repairs


def _homes(cells: list[Cell], slots: list[Slot]) -> dict[int, Slot]:
    """Which slot the cells belong to: by nbgrader's id, by what they define, by id, by text."""
    home: dict[int, Slot] = {}
    by_grade = {slot.grade_id: slot for slot in slots if slot.grade_id}
    by_id = {slot.cell.get("id"): slot for slot in slots if slot.cell.get("id")}
    solutions = {slot.names[0]: slot for slot in slots if slot.kind == "solution" and slot.names}
    for index, cell in enumerate(cells):
        if cell.grade_id not in by_grade or cell.fragment:
            continue
        slot = by_grade[cell.grade_id]
        # Instructions that were written over with an exercise's code are that exercise's.
        elsewhere = slot.kind == "locked" and any(name in solutions for name in cell.names)
        if not elsewhere or _same(cell.source, slot.cell.source):
            home[index] = slot

    def free(index: int) -> bool:
        return index not in home and not cells[index].fragment

    def taken() -> set[int]:
        return {id(slot) for slot in home.values()}

    # Cells without metadata that define an exercise which nobody else fills in.
    filled = {
        id(home[index])
        for index, cell in enumerate(cells)
        if index in home and not _untouched(cell.source, home[index].cell.source)
    }
    checks = {slot.label: slot for slot in slots if slot.kind == "check"}
    claimed = taken()
    for index, cell in enumerate(cells):
        if not free(index) or cell.type == "raw":
            continue  # Raw is how text is kept that must not run: it stays that.
        name = checked_name(cell.source)
        if name in checks and id(checks[name]) not in claimed:
            home[index] = checks[name]
            continue
        for name in cell.names:
            defined = solutions.get(name)
            if defined is not None and id(defined) not in filled:
                home[index] = defined
                break
    claimed = taken()
    for index, cell in enumerate(cells):
        marked = by_id.get(cell.id)
        if free(index) and marked is not None and id(marked) not in claimed:
            # An id says less than a definition: a copied id must not take another's place.
            defines = any(name in solutions for name in cell.names)
            if not defines or marked.kind == "solution":
                home[index] = marked
                claimed.add(id(marked))
    lost = [index for index, cell in enumerate(cells) if free(index) and cell.type != "raw"]
    by_text: dict[tuple[str, ...], Slot] = {}
    for slot in slots if lost else ():
        by_text.setdefault(tuple(_lines(slot.cell.source)), slot)
    for index in lost:
        same = by_text.get(tuple(_lines(cells[index].source)))
        if same is not None and id(same) not in claimed:
            home[index] = same
            claimed.add(id(same))
    _find_prose(cells, slots, home)
    return home


def _find_prose(cells: list[Cell], slots: list[Slot], home: dict[int, Slot]) -> None:
    """Texts and written answers that lost their metadata and ids: by first line, then by place."""
    order = {id(slot): position for position, slot in enumerate(slots)}

    def open_slots(*kinds: str) -> list[Slot]:
        taken = {id(slot) for slot in home.values()}
        return [slot for slot in slots if slot.kind in kinds and id(slot) not in taken]

    for slot in open_slots("written", "text"):
        first = slot.cell.source.strip().partition("\n")[0].rstrip()
        for index, cell in enumerate(cells):
            if index in home or cell.fragment or cell.type == "raw" or not first:
                continue
            if cell.source.strip().partition("\n")[0].rstrip() == first:
                home[index] = slot
                break
    for slot in open_slots("written"):
        place = order[id(slot)]
        above = [index for index, other in home.items() if order[id(other)] < place]
        below = [index for index, other in home.items() if order[id(other)] > place]
        low, high = max(above, default=-1), min(below, default=len(cells))
        between = [
            index
            for index in range(low + 1, high)
            if index not in home and cells[index].type == "markdown" and cells[index].source.strip()
        ]
        if len(between) == 1:
            home[between[0]] = slot


def _about_matching(cells: list[Cell], slots: list[Slot], home: dict[int, Slot]) -> list[str]:
    repairs = []
    bare = [
        slot.label
        for index, slot in home.items()
        if slot.grade_id and slot.kind != "locked" and cells[index].grade_id != slot.grade_id
    ]
    if bare:
        repairs.append(f"recognised cells without nbgrader's metadata: {_listing(bare)}")
    foreign = [
        cell
        for index, cell in enumerate(cells)
        if cell.graded and cell.grade_id and (index not in home or home[index].grade_id is None)
    ]
    if foreign:
        say = f"{_count(len(foreign), 'cell')} from another unit"
        if any(slot.kind in ("solution", "check", "written") for slot in home.values()):
            repairs.append(f"took {say} out of the grading; the text stays")
        else:
            repairs.append(f"found {say} and none of this one")
    retyped = []
    for index, slot in home.items():
        if cells[index].type != slot.cell.cell_type and slot.grade_id:
            retyped.append(f"{slot.label} ({cells[index].type} to {slot.cell.cell_type})")
    if retyped:
        repairs.append(f"restored the type of a cell: {_listing(retyped)}")
    return repairs


def _join_split(slots: list[Slot]) -> list[str]:
    """Put together functions that were cut in the middle.

    Only where no part below can run alone and the parts one after the other can, so that joining
    changes nothing but the cut. Any other continuation stays a cell of its own.
    """
    repairs: list[str] = []
    for number, slot in enumerate(slots):
        if slot.kind != "solution" or not slot.found:
            continue
        cell, *others = slot.found
        if not set(slot.names) & set(cell.names):
            continue
        next_before = slots[number + 1].before if number + 1 < len(slots) else []
        below = [part for part in (*others, *slot.after, *next_before) if part.source.strip()]
        joined = cell.source
        for count, part in enumerate(below[:5], start=1):
            if part.fragment or part.type != "code" or _parse(part.source) is not None:
                break
            joined = joined.rstrip("\n") + "\n" + part.source
            if _parse(joined) is not None:
                cell.source = joined
                for used in below[:count]:
                    used.source = ""
                slot.found = [part for part in slot.found if part.source]
                repairs.append(f"joined the cell of {slot.label}, which was split in the middle")
                break
    return repairs


def _choose(slots: list[Slot]) -> list[str]:
    """Decide which cell fills each slot; the others become the student's own cells."""
    repairs: list[str] = []
    # Instructions that were deleted or written into come back too, but are no damage.
    lost: dict[str, list[str]] = defaultdict(list)
    edited: dict[str, list[str]] = defaultdict(list)
    for slot in slots:
        if not slot.found:
            lost[slot.kind].append(slot.label)
        elif slot.kind == "solution":
            _choose_solution(slot, repairs)
        elif slot.kind == "written":
            _choose_written(slot, repairs)
        else:
            changed = _written(slot)
            if changed:
                edited[slot.kind].append(slot.label)
            if slot.kind == "check":
                # Stock nbgrader overwrites a check cell; what stood in it is kept but never runs.
                changed = [_as_text(cell) for cell in changed]
            slot.after[:0] = changed
            slot.found = []
    everything = [cell for slot in slots for cell in (*slot.before, *slot.found, *slot.after)]
    defined = {name for cell in everything if cell.type == "code" for name in cell.names}
    for slot in slots:
        if slot.kind == "solution" and not slot.found and defined.intersection(slot.names):
            # The stub would overwrite a definition that a merged cell brings along.
            note = f"# The code of {slot.label} stands in another cell."
            slot.found = [Cell("code", note)]
    for kind, say in (
        ("check", "restored the deleted check cell of"),
        ("solution", "restored the deleted solution cell of"),
        ("written", "restored the deleted question"),
        ("locked", "restored the deleted cell"),
    ):
        if lost[kind]:
            repairs.append(f"{say} {_listing(lost[kind])}")
    if edited["check"]:
        repairs.append(
            f"restored the edited check cell of {_listing(edited['check'])}; "
            "what stood there is kept as text"
        )
    if edited["locked"]:
        repairs.append(
            f"restored the edited cell {_listing(edited['locked'])}; "
            "what was written there runs as a cell of its own"
        )
    return repairs


def _choose_solution(slot: Slot, repairs: list[str]) -> None:
    """Of several cells for one exercise the last that was filled in counts.

    Earlier ones that define the same name run before it, as they did for the student; parts that
    define something else keep their place around it. A copy of the stub is dropped.
    """
    stub = slot.cell.source
    rivals = [cell for cell in slot.found if set(slot.names) & set(cell.names)]
    filled = [cell for cell in rivals if not _untouched(cell.source, stub)]
    written = [cell for cell in slot.found if cell.source.strip()]
    chosen = (filled or rivals or written or slot.found)[-1 if filled or rivals else 0]
    position = slot.found.index(chosen)
    before: list[Cell] = []
    after: list[Cell] = []
    for index, cell in enumerate(slot.found):
        if cell is chosen or _same(cell.source, stub) or _same(cell.source, chosen.source):
            continue
        rival = any(cell is other for other in rivals)
        (before if index < position or rival else after).append(cell)
    if len(rivals) > 1:
        if not filled:
            what = "all were still empty"
        elif len(filled) < len(rivals):
            what = "the last one with code in it counts"
        else:
            what = "the last one counts"
        repairs.append(f"found {slot.label} {len(rivals)} times: {what}")
    elif len(slot.found) > 1:
        repairs.append(
            f"found {_count(len(slot.found), 'cell')} marked as {slot.label}: "
            "the one that defines it counts, the others run beside it"
        )
    slot.found = [chosen]
    slot.before += before
    slot.after[:0] = after


def _choose_written(slot: Slot, repairs: list[str]) -> None:
    """Of several answers to one question the last that was written counts; the others stay."""
    written = _written(slot)
    chosen = (written or slot.found)[-1]
    others = [cell for cell in written if not _same(cell.source, chosen.source)]
    if len(slot.found) > 1:
        repairs.append(f"found the question {slot.label} {len(slot.found)} times: the last counts")
    slot.found = [chosen]
    slot.after[:0] = [_as_text(cell) for cell in others]


def _written(slot: Slot) -> list[Cell]:
    """The cells in which something else stands than what was released."""
    return [
        cell
        for cell in slot.found
        if cell.source.strip() and not _same(cell.source, slot.cell.source)
    ]


def _as_text(cell: Cell) -> Cell:
    """The cell as one that never runs, also when the result is repaired once more.

    Prose stays prose, unless it defines something and could be taken for an exercise's lost cell.
    """
    return Cell("raw", cell.source) if cell.type == "code" or cell.names else cell


def _compose(front: list[Cell], slots: list[Slot], release: NotebookNode) -> NotebookNode:
    """The notebook: released cells in order, the student's own between them."""
    notebook = NotebookNode(nbformat=4, nbformat_minor=5, metadata=copy.deepcopy(release.metadata))
    used = {slot.cell.get("id") for slot in slots}
    cells: list[NotebookNode] = []

    def extra(cell: Cell) -> None:
        if not cell.source.strip():
            return
        node = NotebookNode(cell_type=cell.type, metadata=NotebookNode(), source=cell.source)
        if cell.type == "code":
            node.outputs, node.execution_count = [], None
        if cell.attachments:
            node.attachments = NotebookNode(cell.attachments)
        own = cell.id
        if own is None or own in used:
            digest = hashlib.sha256(cell.source.encode()).hexdigest()[:12]
            own = next(
                name for n in range(len(used) + 1) if (name := f"own-{digest}-{n}") not in used
            )
        used.add(own)
        node.id = own
        cells.append(node)

    for cell in front:
        extra(cell)
    for slot in slots:
        for cell in slot.before:
            extra(cell)
        node = copy.deepcopy(slot.cell)
        node.setdefault("id", f"released-{len(cells)}")
        if slot.found:
            node.source = slot.found[0].source
            if node.cell_type == "markdown" and slot.found[0].attachments:
                node.attachments = NotebookNode(slot.found[0].attachments)
        if node.cell_type == "code":
            node.outputs, node.execution_count = [], None
        cells.append(node)
        for cell in slot.after:
            extra(cell)
    notebook.cells = cells
    nbformat.validate(notebook)
    return notebook


# ---------------------------------------------------------------------------------------------
# Words


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _quoted(name: str) -> str:
    return "".join(char for char in name if char.isprintable())[:40]


def _listing(names: Iterable[str]) -> str:
    """ "a, b and c"; a long list ends with how many more there are."""
    items = list(dict.fromkeys(names))
    if len(items) > 5:
        return f"{', '.join(items[:4])} and {len(items) - 4} more"
    if len(items) > 1:
        return f"{', '.join(items[:-1])} and {items[-1]}"
    return items[0]
