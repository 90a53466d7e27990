"""Marks go back into the tables of Canvas, Moodle, Gradescope and GitHub Classroom."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.__main__ import main
from autograder.common.errors import ClassroomError
from autograder.gradebook.classroom import Class
from autograder.gradebook.course import quiet_database
from autograder.grading.marker import empty_result
from autograder.lms.base import Member, People
from autograder.lms.table import Table
from autograder.units.assignment import load
from tests.autograder.helpers import status_of
from tests.autograder.lms import exports
from tests.autograder.lms.exports import zipped

UNIT = "attention-self_attention"  # It has written questions.
ATTENTION = load(UNIT)
STUDENTS = {"s01": 14.0, "s02": 11.5, "s03": 0.0}
MOST = ATTENTION.points + ATTENTION.written_points
# With what the gradebook adds: a written answer and an exercise changed by a person; a penalty.
TOTAL = {"s01": "16.5", "s02": "9.5", "s03": "0"}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Path:
    """A course that was graded: results as `grade` writes them, and nbgrader's gradebook."""
    course = Path(shutil.copytree(prepared, tmp_path_factory.mktemp("graded") / "course"))
    results = []
    question, first = ATTENTION.questions[0].name, ATTENTION.exercises[0]
    with quiet_database(), Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        for student, score in STUDENTS.items():
            result = empty_result(ATTENTION, student, "graded", "")
            left = score
            for exercise in ATTENTION.exercises:
                result.exercises[exercise.name].points = min(left, exercise.points)
                left -= min(left, exercise.points)
            result.score = score
            results.append(result)
            gradebook.update_or_create_student(student)
            gradebook.add_submission(UNIT, student)
            page = course / "feedback" / student / UNIT / f"{UNIT}.html"
            page.parent.mkdir(parents=True)
            page.write_text(f"<p>{student}</p>")
        grade = gradebook.find_grade(question, UNIT, UNIT, "s01")
        grade.manual_score = 2.0
        grade.needs_manual_grade = False
        grade = gradebook.find_grade(f"check_{first.name}", UNIT, UNIT, "s01")
        grade.manual_score = first.points + 0.5
        notebook = gradebook.find_submission_notebook(UNIT, UNIT, "s02")
        notebook.late_submission_penalty = 2.0
        gradebook.db.commit()
    Class(ATTENTION, course, 1, "abc", results).write()
    return course


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    path = tmp_path / "roster.csv"
    path.write_text(
        "student,name,email,canvas_id,moodle_id,gradescope_id,github_login\n"
        "s01,Ada Lovelace,ada@example.edu,1201,401,501,ada-l\n"
        "s02,Grace Hopper,grace@example.edu,1202,402,502,ghopper\n"
        "s03,Zoë Müller,zoe@example.edu,1203,403,503,zmueller\n",
        encoding="utf-8",
    )
    return path


class Run:
    """What `export` did."""

    def __init__(self, code: int, out: str, err: str, path: Path) -> None:
        self.code, self.path = code, path
        self.out, self.err = " ".join(out.split()), " ".join(err.split())

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()

    def rows(self) -> list[list[str]]:
        return list(csv.reader(io.StringIO(self.data.decode("utf-8-sig"))))


@pytest.fixture
def send(course: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def run(tool: str, template: bytes | None, *more: str) -> Run:
        out = tmp_path / "out.csv"
        arguments = ["export", tool, UNIT, "--course", str(course), "--out", str(out)]
        if template is not None:
            (tmp_path / "template.csv").write_bytes(template)
            arguments += ["--template", str(tmp_path / "template.csv")]
        code = status_of([*arguments, *more])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Run(code, said.out, said.err, out)

    return run


GRADEBOOK = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Attention: self-attention (98765),Essay (98766),"
    "Attention: self-attention Current Points,Final Score\r\n"
    ",,,,,Manual Posting,,,\r\n"
    f"    Points Possible,,,,,{MOST:.2f},10.00,(read only),(read only)\r\n"
    '"Lovelace, Ada",1201,,s01@example.edu,"Intro, A",,7.50,0.00,"=1+1"\r\n'
    '"Hopper, Grace",1202,,grace,"Intro, A",3.00,8.00,0.00,55.5\r\n'
    '"Müller, Zoë ""Z""",1203,,zoe,"Intro, A",,,0.00,\r\n'
    '"Noether, Emmy",1204,,emmy,"Intro, A",,9.00,0.00,\r\n'
    '"Student, Test",1299,,x,"Intro, A",,,0.00,\r\n'
).encode()


def test_canvas_one_column_is_filled_and_every_other_byte_stays(send, roster: Path) -> None:
    run = send("canvas", GRADEBOOK, "--roster", str(roster))
    assert run.code == 0, run.err
    expected = GRADEBOOK.decode().splitlines(keepends=True)
    expected[3] = expected[3].replace('A",,7.50', f'A",{TOTAL["s01"]},7.50')
    expected[4] = expected[4].replace('A",3.00,8.00', f'A",{TOTAL["s02"]},8.00')
    expected[5] = expected[5].replace('A",,,0.00', f'A",{TOTAL["s03"]},,0.00')
    assert run.data.decode() == "".join(expected)
    assert "without a mark: Noether, Emmy." in run.out
    assert "Written answers of" in run.out


@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_canvas_with_a_byte_order_mark_and_semicolons(send, roster: Path, mark: str) -> None:
    text = (
        "Student;ID;SIS Login ID;Section;Attention: self-attention (1)\n"
        f"    Points Possible;;;;{MOST:.2f}\n".replace(".", ",")
        + "Lovelace, Ada;1201;a;X;1,25\nHopper, Grace;1202;b;X;\nMüller, Zoë;1203;c;X;\n"
    )
    run = send("canvas", (mark + text).encode(), "--roster", str(roster))
    assert run.code == 0, run.err
    lines = run.data.decode().splitlines()
    assert lines[0].startswith(mark + "Student;")
    assert lines[2:] == [
        *("Lovelace, Ada;1201;a;X;16,5", "Hopper, Grace;1202;b;X;9,5", "Müller, Zoë;1203;c;X;0"),
    ]


def test_canvas_says_who_has_no_row_and_who_is_excused(send, roster: Path) -> None:
    text = GRADEBOOK.replace(b'"Hopper, Grace",1202,,grace,"Intro, A",3.00', b"x,9,,y,z,1")
    text = text.replace(b'"Z""",1203,,zoe,"Intro, A",', b'"Z""",1203,,zoe,"Intro, A",EX')
    run = send("canvas", text, "--roster", str(roster))
    assert run.code == 1
    assert "s02 has 9.5 points and no row in the table" in run.err
    assert 'Müller, Zoë "Z" has EX there, which stays; the mark is 0.' in run.err
    assert run.rows()[5][5] == "EX"


def test_canvas_logins_without_a_roster(send) -> None:
    text = GRADEBOOK.replace(b"s01@example.edu", b"s01").replace(b",grace,", b",S02,")
    run = send("canvas", text.replace(b",zoe,", b",s03,"))
    assert run.code == 0, run.err
    assert [row[5] for row in run.rows()[3:6]] == list(TOTAL.values())


def test_a_tools_number_is_nobodys_name() -> None:
    """Canvas's or Moodle's number that happens to be some student's own id proves nothing."""
    people = People([Member("1202"), Member("ada", ids={"canvas_id": "1203"})])
    assert people.find({"canvas_id": "1202"}) is None
    assert people.find({"moodle_id": "1202"}) is None
    assert people.find({"login": "1202"}) is people.members[0]
    assert people.find({"canvas_id": "1203"}) is people.members[1]


def test_an_id_or_a_name_of_two_people_finds_nobody() -> None:
    two = [
        Member("a", "Kim Lee", ids={"email": "k@x"}),
        Member("b", "Lee, Kim", ids={"email": "K@x"}),
    ]
    assert People(two).find({"email": "k@x"}) is None
    assert People(two).find({}, "Kim Lee") is None
    assert People(two[:1]).find({}, "Lee, Kim") is two[0]


@pytest.mark.parametrize(
    ("template", "more", "sentence"),
    [
        (None, (), "Canvas needs its own table"),
        (b"", (), "is empty"),
        (b"a,b\n1,2\n", (), "is no gradebook of Canvas"),
        (
            GRADEBOOK.replace(b"Attention: self-attention (98765)", b"Homework (98765)"),
            (),
            "Which column of",
        ),
        (GRADEBOOK, ("--column", "Nothing"), "has no column 'Nothing'"),
        (GRADEBOOK + b'"never closed', (), "a quotation mark that is never closed"),
        ("Student,ID,Section\n".encode("utf-16"), (), "is not in UTF-8"),
        (GRADEBOOK, ("--feedback", "x.zip"), "Canvas takes no zip of feedback"),
    ],
)
def test_refusals_are_one_sentence(send, template, more, sentence: str) -> None:
    run = send("canvas", template, *more)
    assert run.code == 2
    assert sentence in run.err
    assert not run.path.exists()


def test_other_points_in_canvas_are_told(send, roster: Path) -> None:
    text = GRADEBOOK.replace(f"{MOST:.2f}".encode(), b"10.00", 1)
    run = send("canvas", text, "--roster", str(roster))
    assert run.code == 0
    column = "Attention: self-attention (98765)"
    assert f"Canvas counts 10 points for {column}, the assignment has {MOST:g}" in run.out


WORKSHEET = (
    '\ufeffIdentifier,"Full name","Email address",Status,Grade,"Maximum Grade",'
    '"Grade can be changed","Last modified (submission)","Last modified (grade)",'
    '"Feedback comments"\n'
    f'"Participant 401","Ada Lovelace",ada@example.edu,"Submitted, for grading",,{MOST:.2f},Yes,'
    '"Monday, 31 December 2029, 7:00 AM",-,\n'
    f'"Participant 402","Grace_Hopper",grace@example.edu,Submitted,"",{MOST:.2f},Yes,-,-,"See me"\n'
    f'"Participant 403","Zoë Müller",zoe@example.edu,"No submission",,{MOST:.2f},Yes,-,-,\n'
).encode()


def test_moodle_worksheet_and_feedback(send, roster: Path, tmp_path: Path) -> None:
    zip_path = tmp_path / "feedback.zip"
    run = send("moodle", WORKSHEET, "--roster", str(roster), "--feedback", str(zip_path))
    assert run.code == 0, run.err
    rows = run.rows()
    assert [row[4] for row in rows[1:]] == list(TOTAL.values())
    assert rows[2][9] == "See me"
    assert rows[1][9].startswith(f"16.5 of {MOST:g} points: exercises 14.5 of")
    kept = [[cell for place, cell in enumerate(row) if place not in (4, 9)] for row in rows]
    before = list(csv.reader(io.StringIO(WORKSHEET.decode("utf-8-sig"))))
    assert kept == [[c for place, c in enumerate(row) if place not in (4, 9)] for row in before]
    assert run.data.startswith(WORKSHEET.splitlines()[0])
    with zipfile.ZipFile(zip_path) as archive:
        pages = {name: archive.read(name).decode() for name in archive.namelist()}
    assert pages == {
        f"Ada Lovelace_401_assignsubmission_file/{UNIT}-feedback.html": "<p>s01</p>",
        f"Grace Hopper_402_assignsubmission_file/{UNIT}-feedback.html": "<p>s02</p>",
        f"Zoë Müller_403_assignsubmission_file/{UNIT}-feedback.html": "<p>s03</p>",
    }


def test_moodle_reads_its_feedback_zip(send, roster: Path, tmp_path: Path) -> None:
    """By the rule that Moodle itself applies to the names in such a zip."""
    zip_path = tmp_path / "feedback.zip"
    send("moodle", WORKSHEET, "--roster", str(roster), "--feedback", str(zip_path))
    names = zipfile.ZipFile(zip_path).namelist()
    assert len(names) == len(STUDENTS)
    for name in names:
        parts = name.split("/")[0].split("_", 4)
        assert len(parts) >= 4
        assert parts[1] in ("401", "402", "403")
        assert parts[2:4] == ["assignsubmission", "file"]


def test_moodle_leaves_out_what_is_above_its_maximum(send, roster: Path) -> None:
    text = WORKSHEET.replace(f",{MOST:.2f},".encode(), b",10.00,")
    run = send(
        "moodle", text.replace(b"10.00,Yes,-,-,\n", b"10.00,No,-,-,\n"), "--roster", str(roster)
    )
    assert run.code == 1
    assert "leaves out marks above its maximum of 10: s01." in run.err
    assert "Moodle has locked the grade of Zoë Müller." in run.err


def test_moodle_in_another_language(send, roster: Path) -> None:
    text = WORKSHEET.decode().replace("Identifier", "ID").replace("Participant", "Teilnehmer/in")
    text = text.replace(",Grade,", ",Bewertung,")
    run = send("moodle", text.encode(), "--roster", str(roster))
    assert run.code == 2
    assert "--column Bewertung" in run.err
    run = send("moodle", text.encode(), "--roster", str(roster), "--column", "Bewertung")
    assert run.code == 0, run.err
    assert [row[4] for row in run.rows()[1:]] == list(TOTAL.values())


def test_moodle_by_email_when_a_student_is_called_by_it(send) -> None:
    text = WORKSHEET.replace(b"ada@example.edu", b"s01").replace(b"grace@example.edu", b"s02")
    run = send("moodle", text.replace(b"zoe@example.edu", b"s03"))
    assert run.code == 0, run.err


def test_gradescope_grades(send, roster: Path) -> None:
    text = (
        "First Name,Last Name,SID,Email,Sections,Total Score,Max Points,Status,Submission ID,"
        "Submission Time,Lateness (H:M:S),View Count,Submission Count\n"
        f"Ada,Lovelace,100,ada@example.edu,A,,{MOST:.1f},Ungraded,501,t,00:00:00,0,2\n"
        f"Grace,Hopper,101,GRACE@example.edu,A,1.0,{MOST:.1f},Graded,502,t,00:00:00,0,1\n"
        "Zoë,Müller,102,,A,,,Missing,503,,,,\n"
    )
    run = send("gradescope", text.encode(), "--roster", str(roster))
    assert run.code == 0, run.err
    assert [row[5] for row in run.rows()[1:]] == list(TOTAL.values())


def test_github_grades_with_and_without_a_template(send, roster: Path) -> None:
    run = send("github", exports.GITHUB_GRADES.encode(), "--roster", str(roster))
    assert run.code == 1
    assert "s03 has 0 points and no row" in run.err
    assert [row[8:] for row in run.rows()[1:]] == [["16.5", f"{MOST:g}"], ["9.5", f"{MOST:g}"]]
    run = send("github", None, "--roster", str(roster))
    assert run.code == 0, run.err
    assert run.rows() == [
        ["roster_identifier", "github_username", "points_awarded", "points_available"],
        ["s01", "ada-l", "16.5", f"{MOST:g}"],
        ["s02", "ghopper", "9.5", f"{MOST:g}"],
        ["s03", "zmueller", "0", f"{MOST:g}"],
    ]


def test_our_own_cells_run_in_no_spreadsheet(send, tmp_path: Path) -> None:
    evil = tmp_path / "r.csv"
    evil.write_text("student,github_login\ns01,\"=cmd|'calc'!A1\"\ns02,a\ns03,b\n")
    run = send("github", None, "--roster", str(evil))
    assert run.rows()[1][1] == "'=cmd|'calc'!A1"


def test_a_course_that_was_not_graded(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        main(
            [
                "export",
                "github",
                UNIT,
                "--course",
                str(tmp_path),
                "--out",
                str(tmp_path / "x"),
            ]
        )
    assert "has not been graded" in " ".join(capsys.readouterr().err.split())


def test_the_template_is_never_written_over(send, course: Path, tmp_path: Path, roster) -> None:
    run = send(
        "canvas", GRADEBOOK, "--roster", str(roster), "--out", str(tmp_path / "template.csv")
    )
    assert run.code == 2
    assert "is the template itself" in run.err
    assert (tmp_path / "template.csv").read_bytes() == GRADEBOOK


def test_tables_give_back_the_same_bytes() -> None:
    for data in (
        GRADEBOOK,
        WORKSHEET,
        b"a\n\n\nb",
        b'"a ""b"" ",\r\n"x\r\ny",2\r\n',
        b"caf\xe9;b\r1;2\r",
    ):
        assert Table(data).to_bytes() == data
        values = Table(data).rows
        delimiter = Table(data).delimiter
        text = data.decode(Table(data).encoding).removeprefix("\ufeff")
        wanted = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
        assert values == [row for row in wanted if len(row) > 1 or "".join(row).strip()]


def test_a_cell_in_a_short_row(tmp_path: Path) -> None:
    table = Table(b"a,b,c\n1\n2,x\n")
    table.put(1, 2, "y")
    table.put(2, 1, 'say "hi", you')
    assert table.to_bytes() == b'a,b,c\n1,,y\n2,"say ""hi"", you"\n'


def test_an_empty_table_is_a_sentence() -> None:
    with pytest.raises(ClassroomError, match="is empty"):
        Table(b"\n\n")


@pytest.mark.slow
@pytest.mark.sandbox
def test_from_canvas_to_canvas(tmp_path: Path, capsys) -> None:
    """The whole way: a download is imported, graded, and its marks stand in the gradebook."""
    from autograder.demo.make_class import Notebook
    from autograder.demo.styles import Style
    from autograder.gradebook.classroom import grade
    from autograder.grading.collect import read_roster
    from autograder.units.variants import reference_answers

    released = Path(__file__).parents[3] / "exercises" / UNIT / f"{UNIT}.ipynb"
    blank = Notebook(json.loads(released.read_text("utf-8")))
    names = list(ATTENTION.names)
    some = Notebook(blank.data).answer(Style(reference_answers(UNIT), {}), names[:4])
    path = zipped(
        tmp_path / "submissions.zip",
        {
            "lovelaceada_1201_880001_attention-self_attention.ipynb": some.text().encode(),
            "hoppergrace_1202_880002_attention-self_attention-1.ipynb": blank.text().encode(),
        },
    )
    gradebook = tmp_path / "gradebook.csv"
    gradebook.write_bytes(
        GRADEBOOK.replace(b"s01@example.edu", b"ada").replace(b'Z""",1203', b'Z""",1209')
    )
    to, out = tmp_path / "submitted", tmp_path / "out.csv"
    arguments = ["import", "canvas", str(path), "--assignment", UNIT, "--to", str(to)]
    assert status_of([*arguments, "--roster", str(gradebook)]) == 0
    roster = tmp_path / "roster.csv"
    graded = grade(UNIT, to, tmp_path / "course", roster=read_roster(roster), seed=1)
    assert {one.student: one.status for one in graded.results} == {
        "ada": "graded",
        "grace": "graded",
        "zoe": "missing",
        "emmy": "missing",
    }
    arguments = ["export", "canvas", UNIT, "--course", str(tmp_path / "course")]
    arguments += ["--template", str(gradebook), "--out", str(out), "--roster", str(roster)]
    assert status_of(arguments) == 0
    rows = list(csv.reader(out.open(encoding="utf-8")))
    points = sum(exercise.points for exercise in ATTENTION.exercises[:4])
    assert [row[5] for row in rows[3:5]] == [f"{points:g}", "0"]
