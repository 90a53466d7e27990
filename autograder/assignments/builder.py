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
import contextlib
import hashlib
import logging
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from autograder.assignments import given
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.units.assignment import Assignment, Exercise, Question

OPTIONS = {"exercise", "check", "question", "points", "section", "forbids", "title", "tags"}
KINDS = ("exercise", "check", "question")
BEGIN, END = "BEGIN SOLUTION", "END SOLUTION"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What stock nbgrader executes in a check cell: it reads the points from the last expression.
HIDDEN = """
### BEGIN HIDDEN TESTS
from autograder.assignments.stock import points
points("{unit}", "{name}")
### END HIDDEN TESTS"""
QUESTION_MINUTES = 10
OVERVIEW = """**How to work.** Write your code where it says `raise NotImplementedError(...)`; a
class says so in each method that you write. Then run the cell below, `check("...")`: it says what
holds, what does not, and which section of the book to reread. Exercises may use the ones before
them. You may add cells and helper functions of your own; keep the names, the parameters and their
order as they are. Every text ends with hints: open them one by one, only as far as you need.

| | write | which is | points | minutes |
|---|---|---|---|---|
{rows}

About {minutes} minutes in all. They are estimated from the size of the answers: take them for a
measure of size, not of you."""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class BuildError(AssignmentError):
    """The script cannot become a notebook; the message names file, line and remedy."""


class NamedStubs(ClearSolutions):
    """nbgrader's ClearSolutions, with a stub that names the exercise and without our own notes."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        nb.cells = [cell for cell in nb.cells if "instructor" not in cell.metadata.get("tags", [])]
        return super().preprocess(nb, resources)

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict, cell_index: int
    ) -> tuple[NotebookNode, dict]:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "this")
        self.code_stub = {**self.code_stub, "python": "# YOUR CODE HERE\n" + stub_line(name)}
        return super().preprocess_cell(cell, resources, cell_index)


def stub_line(name: str) -> str:
    """The line that a student replaces: "todo" to the graders."""
    return f'raise NotImplementedError("{name} is yours to write")'


@dataclass
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
        for option in ("points", "section", "forbids"):
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
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(code).body if isinstance(node, kinds)}


def _needs(code: str, earlier: Sequence[str]) -> tuple[str, ...]:
    """The earlier exercises that `code` uses."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return tuple(name for name in earlier if name in used)


def _heading(text: str) -> str | None:
    """The last heading in a markdown cell, without its number."""
    found = [
        words
        for words in re.findall(r"^#+\s+(.+?)\s*#*$", text, flags=re.MULTILINE)
        if BEGIN not in words and END not in words
    ]
    if not found:
        return None
    return re.sub(r"^(Exercise\s+)?\d+\s*[.:)·–—-]*\s*", "", found[-1]).replace("`", "") or None


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


def minutes(code: str) -> int:
    """How long an answer takes, estimated from its size, in steps of five minutes.

    Six minutes to read what is asked, and 48 seconds for each line of the reference's answer.
    """
    regions = re.findall(rf"### {BEGIN}\n(.*?)### {END}", code, re.DOTALL)
    lines = [line.strip() for region in regions for line in region.splitlines()]
    written = sum(bool(line) and not line.startswith("#") for line in lines)
    return max(5, 5 * round((6 + 0.8 * written) / 5))


def _worth(points: float, took: int, more: str = "") -> str:
    """`*2 points · about 10 minutes*`, below an exercise's heading."""
    return f"*{points:g} point{'s' * (points != 1)} · about {took} minutes{more}*"


def _below_heading(cell: NotebookNode, line: str) -> None:
    """Put a line of its own below the last heading of a markdown cell."""
    place = max(match.end() for match in re.finditer(r"^#+ .*$", cell.source, re.MULTILINE))
    cell.source = f"{cell.source[:place]}\n\n{line}{cell.source[place:]}"


def _overview(assignment: Assignment) -> str:
    """How to work, and what there is to do."""
    rows = "\n".join(
        f"| {number} | `{exercise.name}` | {exercise.title} | {exercise.points:g} | "
        f"{exercise.minutes} |"
        for number, exercise in enumerate(assignment.exercises, 1)
    )
    written = "".join(
        f"\n| | | {question.title} (in words) | {question.points:g} | {QUESTION_MINUTES} |"
        for question in assignment.questions
    )
    return OVERVIEW.format(minutes=assignment.minutes, rows=rows + written)


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


def instructor(path: Path) -> tuple[NotebookNode, Assignment]:
    """The instructor's notebook of the script at `path`, and the assignment it describes.

    Raises BuildError on anything nbgrader or a student would later stumble over.
    """
    source = read(path)
    unit = source.unit
    exercises: list[Exercise] = []
    questions: list[Question] = []
    where: dict[str, int] = {}  # Cell of each exercise and question, for messages.
    checked: set[str] = set()
    ids: dict[str, int] = {}
    title, heading, setups = None, None, 0
    told: NotebookNode | None = None  # the text of the exercise or question that comes next

    for index, cell in enumerate(source.cells):
        kind = _kind(source, index)
        options = dict(cell.metadata)
        tags = options.get("tags", [])
        private = "instructor" in tags or _is_docstring(cell)
        if not (private and not kind):
            _check_region(source, index, wanted=kind in ("exercise", "question"))
        if cell.cell_type == "markdown":
            if not kind:
                told = cell if _heading(cell.source) else told
            title = title or _heading(cell.source)
            heading = _heading(cell.source) or heading
        name = options.get(kind, "")
        if kind in ("exercise", "question"):
            if name in where:
                raise source.error(
                    index,
                    f"{name} was already given on line {source.lines[where[name]]}; "
                    "rename one of the two.",
                )
            where[name] = index
        own_title = str(options.get("title") or heading or name)
        metadata: dict[str, Any] = {}
        if kind == "exercise":
            try:
                defined = _defines(cell.source)
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
            forbids = options.get("forbids", "")
            forbids = tuple(forbids.split() if isinstance(forbids, str) else forbids)
            needs = _needs(cell.source, [exercise.name for exercise in exercises])
            took = minutes(cell.source)
            if told is not None:
                _below_heading(told, _worth(options["points"], took))
            exercises.append(
                Exercise(
                    name=name,
                    title=own_title,
                    points=float(options["points"]),
                    section=options["section"],
                    forbids=forbids,
                    needs=needs,
                    minutes=took,
                )
            )
            metadata = _nbgrader(name, solution=True)
        elif kind == "question":
            questions.append(
                Question(name, own_title, float(options["points"]), options["section"])
            )
            metadata = _nbgrader(name, grade=True, solution=True, points=float(options["points"]))
            if told is not None:
                _below_heading(told, _worth(options["points"], QUESTION_MINUTES))
        elif kind == "check":
            found = [exercise for exercise in exercises if exercise.name == name]
            if not found:
                raise source.error(
                    index, f"there is no exercise {name} above this check cell; move or rename it."
                )
            if name in checked:
                raise source.error(
                    index, f"{name} already has a check cell; remove one of the two."
                )
            checked.add(name)
            if cell.source.strip() != f'check("{name}")':
                raise source.error(
                    index,
                    f'the check cell of {name} must hold the line # check("{name}") and '
                    'the tag "active-ipynb".',
                )
            cell.source = cell.source.strip() + HIDDEN.format(unit=unit, name=name)
            metadata = _nbgrader(f"check_{name}", grade=True, locked=True, points=found[0].points)
        elif cell.cell_type == "code" and not private and ("given" in tags or not exercises):
            setups += 1
            metadata = _nbgrader("setup" if setups == 1 else f"setup-{setups}", locked=True)

        if cell.cell_type == "code" and not private and not kind:
            cell.source = given.for_notebook(cell.source)
        cell.metadata = NotebookNode()
        if metadata:
            cell.metadata["nbgrader"] = NotebookNode(metadata)
            cell.id = metadata["grade_id"][:64]
        else:  # An id from the text, so that one edit does not renumber all the others.
            digest = hashlib.sha256(cell.source.encode()).hexdigest()[:10]
            ids[digest] = ids.get(digest, 0) + 1
            cell.id = f"text-{digest}" + (f"-{ids[digest]}" if ids[digest] > 1 else "")
        if private:
            cell.metadata["tags"] = ["instructor"]

    for exercise in exercises:
        if exercise.name not in checked:
            raise source.error(
                where[exercise.name],
                f"exercise {exercise.name} has no check cell; add "
                f'# %% check="{exercise.name}" tags=["active-ipynb"] after it.',
            )
    if not exercises:
        raise BuildError(
            f"{path.parent.name}/{path.name} holds no exercise; "
            'give one of its cells exercise="…", points=… and section="…".'
        )
    assignment = Assignment(source.unit, title or source.unit, tuple(exercises), tuple(questions))
    head = [("overview", _overview(assignment))]
    conventions = path.with_name("conventions.md")
    if conventions.is_file():
        head.append(("conventions", conventions.read_text(encoding="utf-8").strip()))
    source.cells[1:1] = [nbformat.v4.new_markdown_cell(text, id=name) for name, text in head]
    notebook = nbformat.v4.new_notebook(cells=source.cells)
    notebook.nbformat_minor = 5
    notebook.metadata = NotebookNode(
        kernelspec=NotebookNode(KERNEL), language_info=NotebookNode(name="python")
    )
    return notebook, assignment


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
    merged.NamedStubs.text_stub = "*Your answer here.*"
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


def book_sections(unit: str, root: Path = paths.ROOT) -> dict[str, str]:
    """Anchor and heading of each labelled section of the unit's page, if it is written."""
    page = root / "book" / f"{paths.chapter_of(unit)}.md"
    if not page.is_file():
        return {}
    found = re.findall(
        r"^\(([\w-]+)\)=\n+#+ +(.+?) *$", page.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return {anchor: heading.replace("`", "").replace("$", "") for anchor, heading in found}


def generate(units: Sequence[str], root: Path = paths.ROOT) -> dict[str, str]:
    """The generated files, as {path relative to `root`: text}."""
    files = {}
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        course = Path(folder)
        for unit, assignment in prepare_course(course, units, root / "solutions").items():
            released = course / "release" / unit / f"{unit}.ipynb"
            notebook = nbformat.read(released, as_version=4)
            stubs = {
                cell.metadata.nbgrader.grade_id: cell.source
                for cell in notebook.cells
                if "nbgrader" in cell.metadata
            }
            _require_refusals(assignment)
            complete = Assignment(
                assignment.unit,
                assignment.title,
                tuple(
                    Exercise(**{**vars(exercise), "stub": stubs[exercise.name]})
                    for exercise in assignment.exercises
                ),
                assignment.questions,
                book_sections(unit, root),
            )
            place = f"exercises/{unit}"
            files[f"{place}/{unit}.ipynb"] = notebook_text(notebook)
            files[f"{place}/assignment.json"] = complete.to_json()
            if parts := given.source(unit, root / "solutions"):
                files[f"{place}/{paths.GIVEN}"] = parts
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


def record(unit: str, check: bool = False) -> list[Path]:
    """Write the recorded answers of the unit's visible tests, unless they still hold.

    Answers that differ by rounding only are kept: another machine adds in another order, and the
    file should change when a grader, the reference or a misconception does.
    """
    from autograder.assignments import recorded
    from autograder.judging.recording import record as ask
    from autograder.judging.runner import Graders
    from autograder.sandbox.wire import WireError

    if not paths.graders(unit).is_file():
        raise BuildError(
            f"{unit} has no graders; write {paths.graders(unit).relative_to(paths.ROOT)} first."
        )
    path = paths.EXERCISES / unit / recorded.FILE
    recording = ask(unit, Graders(unit, hidden=False))
    with contextlib.suppress(FileNotFoundError, WireError, KeyError, TypeError):
        if _same_answers(recorded.read(path).data, recording.data):
            return []
    if not check:
        recorded.write(recording, path)
    return [path]


def _rounding(values: Any) -> float:
    """By how much values may differ that were added up in another order.

    A wrong step of training may make them large, and what cancels out keeps the error of the large.
    """
    finite = values[values.isfinite()]
    return max(1e-5, 1e-4 * float(finite.abs().max())) if finite.numel() else 1e-5


def _same_answers(left: Any, right: Any) -> bool:
    """Two recordings, or parts of them, hold the same answers up to rounding."""
    import torch

    from autograder.judging.diagnosis import same_value

    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        # Gradients pass through longer chains of rounding than values do.
        return type(left) is type(right) and (
            same_value(left, right)
            or (
                left.is_floating_point()
                and left.shape == right.shape
                and left.dtype == right.dtype
                and torch.allclose(left, right, rtol=1e-3, atol=_rounding(left), equal_nan=True)
            )
        )
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        # "asked" holds digests of exact bits, which rounding changes.
        return left.keys() == right.keys() and all(
            key == "asked" or _same_answers(value, right[key]) for key, value in left.items()
        )
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same_answers, left, right))
    return same_value(left, right)


def sources(root: Path = paths.ROOT) -> list[str]:
    """The units that have a script, in the order of the book."""
    return [unit for unit in paths.UNITS if paths.solution(unit, root).is_file()]
