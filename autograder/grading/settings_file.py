"""Reads `grading.toml`: every setting is checked, each mistake told in one sentence."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from autograder.common import paths
from autograder.common.errors import AssignmentError, ClassroomError
from autograder.grading.collect import student_id
from autograder.grading.settings import FILE, SECONDS, Late, Settings, near
from autograder.sandbox.limits import Limits
from autograder.units.assignment import Assignment, load

MOST_POINTS = 10_000.0
MOST_ATTEMPTS = 1000
LONGEST = timedelta(days=3650)
GENERAL = ("due", "late", "extensions", "attempts", "attempts_count", "extra_attempts", "limits")
ONLY_FOR_ONE = ("leave_out", "points")
ONLY_FOR_ALL = ("db_url", "book")
LATE = {
    "percent": (0, 100),
    "per": ("day", "hour"),
    "grace_minutes": (0, 525_600),
    "most_percent": (0, 100),
    "nothing_after_days": (0, LONGEST.days),
}
LIMITS = {"seconds": (10, 86_400), "megabytes": (600, 1_000_000)}


def _shown(value: Any) -> str:
    """A value as it stands in the file, or nearly so."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, dict):
        return "a table"
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def read(path: Path, assignment: Assignment) -> Settings:
    """The settings in the file at `path`, as they are for `assignment`.

    Raises:
        ClassroomError: something in the file is wrong, also if it is about another unit.
    """
    return Reader(path).settings(assignment)


def of_course(course: Path, assignment: Assignment, file: Path | None = None) -> Settings:
    """The settings in `file`, else in the course's grading.toml, else those of nobody."""
    if file is None and not (course / FILE).is_file():
        return Settings()
    return read(course / FILE if file is None else file, assignment)


class Reader:
    """One settings file, and the sentences about what is wrong in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise ClassroomError(
                f"The settings {path} cannot be opened ({error.strerror or error}); "
                "correct the name or leave the option out."
            ) from error
        except UnicodeDecodeError as error:
            raise ClassroomError(f"{path} is not UTF-8 text; save it as UTF-8.") from error
        try:
            self.data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            said = str(error) or "too deeply nested"
            hint = ""
            if "overwrite" in said or "twice" in said or "mutate" in said:
                hint = " (the same name is given twice: keep one of the two)"
            raise ClassroomError(f"{path} cannot be read: {said}{hint}; correct it.") from error

    def wrong(self, key: str, value: Any, remedy: str) -> NoReturn:
        key = "".join(char if char.isprintable() else "?" for char in key)
        raise ClassroomError(f"{self.path}: {key} = {_shown(value)} {remedy}.")

    def unknown(
        self, key: str, known: Iterable[str], where: str = "", units: Iterable[str] = ()
    ) -> NoReturn:
        known, units = list(known), list(units)
        close = near(key, [*known, *units]) or f"; the settings are {', '.join(known)}"
        ofs = [unit for unit in units if paths.chapter_of(unit) == key]
        if ofs:
            close = f"; did you mean {', '.join(ofs[:-1])} or {ofs[-1]}?"
        elif not close.endswith("?"):
            close += f", and [{units[0]}] is the table of a unit." if units else "."
        raise ClassroomError(f"{self.path}: unknown setting {_shown(key)[1:-1]}{where}{close}")

    def settings(self, assignment: Assignment) -> Settings:
        """Everything in the file is checked; what is said for `assignment` comes out."""
        units = dict.fromkeys([*paths.UNITS, assignment.unit])
        general: dict[str, Any] = {}
        tables: dict[str, dict[str, Any]] = {}
        for key, value in self.data.items():
            if key in units:
                if not isinstance(value, dict):
                    self.wrong(key, value, f"must be a table; write [{key}] on a line of its own")
                tables[key] = value
            elif key in (*GENERAL, *ONLY_FOR_ALL):
                general[key] = value
            elif key in ONLY_FOR_ONE:
                self.wrong(key, value, f"belongs to one unit; write it below [{assignment.unit}]")
            else:
                self.unknown(key, (*GENERAL, *ONLY_FOR_ALL), units=units)
        everywhere = self._table(general, "", None)
        merged = {}
        for unit, table in tables.items():
            for key in table:
                if key in ONLY_FOR_ALL:
                    self.wrong(
                        f"{unit}.{key}",
                        "…",
                        "is for the whole course; write it above all tables",
                    )
                if key not in (*GENERAL, *ONLY_FOR_ONE):
                    self.unknown(key, (*GENERAL, *ONLY_FOR_ONE), f" in [{unit}]")
            about = assignment if unit == assignment.unit else _loaded(unit)
            own = self._table(table, f"{unit}.", about)
            merged[unit] = {**everywhere, **own}
            for key in ("late", "extensions", "extra_attempts", "limits"):  # Merged line by line.
                if key in own:
                    merged[unit][key] = {**everywhere.get(key, {}), **own[key]}
            self._together(merged[unit], f"{unit}.")
        if assignment.unit not in merged:
            self._together(everywhere, "")
        chosen = merged.get(assignment.unit, everywhere)
        own = {"late": Late(**chosen.get("late", {})), "limits": _limits(chosen.get("limits", {}))}
        return Settings(
            **{**chosen, **own},
            source=self.path,
            filed_due=chosen.get("due"),
        )

    def _table(
        self, table: dict[str, Any], place: str, assignment: Assignment | None
    ) -> dict[str, Any]:
        """The settings in one table, checked one by one."""
        readers: dict[str, Callable[[str, Any], Any]] = {
            "due": self._moment,
            "attempts": partial(self._count, least=1),
            "attempts_count": partial(self._one_of, known=("last", "best")),
            "late": partial(self._parts, known=LATE, example="percent = 10"),
            "limits": partial(self._parts, known=LIMITS, example="seconds = 180"),
            "extensions": partial(self._students, read=self._extension),
            "extra_attempts": partial(self._students, read=self._count),
            "leave_out": partial(self._leave_out, assignment=assignment),
            "points": partial(self._points, assignment=assignment),
            "db_url": self._address,
            "book": self._book,
        }
        return {key: readers[key](place + key, value) for key, value in table.items()}

    def _together(self, found: dict[str, Any], place: str) -> None:
        """What only makes sense with something else."""
        due = found.get("due")
        for student, until in found.get("extensions", {}).items():
            if due is not None and isinstance(until, datetime) and until <= due:
                self.wrong(
                    f"{place}extensions.{student}",
                    until,
                    f"is not after the due date, {due.isoformat()}; write a later date",
                )
        if found.get("extra_attempts") and found.get("attempts") is None:
            self.wrong(
                f"{place}extra_attempts",
                found["extra_attempts"],
                f"says nothing while any number is allowed; add {place}attempts = 1",
            )
        both = set(found.get("leave_out", ())) & set(found.get("points", {}))
        for name in sorted(both):
            self.wrong(
                f"{place}points.{name}",
                found["points"][name],
                "is left out as well; remove it from points or from leave_out",
            )

    # One value.

    def _number(self, key: str, value: Any, bounds: tuple[float, float]) -> float:
        least, most = bounds
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not math.isfinite(value) or not least <= value <= most:
            self.wrong(key, value, f"must be a number from {least:g} to {most:g}")
        return float(value)

    def _count(self, key: str, value: Any, least: int = 0) -> int:
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or not least <= value <= MOST_ATTEMPTS:
            self.wrong(key, value, f"must be a whole number from {least} to {MOST_ATTEMPTS}")
        return value

    def _one_of(self, key: str, value: Any, known: Sequence[str]) -> str:
        if value not in known:
            choice = " or ".join(f'"{one}"' for one in known)
            self.wrong(key, value, f"must be {choice}")
        return value

    def _moment(self, key: str, value: Any) -> datetime:
        """A date with a time and a time zone. Without a zone it is refused rather than guessed."""
        moment = value
        example = 'write it as 2030-01-31T18:00:00+01:00 or "2030-01-31 18:00:00 UTC"'
        if isinstance(value, str):
            from nbgrader.utils import parse_utc

            zone = re.search(r"(?:\d\s?Z|[+-]\d\d:?\d\d|\s[A-Za-z][\w/+-]*)$", value.strip())
            if zone is None:
                self.wrong(key, value, f"is no date with a time zone; {example}")
            try:
                import dateutil.tz

                word = zone[0].strip()
                known = not word[0].isalpha() or dateutil.tz.gettz(word) is not None
                moment = parse_utc(value.strip()).replace(tzinfo=UTC) if known else None
            except (ValueError, OverflowError, TypeError, AttributeError):
                moment = None
        if not isinstance(moment, datetime):
            self.wrong(key, value, f"is no date with time and time zone; {example}")
        if moment.utcoffset() is None:
            self.wrong(key, value, f"has no time zone; {example}")
        try:
            return moment.astimezone(UTC)
        except (OverflowError, ValueError):
            self.wrong(key, value, f"is too far away; {example}")

    def _duration(self, key: str, value: str) -> timedelta:
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*(minute|hour|day|week)s?\b", value)
        rest = re.sub(r"\d+(?:\.\d+)?\s*(?:minute|hour|day|week)s?\b|\band\b|,", "", value)
        seconds = sum(float(count) * SECONDS[word] for count, word in parts)
        if rest.strip() or not 0 < seconds <= LONGEST.total_seconds():
            self.wrong(
                key, value, 'is no extension; write "3 days", "36 hours" or the new due date'
            )
        return timedelta(seconds=seconds)

    def _extension(self, key: str, value: Any) -> datetime | timedelta:
        if isinstance(value, str) and not re.search(r"\d{4}-\d\d", value):
            return self._duration(key, value)
        if isinstance(value, (str, datetime, date)):
            return self._moment(key, value)
        if isinstance(value, dict):
            self.wrong(key, value, "is no extension; put a name with a dot in it into quotes")
        self.wrong(key, value, 'is no extension; write "3 days", "36 hours" or the new due date')

    def _address(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[\w+]+://\S*", value):
            # Not shown: it may hold a password.
            raise ClassroomError(
                f"{self.path}: {key} is no address of a database; "
                'write one such as "postgresql://user@host/gradebook".'
            )
        return value

    def _book(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s\"'<>]+", value):
            self.wrong(
                key, value, 'is no address of a book; write one such as "https://example.org/book"'
            )
        return str(value)

    def _lines(self, key: str, value: Any, example: str) -> dict[str, Any]:
        """A table below the one of a unit."""
        if not isinstance(value, dict):
            self.wrong(key, value, f"must be a table; write [{key}] and below it {example}")
        return value

    def _parts(
        self, key: str, value: Any, known: Mapping[str, tuple[Any, Any]], example: str
    ) -> dict[str, Any]:
        """A table of numbers within their bounds, or of one of two words."""
        found: dict[str, Any] = {}
        for name, part in self._lines(key, value, example).items():
            if name not in known:
                self.unknown(name, known, f" in [{key}]")
            read = self._one_of if isinstance(known[name][0], str) else self._number
            found[name] = read(f"{key}.{name}", part, known[name])
        return found

    def _students(self, key: str, value: Any, read: Callable[[str, Any], Any]) -> dict[str, Any]:
        """A table from students to something."""
        found: dict[str, Any] = {}
        for name, part in self._lines(key, value, "a line a student").items():
            student = student_id(name)
            if not name.strip():
                self.wrong(f'{key}."{name}"', part, "names nobody; write the student's name")
            if student in found:
                self.wrong(f"{key}.{name}", part, f"names {student} twice; keep one of the two")
            found[student] = read(f"{key}.{name}", part)
        return found

    def _known(self, key: str, name: Any, assignment: Assignment | None) -> str:
        """The name of an exercise or a written question."""
        if not isinstance(name, str):
            self.wrong(key, name, "must name an exercise, in quotes")
        if assignment is not None:
            names = (*assignment.names, *(question.name for question in assignment.questions))
            if name not in names:
                close = self._elsewhere(name, assignment) or near(name, names)
                close = close or f"; it has {', '.join(names)}"
                ending = "" if close.endswith("?") else "."
                raise ClassroomError(
                    f"{self.path}: {key}: {assignment.unit} has no exercise "
                    f"{_shown(name)}{close}{ending}"
                )
        return name

    def _elsewhere(self, name: str, assignment: Assignment) -> str:
        """Where else in the chapter there is an exercise or a question of that name."""
        chapter = paths.chapter_of(assignment.unit)
        for unit in (one for one in paths.UNITS if paths.chapter_of(one) == chapter):
            other = _loaded(unit)
            if other and name in (*other.names, *(one.name for one in other.questions)):
                return f"; it is one of {unit}: write it below [{unit}]"
        return ""

    def _leave_out(self, key: str, value: Any, assignment: Assignment | None) -> tuple[str, ...]:
        if not isinstance(value, list):
            self.wrong(key, value, 'must be a list; write ["causal_mask", "padding_mask"]')
        names = tuple(dict.fromkeys(self._known(key, name, assignment) for name in value))
        if assignment is not None and set(assignment.names) <= set(names):
            self.wrong(key, value, "leaves no exercise to grade; keep at least one")
        return names

    def _points(self, key: str, value: Any, assignment: Assignment | None) -> dict[str, float]:
        found = {}
        for name, part in self._lines(key, value, "an exercise a line").items():
            place = f"{key}.{name}"
            self._known(key, name, assignment)
            if part == 0 and not isinstance(part, bool) and isinstance(part, (int, float)):
                self.wrong(place, part, "must be above 0; to leave it out write it in leave_out")
            found[name] = self._number(place, part, (0, MOST_POINTS))
        return found


def _limits(found: dict[str, Any]) -> Limits:
    """The limits of a submission; half of its memory is for its own code, half to judge it."""
    usual = Limits()
    memory = usual.memory_bytes + usual.judging_bytes
    if "megabytes" in found:
        memory = int(found["megabytes"] * 2**20)
    return replace(
        usual,
        seconds_total=found.get("seconds", usual.seconds_total),
        memory_bytes=memory // 2,
        judging_bytes=memory // 2,
    )


def _loaded(unit: str) -> Assignment | None:
    """Another unit that the file is about, if it is here to check the names against."""
    try:
        return load(unit)
    except AssignmentError:
        return None
