"""Our part in nbgrader: its own commands repair, grade safely and give our feedback."""

from __future__ import annotations

import functools
import shutil
import warnings
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbgrader.api import Gradebook
from nbgrader.server_extensions.formgrader import handlers
from nbgrader.utils import determine_grade
from traitlets.config import Config

from autograder.common import paths
from autograder.gradebook import classroom, plugin
from autograder.gradebook.course import Books, prepare, quiet_database
from autograder.gradebook.plugin import shared_pool
from autograder.grading import repair
from autograder.grading.collect import Submission
from autograder.grading.marker import Graded
from autograder.judging.results import ExerciseResult, SubmissionResult, TestResult
from autograder.units.assignment import load
from tests.autograder.helpers import nbgrader

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)
FIRST = ASSIGNMENT.names[0]
ANSWER = "Because of the variance."


def result_with(points: float, **changes) -> SubmissionResult:
    exercises = {
        exercise.name: ExerciseResult(
            exercise.name,
            points,
            exercise.points,
            message="<script>alert(1)</script>",
            tests=[TestResult("test_a", "Values.", False, 1.0, "failed")],
        )
        for exercise in ASSIGNMENT.exercises
    }
    return SubmissionResult("s", exercises=exercises, **changes)


def check_cells(nb: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    found = {plugin.check_name(cell): cell for cell in nb.cells}
    found.pop(None)
    return found


class TestWriteResult:
    def test_nbgrader_reads_the_points_from_every_check_cell(self):
        nb = repair.blank(repair.released(UNIT))
        plugin.write_result(nb, result_with(0.75), ASSIGNMENT)
        cells = check_cells(nb)
        assert set(cells) == set(ASSIGNMENT.names)
        assert {determine_grade(cell)[0] for cell in cells.values()} == {0.75}
        nbformat.validate(nb)

    def test_points_stay_within_what_the_cell_is_worth(self):
        for points, expected in ((1e9, 1.0), (-3.0, 0.0)):
            nb = repair.blank(repair.released(UNIT))
            plugin.write_result(nb, result_with(points), ASSIGNMENT)
            assert determine_grade(check_cells(nb)["causal_mask"])[0] == expected

    def test_a_check_cell_without_a_result_is_worth_nothing(self):
        nb = repair.blank(repair.released(UNIT))
        plugin.write_result(nb, SubmissionResult("s"), ASSIGNMENT)
        assert {determine_grade(cell)[0] for cell in check_cells(nb).values()} == {0.0}

    def test_what_a_student_printed_is_shown_and_never_on_stderr(self):
        nb = repair.blank(repair.released(UNIT))
        result = result_with(1.0, printed={FIRST: "hello", f"check_{FIRST}": "99"})
        plugin.write_result(nb, result, ASSIGNMENT)
        streams = [
            out
            for cell in nb.cells
            for out in cell.get("outputs", [])
            if out.output_type == "stream"
        ]
        assert [(out.name, out.text) for out in streams] == [("stdout", "hello")]

    def test_the_card_is_escaped(self):
        nb = repair.blank(repair.released(UNIT))
        plugin.write_result(nb, result_with(1.0), ASSIGNMENT)
        html = check_cells(nb)[FIRST].outputs[0].data["text/html"]
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_our_steps_cannot_be_switched_off():
    for step in (plugin.Repair, plugin.GradeExercises):
        assert "enabled" not in step.class_traits(config=True)
        config = Config()
        config[step.__name__].enabled = False
        assert step(config=config).enabled


def test_the_repositorys_configuration_is_nbgraders():
    config = Config()
    namespace = {"get_config": lambda: config, "__file__": str(paths.ROOT / "nbgrader_config.py")}
    text = (paths.ROOT / "nbgrader_config.py").read_text(encoding="utf-8")
    exec(compile(text, "nbgrader_config.py", "exec"), namespace)
    steps = config.Autograde.autograde_preprocessors
    assert "autograder.gradebook.plugin.GradeExercises" in steps
    assert "nbgrader.preprocessors.Execute" not in steps


class TestBooks:
    """nbgrader's gradebook, without running anything."""

    def record(self, course: Path, result: SubmissionResult, nb: nbformat.NotebookNode) -> Books:
        release = prepare(course, UNIT)
        books = Books(course, UNIT)
        graded = Graded(result, nbformat.writes(nb))
        books.record(Submission("s"), graded, release)
        assert result.notes == []
        return books

    def test_a_manual_mark_and_comment_survive_regrading(self, course, solved):
        self.record(course, result_with(0.5), solved(why_scale=ANSWER))
        database = f"sqlite:///{course}/gradebook.db"
        with Gradebook(database) as gradebook:
            grade = gradebook.find_grade("why_scale", UNIT, UNIT, "s")
            assert grade.needs_manual_grade
            grade.manual_score, grade.needs_manual_grade = 2.5, False
            other = gradebook.find_grade(f"check_{FIRST}", UNIT, UNIT, "s")
            other.manual_score = 1.5
            comment = gradebook.find_comment("why_scale", UNIT, UNIT, "s")
            comment.manual_comment = "Good."
            gradebook.db.commit()
        self.record(course, result_with(0.25), solved(why_scale=ANSWER))
        with Gradebook(database) as gradebook:
            assert gradebook.find_grade("why_scale", UNIT, UNIT, "s").score == 2.5
            assert gradebook.find_grade(f"check_{FIRST}", UNIT, UNIT, "s").score == 1.5
            comment = gradebook.find_comment("why_scale", UNIT, UNIT, "s")
            assert comment.comment == "Good."
            again = gradebook.find_grade("check_causal_mask", UNIT, UNIT, "s")
            assert again.score == 0.25

    def test_a_manual_mark_counts_in_feedback_and_report(self, course, solved):
        from autograder.reports import class_report

        result = result_with(1.0)
        books = self.record(course, result, solved(why_scale=ANSWER))
        with books.open() as gradebook:
            grade = gradebook.find_grade("why_scale", UNIT, UNIT, "s")
            grade.manual_score, grade.needs_manual_grade = 2.5, False
            gradebook.db.commit()
        graded = classroom.Class(ASSIGNMENT, course, 0, "", [result])
        row = next(class_report.rows_of(graded))
        assert row.total == sum(min(1.0, one.points) for one in ASSIGNMENT.exercises) + 2.5
        assert row.hand.waiting == 1
        assert "2.5 of 3 points" in books.feedback("s").read_text(encoding="utf-8")

    def test_the_export_of_nbgrader_goes_on(self, course, tmp_path, solved):
        books = self.record(course, result_with(1.0), solved(why_scale=ANSWER))
        books.export(tmp_path / "out.csv")
        assert ",s," in (tmp_path / "out.csv").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def commands(tmp_path_factory, prepared, solved):
    """A course graded by typing `nbgrader autograde` and `nbgrader generate_feedback`."""
    course = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("typed") / "course"))
    whole = nbformat.writes(solved())
    wrong = nbformat.writes(
        solved(
            causal_mask="import sys\nprint('mine <b>', file=sys.stderr)\n\n\n"
            "def causal_mask(length):\n"
            "    return torch.ones(length, length, dtype=torch.bool)\n",
            which_mask="<script>alert(1)</script>",
        )
    )
    twice = solved()
    twice.cells.insert(5, nbformat.from_dict({**twice.cells[4], "id": "copy"}))
    old = solved()
    for cell in old.cells:
        if "nbgrader" in cell.metadata:
            cell.metadata.nbgrader["schema_version"] = 1
    cheat = solved()
    for cell in cheat.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "check_decoder_mask":
            cell.source = "99.0"
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "decoder_mask":
            cell.source = "import sys\nsys.displayhook = print\ndecoder_mask = 2.0"
    for student, name, text in (
        ("a-wrong", f"{UNIT}.ipynb", wrong),
        ("b-cut", f"{UNIT}.ipynb", whole[:-300]),
        ("c-garbage", f"{UNIT}.ipynb", "no notebook at all"),
        ("d-misnamed", "my work.ipynb", whole),
        ("e-twice", f"{UNIT}.ipynb", nbformat.writes(twice)),
        ("f-old", f"{UNIT}.ipynb", nbformat.writes(old)),
        ("g-cheat", f"{UNIT}.ipynb", nbformat.writes(cheat)),
        ("z-last", f"{UNIT}.ipynb", whole),
    ):
        path = course / "submitted" / student / UNIT / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    for command in ("autograde", "generate_feedback"):
        nbgrader(command, UNIT, cwd=course, HOME=str(course.parent))
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        scores = {
            submission.student.id: submission.score
            for submission in gradebook.assignment_submissions(UNIT)
        }
    return course, scores


@pytest.mark.slow
@pytest.mark.sandbox
class TestCommands:
    def test_everybody_is_graded_and_honest_work_has_its_marks(self, commands):
        _, scores = commands
        full = ASSIGNMENT.points
        assert len(scores) == 8
        assert {name: scores[name] for name in scores if name[0] in "bdefz"} == {
            "b-cut": full,
            "d-misnamed": full,
            "e-twice": full,
            "f-old": full,
            "z-last": full,
        }
        assert scores["c-garbage"] == 0

    def test_a_mistake_and_a_forgery_earn_nothing(self, commands):
        _, scores = commands
        assert scores["g-cheat"] == ASSIGNMENT.points - ASSIGNMENT.exercise("decoder_mask").points
        assert 0 < scores["a-wrong"] < ASSIGNMENT.points

    def test_the_feedback_is_ours_and_safe(self, commands):
        course, scores = commands
        for student in scores:
            page = course / "feedback" / student / UNIT / f"{UNIT}.html"
            text = page.read_text(encoding="utf-8")
            assert "Content-Security-Policy" in text
            assert "<script" not in text
            assert "HIDDEN TESTS" not in text
        text = (course / "feedback" / "a-wrong" / UNIT / f"{UNIT}.html").read_text()
        assert "mine &lt;b&gt;" in text
        text = (course / "feedback" / "b-cut" / UNIT / f"{UNIT}.html").read_text()
        assert "recovered" in text

    def test_written_questions_wait_for_a_person(self, commands):
        course, _ = commands
        with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
            grade = gradebook.find_grade("which_mask", UNIT, UNIT, "a-wrong")
            assert grade.needs_manual_grade
            assert grade.auto_score is None


def test_nbgrader_refuses_to_grade_without_a_sandbox(course, monkeypatch, tmp_path, solved):
    monkeypatch.setenv("PATH", str(tmp_path))
    shared_pool.cache_clear()
    folder = course / "submitted" / "s" / UNIT
    folder.mkdir(parents=True)
    (folder / f"{UNIT}.ipynb").write_text(nbformat.writes(solved()), encoding="utf-8")
    books = Books(course, UNIT)
    with quiet_database():
        said = books.api.autograde(UNIT, "s")
    shared_pool.cache_clear()
    assert not said["success"]
    assert "sudo apt-get install bubblewrap" in said["log"]
    with books.open() as gradebook:
        assert gradebook.find_submission(UNIT, "s").score == 0


HOSTILE = [
    "hello <script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a < b and $x<y$ <!-- --> </div></pre>",
    "~~~~\n<script>alert(1)</script>\n~~~~",
    "[link](javascript:alert(1)) <https://example.org>",
    "<<script>script>alert(1)</script>",
    "<svg/onload=alert(1)>",
    "[x](java&#115;cript:alert(1)) [y](JaVaScript:alert(1))",
    "[z]: javascript:alert(1)\n\n[z]",
    "<script src=//evil.example/alert",
    "![x](http://evil.example/alert.png)",
    "<a href='java\tscript:alert(1)'>x</a>",
    "    <script>alert(1)</script>",
    "$\\href{javascript:alert(1)}{x}$",
]
PLAIN = (
    "![p](attachment:a.png) **So** that $x<y$ and `a<b` hold:\n\n"
    "| a | b |\n|---|--:|\n| 1 | <https://a.example> |\n"
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("kind", ["markdown", "raw", "answer"])
def test_the_formgrader_shows_no_script_of_a_students(tmp_path, kind, text):
    """nbgrader's own page takes a text cell as it is; what reaches it is harmless."""
    nb = repair.blank(repair.released(UNIT))
    if kind == "answer":
        cell = next(cell for cell in nb.cells if cell.id == "why_scale")
        cell.source = text
    else:
        make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_raw_cell
        cell = make(text, id="mine")
        nb.cells.append(cell)
    # Enough of it: the text and a check cell with our card.
    nb.cells = [one for one in nb.cells if one is cell or one.id == f"check_{FIRST}"]
    assert len(nb.cells) == 2
    nb.metadata[plugin.KEY] = {"own": ["mine"]}
    plugin.write_result(nb, result_with(1.0), ASSIGNMENT)
    nbformat.validate(nb)
    assert plugin.written_by_student(cell) == text
    page = formgrader_page(nb)
    soup = BeautifulSoup(page, "html.parser")
    assert not [tag for tag in soup.find_all("script") if "alert" in tag.get_text()]
    assert not [tag for tag in soup.find_all(True) if {"onerror", "onload"} & set(tag.attrs)]
    assert not [tag for tag in soup.find_all("a", href=True) if "alert" in tag["href"]]
    assert not [tag for tag in soup.find_all(src=True) if "alert" in tag["src"]]
    assert soup.find(class_="tbh-card") is not None  # Our own card is shown as it is meant.


def test_plain_markdown_stays_as_it_was_written():
    nb = repair.blank(repair.released(UNIT))
    cell = next(cell for cell in nb.cells if cell.id == "why_scale")
    cell.source = PLAIN
    cell.attachments = {"a.png": {"image/png": "QUJD"}}
    plugin.write_result(nb, result_with(1.0), ASSIGNMENT)
    assert cell.source == PLAIN
    assert BeautifulSoup(formgrader_page(nb), "html.parser").find("a", href="https://a.example")


@functools.cache
def formgrader() -> HTMLExporter:
    """With nbgrader's own template, which takes longer to read than to fill in."""
    config = Config()
    config.HTMLExporter.template_name = "formgrade"
    config.HTMLExporter.extra_template_basedirs = [handlers.template_path]
    return HTMLExporter(config=config)


def formgrader_page(nb: nbformat.NotebookNode) -> str:
    """The page on which an instructor marks a notebook."""
    names = ("student", "last_name", "first_name", "submission_id", "notebook_id", "assignment_id")
    resources = {
        **dict.fromkeys(names, "s"),
        "base_url": "/",
        "mathjax_url": "",
        "index": 0,
        "total": 1,
        "next": None,
        "prev": None,
        "nbgrader": {},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return formgrader().from_notebook_node(nb, resources=resources)[0]


def test_an_untouched_answer_is_still_recognised_as_such():
    nb = repair.blank(repair.released(UNIT))
    before = {cell.id: cell.source for cell in nb.cells}
    plugin.write_result(nb, result_with(1.0), ASSIGNMENT)
    assert {cell.id: cell.source for cell in nb.cells} == before
    cell = next(cell for cell in nb.cells if cell.id == "why_scale")
    assert determine_grade(cell) == (0, 3.0)
