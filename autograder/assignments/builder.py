"""From `solutions/<chapter>/<unit>.py` to the students' notebook.

Jupytext reads the script, this module turns the short cell options into nbgrader's metadata, and
nbgrader's own generate_assignment makes the students' version. What a person types in the script:

    # %% exercise="masked_softmax" points=4 section="att-softmax" forbids="softmax"
    # %% check="masked_softmax" tags=["active-ipynb"]
    # %% [markdown] question="why_scale" points=3 section="att-scaling"
    # %% tags=["instructor"]      left out of the students' notebook
    # %% tags=["given"]           handed out as it is and locked, like all code before exercise 1
"""

from __future__ import annotations

import ast
import hashlib
import logging
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import jupytext
import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearSolutions
from traitlets.config import Config

from autograder.assignments import given, last_cells, overview, picture, whole_chapter
from autograder.common import paths
from autograder.common.definitions import DEFINITIONS
from autograder.common.errors import AssignmentError
from autograder.units import promises
from autograder.units.assignment import (
    ANSWER_HERE,
    QUESTION_MINUTES,
    Assignment,
    Exercise,
    Question,
)
from autograder.units.sections import named, sections

OPTIONS = {
    "exercise",
    "check",
    "question",
    "points",
    "section",
    "forbids",
    "judged_on",
    "title",
    "tags",
}
KINDS = ("exercise", "check", "question")
BEGIN, END = "BEGIN SOLUTION", "END SOLUTION"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What stock nbgrader executes in a check cell: it reads the points from the last expression.
HIDDEN = """
### BEGIN HIDDEN TESTS
from autograder.assignments.stock import points
points("{unit}", "{name}")
### END HIDDEN TESTS"""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class BuildError(AssignmentError):
    """The script cannot become a notebook; the message names file, line and remedy."""


class NamedStubs(ClearSolutions):
    """nbgrader's ClearSolutions, with a stub that names the exercise and without our own notes."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        nb.cells = [cell for cell in nb.cells if "instructor" not in cell.metadata.get("tags", [])]
        return super().preprocess(nb, resources)

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
    ) -> tuple[NotebookNode, dict[str, Any]]:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "this")
        stubs: dict[str, str] = self.code_stub  # type: ignore[has-type]
        self.code_stub = {**stubs, "python": "# YOUR CODE HERE\n" + stub_line(name)}
        return super().preprocess_cell(cell, resources, cell_index)


def stub_line(name: str) -> str:
    """The line that a student replaces: "todo" to the graders."""
    return f'raise NotImplementedError("{name} is yours to write")'


@dataclass(frozen=True)
class Source:
    """One script, read: its cells and the line each begins on."""

    path: Path
    unit: str
    cells: list[NotebookNode]
    lines: list[int]

    def error(self, index: int, message: str) -> BuildError:
        where = f"solutions/{self.path.parent.name}/{self.path.name}"
        return BuildError(f"{where}, line {self.lines[index]}: {message}")


def read(path: Path) -> Source:
    """Jupytext's cells of the script at `path`, each with its line number."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(
            f"There is no solutions/{path.parent.name}/{path.name}; write the unit's script there."
        ) from error
    cells = jupytext.reads(text, fmt="py:percent").cells
    lines = [
        number for number, line in enumerate(text.splitlines(), 1) if re.match(r"#\s?%%", line)
    ]
    if len(lines) < len(cells):  # Text above the first marker is a cell too.
        lines.insert(0, 1)
    lines += [lines[-1]] * (len(cells) - len(lines))
    return Source(path, f"{path.parent.name}-{path.stem}", cells, lines)


def _kind(source: Source, index: int) -> str:
    """What cell `index` is: one of KINDS, or nothing; its options are validated on the way."""
    options = source.cells[index].metadata
    options.pop("lines_to_next_cell", None)  # Jupytext's own bookkeeping.
    options.pop("lines_to_end_of_cell_marker", None)
    if "incorrectly_encoded_metadata" in options:
        bad = options["incorrectly_encoded_metadata"]
        raise source.error(
            index, f'cannot read the cell options {bad!r}; write them as key="value" or key=number.'
        )
    for option in options:
        if option not in OPTIONS:
            raise source.error(
                index,
                f"unknown cell option {option!r}; the options are {', '.join(sorted(OPTIONS))}.",
            )
    kinds = [kind for kind in KINDS if kind in options]
    if len(kinds) > 1:
        raise source.error(
            index, f"a cell is either {' or '.join(kinds)}; split it into one cell for each."
        )
    if not kinds:
        for option in ("points", "section", "forbids", "judged_on"):
            if option in options:
                raise source.error(
                    index,
                    f'{option} says nothing without exercise="…" or question="…"; name the cell.',
                )
        return ""
    kind = kinds[0]
    name = options[kind]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise source.error(
            index, f'{name!r} is no name; write {kind}="masked_softmax" with the name it defines.'
        )
    wanted = "markdown" if kind == "question" else "code"
    if source.cells[index].cell_type != wanted:
        raise source.error(
            index,
            f"{kind} {name} must be a {wanted} cell; "
            + ("add [markdown] after # %%." if wanted == "markdown" else "remove [markdown]."),
        )
    if kind != "check":
        points = options.get("points")
        if isinstance(points, bool) or not isinstance(points, (int, float)) or points <= 0:
            raise source.error(
                index, f"{kind} {name} has no points; add points=2 (any number above 0)."
            )
        if not isinstance(options.get("section"), str) or not options["section"]:
            raise source.error(
                index,
                f"{kind} {name} does not say what to reread; add the book's anchor, "
                'as in section="att-softmax".',
            )
    return kind


def _check_region(source: Source, index: int, wanted: bool) -> None:
    """A solution region where one belongs, closed, and none elsewhere."""
    depth = regions = 0
    for line in source.cells[index].source.splitlines():
        if BEGIN in line:
            depth += 1
            regions += 1
        elif END in line:
            depth -= 1
        if depth not in (0, 1):
            break
    if depth:
        raise source.error(
            index,
            f"the solution regions do not match; close each ### {BEGIN} with one ### {END}.",
        )
    if wanted and not regions:
        raise source.error(
            index,
            f"there is no solution region; put ### {BEGIN} and ### {END} around what "
            "the students must write.",
        )
    if regions and not wanted:
        raise source.error(
            index,
            "a solution region outside an exercise or question would reach the students; "
            'add exercise="…" to the cell or tag it "instructor".',
        )


def _defines(code: str) -> set[str]:
    """Names of the functions and classes that `code` defines at its top level."""
    return {node.name for node in ast.parse(code).body if isinstance(node, DEFINITIONS)}


def _used(code: str | ast.AST, known: Iterable[str]) -> tuple[str, ...]:
    """Which of the `known` names `code` uses."""
    tree = ast.parse(code) if isinstance(code, str) else code
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return tuple(name for name in known if name in used)


def _is_docstring(cell: NotebookNode) -> bool:
    """A module docstring: it belongs to the reference module, not to a notebook."""
    if cell.cell_type != "code":
        return False
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:
        return False
    return bool(body) and all(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body
    )


def _nbgrader(name: str, **traits: Any) -> dict[str, Any]:
    return {
        "schema_version": 3,
        "grade_id": name,
        "grade": False,
        "solution": False,
        "locked": False,
        "task": False,
        **traits,
    }


class _Reading:
    """What a script's cells say, taken in one after the other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.title = ""
        self.exercises: list[Exercise] = []
        self.questions: list[Question] = []
        self.uses: dict[str, tuple[str, ...]] = {}  # what a part uses of those before it
        self.where: dict[str, int] = {}  # cell of each exercise and question
        self.checked: set[str] = set()
        self._text: int | None = None  # cell of the text for the exercise or question to come
        self._setups = 0
        self._ids: dict[str, int] = {}

    def take(self, index: int) -> None:
        """Read a cell, and make it one of the instructor's notebook."""
        source, cell = self.source, self.source.cells[index]
        if cell.cell_type == "markdown":
            cell.source = promises.without_ids(cell.source)
        kind = _kind(source, index)
        options = dict(cell.metadata)
        private = "instructor" in options.get("tags", []) or _is_docstring(cell)
        if kind or not private:
            _check_region(source, index, wanted=kind in ("exercise", "question"))
        metadata: dict[str, Any] = {}
        if kind == "exercise":
            metadata = self._exercise(index, options)
        elif kind == "question":
            metadata = self._question(index, options)
        elif kind == "check":
            metadata = self._check(index, options["check"])
        elif cell.cell_type == "markdown":
            if not private and (found := overview.headings(cell.source)):
                self.title = self.title or found[-1].words
                self._text = index
        elif not private:
            self._plain(cell)
            if "given" in options.get("tags", []) or not self.exercises:
                self._setups += 1
                name = "setup" if self._setups == 1 else f"setup-{self._setups}"
                metadata = _nbgrader(name, locked=True)
        cell.metadata = NotebookNode()
        if metadata:
            cell.metadata["nbgrader"] = NotebookNode(metadata)
            cell.id = metadata["grade_id"][:64]
        else:  # An id from the text, so that one edit does not renumber all the others.
            digest = hashlib.sha256(cell.source.encode()).hexdigest()[:10]
            self._ids[digest] = self._ids.get(digest, 0) + 1
            more = f"-{self._ids[digest]}" if self._ids[digest] > 1 else ""
            cell.id = f"text-{digest}{more}"
        if private:
            cell.metadata["tags"] = ["instructor"]

    def _exercise(self, index: int, options: dict[str, Any]) -> dict[str, Any]:
        source, code = self.source, self.source.cells[index].source
        name, points = options["exercise"], float(options["points"])
        self._new(name, index)
        try:
            defined = _defines(code)
        except SyntaxError as error:
            raise source.error(
                index, f"the solution of {name} is not valid Python ({error.msg}); correct it."
            ) from error
        if name not in defined:
            raise source.error(
                index,
                f"the cell of exercise {name} defines no function or class of that name; "
                "rename one of them.",
            )
        number = len(self.exercises) + 1
        minutes = overview.minutes(code)
        text, heading = self._heading(index, name, f"Exercise {number}: …")
        if heading.number != number:
            raise source.error(
                text,
                f"the heading of {name} must begin with Exercise {number}, "
                f"for it is number {number} of its unit; correct it.",
            )
        overview.put_below(self.source.cells[text], heading, overview.worth(points, minutes))
        forbids = options.get("forbids", "")
        self.uses[name] = _used(code, self.uses)
        self.exercises.append(
            Exercise(
                name=name,
                title=str(options.get("title") or heading.words),
                points=points,
                section=options["section"],
                forbids=tuple(forbids.split() if isinstance(forbids, str) else forbids),
                needs=self._needs(name, str(options.get("judged_on", "")).split()),
                minutes=minutes,
            )
        )
        return _nbgrader(name, solution=True)

    def _question(self, index: int, options: dict[str, Any]) -> dict[str, Any]:
        name, points = options["question"], float(options["points"])
        self._new(name, index)
        text, heading = self._heading(index, name, "Question: …")
        line = overview.worth(points, QUESTION_MINUTES)
        overview.put_below(self.source.cells[text], heading, line)
        title = str(options.get("title") or heading.words)
        self.questions.append(Question(name, title, points, options["section"]))
        return _nbgrader(name, grade=True, solution=True, points=points)

    def _check(self, index: int, name: str) -> dict[str, Any]:
        source, cell = self.source, self.source.cells[index]
        found = [exercise for exercise in self.exercises if exercise.name == name]
        if not found:
            raise source.error(
                index, f"there is no exercise {name} above this check cell; move or rename it."
            )
        if name in self.checked:
            raise source.error(index, f"{name} already has a check cell; remove one of the two.")
        self.checked.add(name)
        if cell.source.strip() != f'check("{name}")':
            raise source.error(
                index,
                f'the check cell of {name} must hold the line # check("{name}") and '
                'the tag "active-ipynb".',
            )
        cell.source = cell.source.strip() + HIDDEN.format(unit=source.unit, name=name)
        return _nbgrader(f"check_{name}", grade=True, locked=True, points=found[0].points)

    def _plain(self, cell: NotebookNode) -> None:
        """A cell of code that students are given."""
        try:
            imported, body = given.imported(cell.source), ast.parse(cell.source).body
        except SyntaxError:
            return  # It holds a magic command.
        if imported:
            self.uses.update((name, ()) for name in self._earlier() if name in imported)
        for node in body:
            if isinstance(node, DEFINITIONS):
                self.uses[node.name] = _used(node, self.uses)
        cell.source = given.for_notebook(cell.source)

    def _earlier(self) -> list[str]:
        """The functions and classes of earlier units: a constant is no part of a picture."""
        try:
            return sorted(_defines(given.source(self.source.unit, self.source.path.parent.parent)))
        except SyntaxError:
            return []  # Of a cell that is still to be read.

    def _needs(self, name: str, judged_on: Sequence[str]) -> tuple[str, ...]:
        """The exercises that a part uses, itself or in a given part that it uses.

        And those in `judged_on`, whose modules its graders hand it.
        """
        exercises = [exercise.name for exercise in self.exercises]
        if unknown := [other for other in judged_on if other not in exercises]:
            raise self.source.error(
                self.where[name],
                f"{name} is judged_on {unknown[0]}, which is no exercise before it; correct it.",
            )
        found: set[str] = set(judged_on)
        waiting = list(self.uses[name])
        while waiting:
            part = waiting.pop()
            if part in exercises:
                found.add(part)
            else:
                waiting += self.uses[part]
        return tuple(exercise for exercise in exercises if exercise in found)

    def _new(self, name: str, index: int) -> None:
        if name in self.where:
            raise self.source.error(
                index,
                f"{name} was already given on line {self.source.lines[self.where[name]]}; "
                "rename one of the two.",
            )
        self.where[name] = index

    def _heading(self, index: int, name: str, wanted: str) -> tuple[int, overview.Heading]:
        """The cell of the text that belongs to cell `index`, and the last heading in it."""
        text, self._text = self._text, None
        for place in (index if text is None else text, index):
            cell = self.source.cells[place]
            if cell.cell_type == "markdown" and (found := overview.headings(cell.source)):
                return place, found[-1]
        raise self.source.error(
            index, f'{name} has no text of its own; put one with the heading "### {wanted}" above.'
        )

    def finished(self) -> Assignment:
        """The assignment, when all cells are read."""
        for exercise in self.exercises:
            if exercise.name not in self.checked:
                raise self.source.error(
                    self.where[exercise.name],
                    f"exercise {exercise.name} has no check cell; add "
                    f'# %% check="{exercise.name}" tags=["active-ipynb"] after it.',
                )
        if not self.exercises:
            raise BuildError(
                f"{self.source.path.parent.name}/{self.source.path.name} holds no exercise; "
                'give one of its cells exercise="…", points=… and section="…".'
            )
        unit = self.source.unit
        return Assignment(unit, self.title or unit, tuple(self.exercises), tuple(self.questions))


def instructor(path: Path) -> tuple[NotebookNode, Assignment]:
    """The instructor's notebook of the script at `path`, and the assignment it describes.

    Raises BuildError on anything nbgrader or a student would later stumble over.
    """
    source = read(path)
    reading = _Reading(source)
    for index in range(len(source.cells)):
        reading.take(index)
    assignment = reading.finished()
    explained = sections(paths.chapter_of(source.unit), path.parents[2])
    for cell in source.cells:
        if cell.cell_type == "markdown":
            cell.source = named(cell.source, explained)
    head = {
        "picture": picture.markdown(assignment.exercises, reading.uses),
        "overview": overview.text(assignment),
    }
    conventions = path.with_name("conventions.md")
    if conventions.is_file():
        # Those of the chapter, then those of all chapters.
        texts = [one.read_text(encoding="utf-8") for one in (conventions, paths.CONVENTIONS)]
        head["conventions"] = promises.without_ids("".join(texts)).strip()
    # Below the title.
    first = next((i for i, cell in enumerate(source.cells) if cell.cell_type == "markdown"), -1) + 1
    source.cells[first:first] = [
        nbformat.v4.new_markdown_cell(text, id=name) for name, text in head.items()
    ]
    return _new_notebook(source.cells + last_cells.of(source.unit, path.parents[2])), assignment


def _new_notebook(cells: list[NotebookNode]) -> NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.nbformat_minor = 5
    notebook.metadata = NotebookNode(
        kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(name="python")
    )
    return notebook


def notebook_text(notebook: NotebookNode) -> str:
    """The notebook's bytes: the same for each run, machine and Python version."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"


class _Messages(logging.Handler):
    """Keeps what nbgrader logs as an error, for the one sentence that is shown."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().strip().splitlines()[-1])


def generate_config(config: Config | None = None) -> Config:
    """nbgrader's settings for generate_assignment: stock, but for the stubs that carry a name."""
    merged = Config()
    preprocessors = [
        NamedStubs if step is ClearSolutions else step
        for step in GenerateAssignment.class_traits()["preprocessors"].default()
    ]
    merged.GenerateAssignment.preprocessors = preprocessors
    merged.NamedStubs.text_stub = ANSWER_HERE
    if config:
        merged.merge(config)
    return merged


def schema_version() -> str:
    """The version of nbgrader's database; nbgrader starts a process for it that takes seconds."""
    from alembic.script import ScriptDirectory
    from nbgrader.dbutil import ALEMBIC_DIR

    return str(ScriptDirectory(ALEMBIC_DIR).get_current_head())


def _generate(course: Path, unit: str, db_url: str | None = None) -> None:
    """nbgrader generate_assignment of one unit in `course`, silent unless it fails."""
    config = generate_config()
    config.CourseDirectory.root = str(course.resolve())
    if db_url:
        config.CourseDirectory.db_url = db_url
    config.CourseDirectory.assignment_id = unit
    log = logging.getLogger(f"{__name__}.nbgrader")
    log.propagate = False
    messages = _Messages()
    log.handlers = [messages]
    directory = CourseDirectory(config=config, log=log)
    converter = GenerateAssignment(coursedir=directory, config=config, log=log, force=True)
    try:
        with mock.patch("nbgrader.api.get_alembic_version", schema_version):
            converter.start()
    except Exception as error:
        reason = "; ".join(messages.lines) or str(error)
        raise BuildError(
            f"nbgrader could not make the students' version of {unit}: {reason}"
        ) from error


def prepare_course(
    course: Path,
    units: Sequence[str],
    solutions: Path = paths.SOLUTIONS,
    db_url: str | None = None,
    points: Mapping[str, float] | None = None,
) -> dict[str, Assignment]:
    """Make `course` an nbgrader course: source/, release/ and a gradebook that knows the units.

    The gradebook is at `db_url`, or gradebook.db in the course. Running it again on a course with
    submissions keeps them; returns the units' assignments, without stubs. `points` are those of
    exercises and questions that the course has changed.
    """
    course.mkdir(parents=True, exist_ok=True)
    assignments = {}
    for unit in units:
        notebook, assignments[unit] = instructor(solutions / paths.inside(unit, ".py"))
        for cell in notebook.cells:
            marks = cell.metadata.get("nbgrader", {})
            if points and marks.get("grade"):
                name = marks.grade_id
                name = name if marks.solution else name.removeprefix("check_")
                marks.points = points.get(name, marks.points)
        target = course / "source" / unit / f"{unit}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(notebook_text(notebook), encoding="utf-8")
        if parts := given.source(unit, solutions):
            target.with_name(paths.GIVEN).write_text(parts, encoding="utf-8")
        _generate(course, unit, db_url)
    return assignments


def generate(units: Sequence[str], root: Path = paths.ROOT) -> dict[str, str]:
    """The generated files, as {path relative to `root`: text}."""
    files = {}
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        course = Path(folder)
        for unit, assignment in prepare_course(course, units, root / "solutions").items():
            explained = sections(paths.chapter_of(unit), root)
            released = course / "release" / unit / f"{unit}.ipynb"
            notebook = nbformat.read(released, as_version=4)
            stubs = {
                cell.metadata.nbgrader.grade_id: cell.source
                for cell in notebook.cells
                if "nbgrader" in cell.metadata
            }
            _require_refusals(assignment)
            complete = replace(
                assignment,
                exercises=tuple(
                    replace(exercise, stub=stubs[exercise.name])
                    for exercise in assignment.exercises
                ),
                sections={anchor: found.heading for anchor, found in explained.items()},
                pages={anchor: found.page for anchor, found in explained.items()},
            )
            place = f"exercises/{unit}"
            files[f"{place}/{unit}.ipynb"] = notebook_text(notebook)
            files[f"{place}/assignment.json"] = complete.to_json()
            if parts := given.source(unit, root / "solutions"):
                files[f"{place}/{paths.GIVEN}"] = parts
    for chapter in dict.fromkeys(map(paths.chapter_of, units)):
        if cells := whole_chapter.cells(chapter, root):
            notebook, parts = (f"exercises/{name}" for name in whole_chapter.files(chapter))
            files[notebook] = notebook_text(_new_notebook(cells))
            files[parts] = whole_chapter.given_parts(chapter, root)
    return files


def _require_refusals(assignment: Assignment) -> None:
    from autograder.sandbox.forbidden_calls import is_refused  # PyTorch, which a class can spare

    for exercise in assignment.exercises:
        for name in exercise.forbids:
            if not is_refused(name):
                raise BuildError(
                    f"nothing refuses {name}, which exercise {exercise.name} forbids; name a "
                    "function of PyTorch's, or say in forbidden_calls.py what carries it out."
                )


def build(units: Sequence[str], root: Path = paths.ROOT, check: bool = False) -> list[Path]:
    """Write the students' notebooks under `root`/exercises; the files whose content changed.

    With `check` nothing is written: the list names the files that are not what the scripts say.
    """
    changed = []
    for relative, text in generate(units, root).items():
        path = root / relative
        data = text.encode()
        if path.is_file() and path.read_bytes() == data:
            continue
        changed.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return changed


def sources(root: Path = paths.ROOT) -> list[str]:
    """The units that have a script, in the order of the book."""
    return [unit for unit in paths.UNITS if paths.solution(unit, root).is_file()]
