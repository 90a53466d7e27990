"""What students wrote, made harmless for where it goes: pages, terminals, spreadsheets, files.

Escaping for HTML is the templates' and `cards`'s; here is what no escaping takes away.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from typing import Any

MAX_PRINTED = 20_000
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Controls that cannot be seen, and marks that make text read in another order than it is stored
# or hide some of it. Joiners stay: emoji and several scripts need them.
HIDDEN = (
    "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f"
)
# Halves of characters can be written nowhere.
UNSEEN = re.compile(f"[\x00-\x08\x0b-\x1f\ud800-\udfff{HIDDEN}]")
# Signs with which spreadsheets begin a formula, in Western and in full width.
FORMULA = "=+-@＝＋－＠"
# The same behind a sign at which a spreadsheet of another country may cut a line into cells.
INNER = re.compile(rf"([;,|\t][ \t\"']*)(?=[{re.escape(FORMULA)}])")

GUARDED = re.compile(rf"([;,|\t][ \t\"']*)'(?=[{re.escape(FORMULA)}])")


def visible(text: Any, limit: int = MAX_PRINTED) -> str:
    """`text` as a reader sees it: no terminal escapes, no unseen characters, not without end."""
    text = text if isinstance(text, str) else "" if text is None else str(text)
    # Escapes can be long: cut generously first, exactly afterwards.
    text = ANSI.sub("", text[: 8 * limit].replace("\r\n", "\n"))
    if "\r" in text:  # A progress bar: what stayed on the line.
        text = "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    text = UNSEEN.sub("\ufffd", text)
    if len(text) > limit:
        text = text[:limit].rstrip() + "\n… the rest is left out"
    return text


def one_line(text: Any, limit: int = 400) -> str:
    """`text` as one visible line, for a terminal or a log."""
    return re.sub(r"[\n\t]", " ", visible(text, limit))


def reason_of(error: Exception) -> str:
    """An exception in a few words, for a sentence in brackets."""
    return one_line(f"{type(error).__name__}: {error}".removesuffix(": "), 300)


def cell(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    value = value.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
    # Blanks before the sign do not stop every spreadsheet.
    guard = value.lstrip(" \t\r\n\u00a0\ufeff")[:1]
    if (guard and guard in FORMULA) or value[:1] in ("\t", "\r", "\n"):
        value = "'" + value
    return UNSEEN.sub("\ufffd", INNER.sub(r"\1'", value))


def plain(text: str) -> str:
    """What `cell` was given, but for what cannot be seen."""
    if text[:1] == "'" and (text[1:].lstrip()[:1] or " ") in FORMULA:
        text = text[1:]
    return GUARDED.sub(r"\1", text)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV that spreadsheets open without running anything."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def json_text(value: Any) -> str:
    """JSON that shows what it holds in a terminal too, and reads back the same."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    text = text.encode("utf-8", "replace").decode("utf-8")
    # What is below the space is escaped already, but for the line breaks between the values.
    return re.sub(f"[{HIDDEN}]", lambda match: _escaped(match[0]), text)


def _escaped(char: str) -> str:
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]
