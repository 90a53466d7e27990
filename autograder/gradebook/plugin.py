"""The course's part in nbgrader: repair before grading, grading in place of execution, feedback.

`configure` is all that an `nbgrader_config.py` has to call. nbgrader's own gradebook, formgrader,
late penalties and export then work on what these preprocessors leave in the notebook:

- every check cell carries the card a student reads (HTML), the result as data, and its points as
  the cell's result, which is where nbgrader looks for them; nothing is ever put on stderr;
- written questions are left to a person.

Student code is never run in nbgrader's process. `classroom` runs it in the sandbox.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import nbformat
from nbconvert.exporters import NotebookExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from nbgrader.plugins.export import CsvExportPlugin
from nbgrader.preprocessors import CheckCellMetadata, NbGraderPreprocessor
from nbgrader.utils import compute_checksum
from sqlalchemy import bindparam, select
from traitlets import Bool, Integer
from traitlets.config import Config

from autograder.common import cards, paths
from autograder.common.escaping import csv_text, one_line
from autograder.gradebook import due_dates
from autograder.grading import repair
from autograder.grading.settings import Settings, rescaled
from autograder.judging.results import ExerciseResult, SubmissionResult
from autograder.sandbox.limits import Limits
from autograder.units.assignment import Assignment, load

if TYPE_CHECKING:
    from autograder.grading.marker import Graded
    from autograder.grading.worker_pool import WorkerPool

# Where a graded notebook keeps what is known about the submission as a whole.
KEY = "transformers_by_hand"
# One exercise's result as data, beside the HTML that a person reads.
RESULT = "application/vnd.transformers-by-hand.result+json"
LEFT_OUT = "This exercise was left out of the grading and does not count."

# Results that are already known, by (assignment, student): a whole class is graded first, with
# several processes, and goes through nbgrader's books afterwards.
RESULTS: dict[tuple[str, str], SubmissionResult] = {}
# Those of nbgrader's own autograde, from the repair of a submission until its entry in the books.
MARKED: dict[tuple[str, str], SubmissionResult] = {}
FILE = "transformers_by_hand_file"  # in a notebook's resources: what was handed in


def configure(config: Config, root: Path | None = None, db_url: str | None = None) -> None:
    """Make an nbgrader course at `root` one that repairs, grades safely and gives our feedback.

    Its gradebook is at `db_url`, or gradebook.db in the course; see `database`.
    """
    config.CourseDirectory.root = str((root or paths.BUILD / "course").resolve())
    # What nbgrader leaves behind by itself, and the note from what a release was made.
    config.CourseDirectory.ignore = [
        *(".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback"),
        ".made-from",
    ]
    if db_url:
        from autograder.gradebook.database import checked

        config.CourseDirectory.db_url = checked(db_url)
    config.Autograde.exporter_class = "autograder.gradebook.plugin.TolerantExporter"
    config.Autograde.pre_convert_hook = "autograder.gradebook.plugin.before_autograde"
    config.Autograde.sanitize_preprocessors = [
        "autograder.gradebook.plugin.Repair",
        "nbgrader.preprocessors.ClearOutput",
        "nbgrader.preprocessors.DeduplicateIds",
        "nbgrader.preprocessors.OverwriteKernelspec",
        "nbgrader.preprocessors.OverwriteCells",
        "autograder.gradebook.plugin.CheckMetadata",
    ]
    config.Autograde.autograde_preprocessors = [
        "autograder.gradebook.plugin.GradeExercises",
        "nbgrader.preprocessors.LimitOutput",
        "nbgrader.preprocessors.SaveAutoGrades",
        "nbgrader.preprocessors.AssignLatePenalties",
        "autograder.gradebook.plugin.CheckMetadata",
    ]
    config.AssignLatePenalties.plugin_class = "autograder.gradebook.due_dates.LatePenalty"
    config.GenerateAssignment.preprocessors = [
        "nbgrader.preprocessors.IncludeHeaderFooter",
        "nbgrader.preprocessors.InstantiateTests",
        "nbgrader.preprocessors.LockCells",
        "autograder.assignments.builder.NamedStubs",
        "nbgrader.preprocessors.ClearOutput",
        "nbgrader.preprocessors.CheckCellMetadata",
        "nbgrader.preprocessors.ComputeChecksums",
        "nbgrader.preprocessors.SaveCells",
        "nbgrader.preprocessors.ClearHiddenTests",
        "nbgrader.preprocessors.ClearMarkScheme",
        "nbgrader.preprocessors.ComputeChecksums",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    config.NamedStubs.text_stub = "*Your answer here.*"
    config.GenerateFeedback.exporter_class = "autograder.reports.feedback.FeedbackExporter"
    config.ExportApp.plugin_class = "autograder.gradebook.plugin.SafeCsv"
    config.GenerateFeedback.preprocessors = [
        "nbgrader.preprocessors.GetGrades",
        "autograder.gradebook.plugin.GetReview",
    ]


# ---------------------------------------------------------------------------------------------
# Before grading


def before_autograde(assignment: str, student: str, notebooks: list[str]) -> None:
    """nbgrader's hook before one submission: find the notebook under a wrong name.

    nbgrader skips a submission whose notebook is called anything but the assignment; here the
    nearest one is copied to the right name (the file handed in stays as it is).
    """
    from autograder.grading.collect import best_notebook

    if not notebooks or any(Path(name).stem == assignment for name in notebooks):
        return
    best = best_notebook([Path(name) for name in notebooks], assignment)
    if best is None:
        return
    target = best.with_name(f"{assignment}.ipynb")
    shutil.copyfile(best, target)
    notebooks[:] = [str(target)]


def _is_known(resources: dict[str, Any] | None) -> bool:
    """Graded and repaired a moment ago: what lies in submitted/ is our own copy."""
    course = (resources or {}).get("nbgrader", {})
    return (course.get("assignment"), course.get("student")) in RESULTS


class Unguarded:
    """An exporter that hands one copy of a notebook from step to step.

    nbconvert copies a notebook before its first step, and once more and validates it after every
    step, in case a step does what it may not: a tenth of the time that a class takes. nbgrader's
    steps and ours are known, and what goes in was validated when it was repaired.
    """

    _preprocessors: list[Any]
    _init_resources: Callable[[dict[str, Any] | None], dict[str, Any]]

    def from_file(
        self, file: Any, resources: dict[str, Any] | None = None, **_: Any
    ) -> tuple[str, dict[str, Any]]:
        return self.from_notebook_node(nbformat.v4.reads(file.read()), resources)

    def from_notebook_node(
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **_: Any
    ) -> tuple[str, dict[str, Any]]:
        """Take a notebook that nobody else holds through all steps, and put the result in words."""
        resources = self._init_resources(resources)
        for step in self._preprocessors:
            nb, resources = step(nb, resources)
        return self._text(nb, resources), resources

    def _text(self, nb: NotebookNode, resources: dict[str, Any]) -> str:
        raise NotImplementedError


class TolerantExporter(Unguarded, NotebookExporter):  # type: ignore[misc]
    """Opens what nbformat cannot: other encodings, damaged JSON, files that are no notebook."""

    @property
    def sanitizing(self) -> bool:
        """Whether what is written is read once more, and graded, before anybody has it."""
        return any(isinstance(step, Repair) for step in self._preprocessors)

    def from_filename(
        self, filename: str, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[Any, dict[str, Any]]:
        if not self.sanitizing or _is_known(resources):
            return super().from_filename(filename, resources, **kw)
        resources = {} if resources is None else resources
        resources["metadata"] = {"name": Path(filename).stem, "path": str(Path(filename).parent)}
        resources[FILE] = Path(filename)  # Only who repairs it reads it.
        return self.from_notebook_node(nbformat.v4.new_notebook(), resources)

    def _text(self, nb: NotebookNode, resources: dict[str, Any]) -> str:
        resources["output_suffix"] = ".nbconvert"
        return nbformat.v4.writes(nb) + "\n"


class CheckMetadata(CheckCellMetadata):
    """nbgrader's check that the cell metadata is valid, once for what is the same in all notebooks.

    A repaired notebook carries the released metadata, so that a class asks the same question again
    and again, and nbgrader takes a tenth of a second to answer it.
    """

    enabled = Bool(True)
    known: ClassVar[set[str]] = set()

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        marks = [
            (cell["cell_type"], cell["metadata"]["nbgrader"])
            for cell in nb["cells"]
            if "nbgrader" in cell["metadata"]
        ]
        digest = hashlib.sha256(repr(marks).encode()).hexdigest()
        if digest not in self.known:
            nb, resources = super().preprocess(nb, resources)
            self.known.add(digest)
        return nb, resources


class Repair(NbGraderPreprocessor):
    """Replaces a submission by one that can be graded, and has it graded; both in a worker."""

    enabled = Bool(True)  # Not configurable: nothing that follows could cope without it.
    prepared: ClassVar[dict[tuple[Path, str], str]] = {}

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        course = resources["nbgrader"]
        self._heed_settings(course)
        if _is_known(resources):
            return nb, resources
        graded = self._graded(course["assignment"], course["student"], resources[FILE])
        MARKED[course["assignment"], course["student"]] = graded.result
        for line in (*graded.result.repairs, *graded.result.notes):
            self.log.info("%s", one_line(f"{course['student']}: {line}", 1000))
        return nbformat.reads(graded.notebook, as_version=4), resources

    def _graded(self, unit: str, student: str, file: Path) -> Graded:
        from autograder.gradebook.course import course_seed
        from autograder.grading.collect import Submission
        from autograder.grading.marker import Task
        from autograder.sandbox.launcher import require_sandbox

        root = due_dates.root_of(self.config)
        how = GradeExercises(config=self.config)
        if not how.unsafe_no_sandbox:
            require_sandbox()  # In milliseconds, where the pool first imports PyTorch.
        seed = course_seed(root or paths.BUILD / "course") if how.seed is None else how.seed
        limits = due_dates.of_course(root or paths.BUILD / "course", unit).limits
        pool = shared_pool(unit, seed, how.unsafe_no_sandbox, limits)
        task = Task(Submission(student, file))
        ((_, graded),) = pool.mark([task], _released(unit, root))
        return graded

    def _heed_settings(self, course: dict[str, Any]) -> None:
        """Bring the gradebook up to date with the course's settings, and this student in it."""
        from autograder.gradebook.course import prepare

        root, unit = due_dates.root_of(self.config), course["assignment"]
        if root is None:
            return
        settings = due_dates.of_course(root, unit)
        known = (course["assignment"], course["student"]) in RESULTS
        made_here = (root / "release" / unit / ".made-from").is_file()
        if not known and made_here and self.prepared.get((root, unit)) != settings.digest:
            prepare(root, unit)
            self.prepared[root, unit] = settings.digest
        due_dates.bring(root, unit, settings, course["db_url"], course["student"])


def _released(assignment: str, root: Path | None) -> NotebookNode:
    """The notebook that was handed out: the course's own release, else the repository's."""
    if root is not None:
        path = root / "release" / assignment / f"{assignment}.ipynb"
        if path.is_file():
            return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    return repair.released(assignment)


# ---------------------------------------------------------------------------------------------
# Grading


class GradeExercises(NbGraderPreprocessor):
    """Grades in the sandbox and writes the results where nbgrader looks for them.

    Stands in the place of nbgrader's Execute but is not one: options that skip the execution, and
    with it the loss of points, have no hold on it.
    """

    enabled = Bool(True)  # Not configurable: an ungraded check cell counts as full marks.
    unsafe_no_sandbox = Bool(
        False, help="Run student code without a sandbox. It can then do whatever you can."
    ).tag(config=True)
    seed = Integer(
        None, allow_none=True, help="Seed of the graders' inputs; the course's own by default."
    ).tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        unit = resources["nbgrader"]["assignment"]
        student = resources["nbgrader"]["student"]
        result = RESULTS.get((unit, student)) or MARKED.pop((unit, student))
        write_result(nb, result, load(unit))
        return nb, resources


@functools.cache
def shared_pool(unit: str, seed: int, unsafe: bool, limits: Limits) -> WorkerPool:
    """The pool in which nbgrader's own autograde marks; ends with this process."""
    from autograder.grading.worker_pool import WorkerPool

    options = {"unit": unit, "seed": seed, "unsafe": unsafe, "limits": limits}
    pool = WorkerPool(options, 1)
    atexit.register(pool.close)
    return pool


def check_name(cell: NotebookNode) -> str | None:
    """The exercise that a check cell judges, or None for any other cell."""
    marks = cell.metadata.get("nbgrader", {})
    if cell.cell_type != "code" or not marks.get("grade") or marks.get("solution"):
        return None
    found = re.search(r"""^\s*check\(\s*["'](\w+)["']""", cell.source, re.MULTILINE)
    return found[1] if found else str(marks.get("grade_id", "")).removeprefix("check_")


def write_result(nb: NotebookNode, result: SubmissionResult, assignment: Assignment) -> None:
    """Write a submission's result into its notebook, in place.

    Every check cell gets points, those without a result 0: nbgrader takes a check cell without
    output for a passed one.
    """
    summary = {
        name: value
        for name, value in replace(result, exercises={}, printed={}).to_dict().items()
        if name not in ("exercises", "printed", "student")
    }
    nb.metadata[KEY] = {**nb.metadata.get(KEY, {}), **summary}
    own = set(nb.metadata[KEY].get("own", []))
    for cell in nb.cells:
        if cell.cell_type != "code":
            _make_inert(cell, cell.get("id") in own)
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("grade") and marks.get("points") == 0:
                # Left out: like an answer that was not given, it does not wait for a person.
                marks["checksum"] = compute_checksum(cell)
            continue
        cell.execution_count = None
        cell.outputs = []
        name = check_name(cell)
        if name is None:
            text = result.printed.get(cell.get("id", ""), "")
            if text:
                cell.outputs.append(NotebookNode(output_type="stream", name="stdout", text=text))
            continue
        most = float(cell.metadata.nbgrader["points"])
        exercise = result.exercises.get(name)
        if most == 0:
            exercise = ExerciseResult(name, 0.0, most, message=LEFT_OUT)
        elif exercise is None:
            exercise = ExerciseResult(name, 0.0, most, message="There is no result for this cell.")
        exercise = rescaled(exercise, most)
        points = min(max(float(exercise.points), 0.0), most)
        card = card_of(exercise, assignment)
        data = {
            "text/html": cards.card_html(card),
            "text/plain": cards.card_text(card),
            RESULT: exercise.to_dict(),
        }
        shown = NotebookNode(
            output_type="display_data", data=NotebookNode(data), metadata=NotebookNode()
        )
        worth = NotebookNode({"text/plain": repr(points)})
        cell.outputs += [
            shown,
            NotebookNode(
                output_type="execute_result",
                data=worth,
                metadata=NotebookNode(),
                execution_count=None,
            ),
        ]


TAGS = {
    *["a", "b", "blockquote", "br", "code", "dd", "del", "div", "dl", "dt", "em", "hr", "i", "img"],
    *["h1", "h2", "h3", "h4", "h5", "h6", "input", "li", "ol", "p", "pre", "s", "section", "span"],
    *["strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "u", "ul"],
}
ATTRIBUTES = {"alt", "checked", "class", "disabled", "id", "start", "title", "type"}
LINK = re.compile(r"(?:https?://|mailto:|#)[^\s]*", re.IGNORECASE)
# MathJax's own ways to links, styles and HTML.
MATHJAX = re.compile(
    r"\\\\?\s*(?:href|url|style|class|cssId|require|data|mmlToken|bbox|unicode|includegraphics|HTML)"
    r"(?![A-Za-z])"
)
PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*")


class _Suspicion(HTMLParser):
    """Looks for anything in a page's HTML that does not come from plain Markdown."""

    found = False

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: Counter[str] = Counter()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[tag] += 1
        if tag not in TAGS:
            self.found = True
        for name, value in attrs:
            value = (value or "").strip()
            fine = (
                name in ATTRIBUTES
                or (name == "href" and LINK.fullmatch(value))
                or (name == "src" and PICTURE.fullmatch(value))
                or (name == "style" and re.fullmatch(r"text-align:\s*\w+;?", value))
            )
            if not fine:
                self.found = True

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.open[tag] -= 1
        if self.open[tag] < 0:  # It would close something of the page around it.
            self.found = True

    def handle_comment(self, data: str) -> None:
        self.found = True

    def handle_decl(self, decl: str) -> None:
        self.found = True

    def handle_pi(self, data: str) -> None:
        self.found = True

    def unknown_decl(self, data: str) -> None:
        self.found = True


def _is_plain(source: str, attachments: dict[str, Any]) -> bool:
    """Whether Markdown makes text, tables, formulas, links and own pictures of it, and no more."""
    if MATHJAX.search(source):
        return False
    try:
        suspicion = _Suspicion()
        renderer = IPythonRenderer(escape=False, attachments=attachments)
        html = MarkdownWithMath(renderer=renderer).render(source)
        # What is left open would swallow the page behind it.
        suspicion.feed(f"<p>{html}\n</p><")
    except Exception:  # Whatever the Markdown parser stumbles over is not shown as Markdown.
        return False
    if MATHJAX.search("".join(suspicion.text)):
        return False  # Spelt with entities, which MathJax reads when they are characters again.
    return not suspicion.found and suspicion.rawdata == "<" and suspicion.open["p"] == 0


def _make_inert(cell: NotebookNode, own: bool) -> None:
    """Keep a student's text from becoming HTML in the formgrader, which takes it as it is.

    nbgrader's page knows no sanitising: a script in an answer would run as the instructor. Text
    with anything but plain Markdown in it is therefore shown verbatim, in a fence. What was
    written stays in the cell's metadata, for the feedback page.
    """
    marks = cell.metadata.get("nbgrader", {})
    answer = marks.get("solution") and marks.get("checksum") != compute_checksum(cell)
    if not own and not answer:
        return
    written = cell.source
    # Raw cells would reach the page without even Markdown between.
    if cell.cell_type == "markdown" and _is_plain(written, cell.get("attachments", {})):
        return
    fence = "~" * (3 + max(map(len, re.findall("~+", written)), default=0))
    cell.cell_type = "markdown"
    cell.source = f"{fence}text\n{written}\n{fence}"
    cell.metadata[KEY] = {"written": written}


def written_by_student(cell: NotebookNode) -> str:
    """The source of a graded cell as the student wrote it."""
    return cell.metadata.get(KEY, {}).get("written", cell.source)


def card_of(exercise: ExerciseResult, assignment: Assignment) -> cards.Card:
    """The card in a check cell: hidden tests appear by their purpose, as everywhere."""
    todo = bool(exercise.tests) and all(test.outcome == "todo" for test in exercise.tests)
    good = exercise.points >= exercise.max_points and exercise.passed
    status = "passed" if good else "todo" if todo else "failed"
    said = {"passed": "Everything holds.", "todo": "Nothing was written here."}
    marks = f"{cards.number(exercise.points)} of {cards.number(exercise.max_points)} points"
    heading = assignment.sections.get(exercise.section, "")
    return cards.Card(
        status=status,
        headline=exercise.message or said.get(status, "Something does not hold."),
        name=exercise.name,
        reread=f"“{heading}”" if heading and status == "failed" else "",
        notes=(marks,),
        tests=tuple(
            cards.Line(test.outcome, test.purpose, test.message) for test in exercise.tests
        ),
    )


# ---------------------------------------------------------------------------------------------
# Export


COLUMNS = (
    *("assignment", "duedate", "timestamp", "student_id", "last_name", "first_name", "email"),
    *("raw_score", "late_submission_penalty", "score", "max_score"),
)


SUMS = select(
    SubmittedAssignment.timestamp,
    SubmittedAssignment.score,
    SubmittedAssignment.late_submission_penalty,
).where(SubmittedAssignment.id == bindparam("place"))


class SafeCsv(CsvExportPlugin):
    """nbgrader's export as CSV, with every value in its own cell and none of them a formula.

    nbgrader puts commas between names as they are: a comma in one would move the marks behind it.
    """

    def export(self, gradebook: Gradebook) -> None:
        rows: list[list[Any]] = []
        for assignment in gradebook.assignments:
            if self.assignment and assignment.name not in map(str, self.assignment):
                continue
            handed_in = select(SubmittedAssignment.student_id, SubmittedAssignment.id)
            here = handed_in.where(SubmittedAssignment.assignment_id == assignment.id)
            places = dict(gradebook.db.execute(here).tuples().all())
            for student in gradebook.students:
                if self.student and student.id not in map(str, self.student):
                    continue
                when, score, penalty = None, 0.0, None
                if student.id in places:
                    # Of one at a time: in a sum of several the last digits can be others.
                    asked = {"place": places[student.id]}
                    when, score, penalty = gradebook.db.execute(SUMS, asked).one()
                penalty = penalty or 0.0
                row = [assignment.name, assignment.duedate, when, student.id]
                row += [student.last_name, student.first_name, student.email]
                row += [score, penalty, max(0.0, score - penalty), assignment.max_score]
                rows.append(["" if value is None else value for value in row])
        path = Path(self.to or "grades.csv")
        path.write_text(csv_text([COLUMNS, *rows]), encoding="utf-8", newline="")


# ---------------------------------------------------------------------------------------------
# Feedback


class GetReview(NbGraderPreprocessor):
    """Notes which written answers still wait for a person; GetGrades knows only their points."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        course = resources["nbgrader"]
        course["seconds_late"] = 0.0
        with Gradebook(course["db_url"]) as gradebook:
            place = (course["notebook"], course["assignment"], course["student"])
            try:
                notebook = gradebook.find_submission_notebook(*place)
            except MissingEntry:
                return nb, resources
            for cell in nb.cells:
                marks = cell.metadata.get("nbgrader", {})
                if not marks.get("grade"):
                    continue
                with suppress(MissingEntry):
                    grade = gradebook.find_grade(marks.get("grade_id"), *place)
                    by_hand = grade.manual_score is not None
                    marks["by_hand"] = by_hand
                    marks["waiting"] = bool(grade.needs_manual_grade and not by_hand)
            root = due_dates.root_of(self.config)
            settings = due_dates.of_course(root, course["assignment"]) if root else Settings()
            course["seconds_late"] = settings.lateness(notebook.assignment.total_seconds_late)
        return nb, resources
