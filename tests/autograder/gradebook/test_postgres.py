"""A gradebook on a PostgreSQL server: the same marks, the same programs, plain refusals."""

from __future__ import annotations

import csv
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import nbformat
import pytest

from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.gradebook import classroom, database
from autograder.gradebook.course import CONFIG, Books, prepare, quiet_database
from autograder.grading import repair
from autograder.grading.collect import Person, Submission
from autograder.grading.marker import Graded, empty_result
from autograder.reports import class_report
from autograder.units.assignment import load
from tests.autograder.helpers import nbgrader

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)
ANSWER = "Because of the variance."
SEED = 7


def programs() -> Path | None:
    """The folder of PostgreSQL's own programs, which Debian keeps out of the PATH."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    return max(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """A server of our own: the folder of its socket. It listens to nothing else."""
    binaries = programs()
    if binaries is None:
        pytest.skip("no PostgreSQL here: sudo apt-get install postgresql")
    # Root may not run it, and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    other: dict[str, object] = {}
    if os.getuid() == 0:
        user = pwd.getpwnam("nobody")
        other = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        os.chown(folder, user.pw_uid, user.pw_gid)

    def run(*command: object) -> None:
        said = folder / "said.txt"
        with said.open("ab") as out:
            done = subprocess.run(
                [str(binaries / str(command[0])), *map(str, command[1:])],
                cwd=folder,
                stdout=out,
                stderr=out,
                timeout=60,
                **other,
            )
        assert done.returncode == 0, said.read_text(encoding="utf-8")

    data = folder / "data"
    try:
        run("initdb", "-D", data, "-A", "trust", "-U", "course", "-E", "UTF8", "--no-sync")
        options = f"-F -c listen_addresses='' -k {folder}"
        run("pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
        try:
            yield folder
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def new_database(server: Path) -> Callable[[str], str]:
    """Makes an empty database and returns its URL, as a person would write it."""
    import psycopg2

    def make(name: str) -> str:
        with closing(
            psycopg2.connect(host=str(server), user="course", dbname="postgres")
        ) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return f"postgresql://course@/{name}?host={server}"

    return make


def submitted(folder: Path, solved: Callable[..., nbformat.NotebookNode]) -> Path:
    wrong = "def causal_mask(length):\n    return torch.ones(length, length, dtype=torch.bool)\n"
    for student, notebook in (
        ("ada", solved(why_scale=ANSWER)),
        ("bob", solved(causal_mask=wrong)),
        ("cy", repair.released(UNIT)),
    ):
        path = folder / student / UNIT / f"{UNIT}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(nbformat.writes(notebook), encoding="utf-8")
    (folder / "bob" / UNIT / "timestamp.txt").write_text("2030-02-03 10:00:00 UTC")
    return folder


def marks(course: Path) -> dict[str, dict[str, tuple[float, float, bool]]]:
    """Everybody's points, cell by cell, as nbgrader has them."""
    with quiet_database(), database.opened(database.url_of(course)) as book:
        return {
            one.student.id: {
                grade.name: (grade.score, grade.max_score, bool(grade.needs_manual_grade))
                for notebook in one.notebooks
                for grade in notebook.grades
            }
            for one in book.assignment_submissions(UNIT)
        }


@pytest.fixture(scope="module")
def graded(tmp_path_factory, new_database, solved) -> Path:
    """A small class, graded into a file and into PostgreSQL."""
    folder = tmp_path_factory.mktemp("class")
    submitted(folder / "in", solved)
    prepare(folder / "server", UNIT, db_url=new_database("class"))
    for place in ("file", "server"):
        result = classroom.grade(
            UNIT,
            folder / "in",
            folder / place,
            roster=[Person("dan", "Dan", "Other")],
            due="2030-02-03 09:00:00 UTC",
            seed=SEED,
        )
        assert result.complete
    return folder


@pytest.mark.slow
@pytest.mark.sandbox
class TestClass:
    def test_marks_are_those_of_the_file(self, graded):
        ours = marks(graded / "server")
        assert ours == marks(graded / "file")
        assert set(ours) == {"ada", "bob", "cy", "dan"}
        scores = {
            student: sum(cell[0] for cell in cells.values()) for student, cells in ours.items()
        }
        assert (
            scores["ada"] == ASSIGNMENT.points > scores["bob"] > scores["cy"] == scores["dan"] == 0
        )
        assert not (graded / "server" / "gradebook.db").exists()

    def test_a_mark_given_by_hand_survives_and_reaches_report_feedback_and_export(
        self, graded, tmp_path
    ):
        course = graded / "server"
        with quiet_database(), database.opened(database.url_of(course)) as book:
            grade = book.find_grade("why_scale", UNIT, UNIT, "ada")
            assert grade.needs_manual_grade
            grade.manual_score, grade.needs_manual_grade = 2.5, False
            book.db.commit()
        again = classroom.grade(UNIT, graded / "in", course, seed=SEED)
        assert marks(course)["ada"]["why_scale"][:2] == (2.5, 3.0)
        rows = {row.student: row for row in class_report.rows_of(again)}
        assert rows["ada"].total == ASSIGNMENT.points + 2.5
        books = Books(course, UNIT)
        assert "2.5 of 3 points" in books.feedback("ada").read_text(encoding="utf-8")
        books.export(tmp_path / "out.csv")
        with (tmp_path / "out.csv").open(encoding="utf-8") as opened:
            total = {row["student_id"]: float(row["score"]) for row in csv.DictReader(opened)}
        assert total["ada"] == ASSIGNMENT.points + 2.5

    def test_nbgraders_own_commands_in_the_courses_folder_see_the_marks(self, graded, tmp_path):
        course = graded / "server"
        for command in (["export", "--to", str(tmp_path / "marks.csv")], ["db", "upgrade"]):
            nbgrader(*command, cwd=course, HOME=str(tmp_path))
        with (tmp_path / "marks.csv").open(encoding="utf-8") as opened:
            raw = {row["student_id"]: float(row["raw_score"]) for row in csv.DictReader(opened)}
        ours = {
            one: sum(cell[0] for cell in cells.values()) for one, cells in marks(course).items()
        }
        assert raw == ours
        assert not (course / "gradebook.db").exists()

    def test_grading_by_nbgrader_finds_the_courses_release_and_seed(self, graded, solved):
        course = graded / "server"
        place = course / "submitted" / "eve" / UNIT
        place.mkdir(parents=True)
        (place / f"{UNIT}.ipynb").write_text(nbformat.writes(solved()), encoding="utf-8")
        (course / "seed.txt").unlink(missing_ok=True)
        books = Books(course, UNIT)
        with quiet_database():
            said = books.api.autograde(UNIT, "eve", force=True)
        assert said["success"], said
        assert (course / "seed.txt").is_file()
        assert sum(cell[0] for cell in marks(course)["eve"].values()) == ASSIGNMENT.points


@pytest.fixture
def course(new_database, tmp_path, request) -> Path:
    """A course in which nobody has handed in yet, with a database of its own."""
    name = "".join(char if char.isalnum() else "_" for char in request.node.name.lower())[:60]
    prepare(tmp_path / "course", UNIT, db_url=new_database(name))
    return tmp_path / "course"


def entered(books: Books, student: str, points: float, release: nbformat.NotebookNode) -> list[str]:
    result = empty_result(ASSIGNMENT, student, "graded", "")
    result.exercises["causal_mask"].points = points
    books.record(
        Submission(student), Graded(result, nbformat.writes(repair.blank(release))), release
    )
    return result.notes


def test_a_name_that_the_server_cannot_hold_is_told_and_stops_nobody(course, capfd):
    release = prepare(course, UNIT)
    books = Books(course, UNIT)
    people = ["ada", "x" * 150, "cy"]
    with books.alone():
        books.enter(Person(one, "First" * 40, "Last") for one in people)
        notes = {one: entered(books, one, 1.0, release) for one in people}
    assert "could not record" in notes["x" * 150][0]
    assert notes["ada"] == notes["cy"] == []
    assert set(marks(course)) == {"ada", "cy"}
    assert "Traceback" not in capfd.readouterr().err
    # Where nothing is known of it any more, the course is made once again, and keeps the marks.
    (course / "release" / UNIT / ".made-from").unlink()
    prepare(course, UNIT)
    assert marks(course)["cy"]["check_causal_mask"][0] == 1.0
    # The address stands where nbgrader looks for it, and is the course's own from now on.
    assert "postgresql+psycopg2://course@/" in (course / "nbgrader_config.py").read_text()
    assert Books(course, UNIT).directory.db_url == database.url_of(course)
    # A database that was emptied is noticed.
    import psycopg2
    from sqlalchemy import make_url

    url = make_url(database.url_of(course))
    with closing(
        psycopg2.connect(host=url.query["host"], user="course", dbname=url.database)
    ) as connection:
        connection.cursor().execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.commit()
    assert not database.knows(database.url_of(course), UNIT)
    prepare(course, UNIT)
    assert database.knows(database.url_of(course), UNIT)


# ---------------------------------------------------------------------------------------------
# What is refused


def test_a_server_or_database_that_is_not_there_is_one_sentence(server, tmp_path):
    for url in (
        f"postgresql://course@/nowhere?host={server}",
        f"postgresql://course@/class?host={tmp_path}",
        "postgresql://course@127.0.0.1:1/class",
    ):
        with pytest.raises(ClassroomError, match="cannot be opened") as said:
            prepare(tmp_path / "course", UNIT, db_url=url)
        assert str(said.value).count("\n") == 0
        assert "start the server, or correct the address" in str(said.value)
    # What does not work is not kept.
    assert database.configured(tmp_path / "course") is None


def test_a_missing_driver_is_named_with_its_remedy(tmp_path, monkeypatch):
    with pytest.raises(ClassroomError, match=r"no driver for postgresql\+pg8000"):
        prepare(tmp_path, UNIT, db_url="postgresql+pg8000://course@host/class")
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClassroomError, match=r"pip install -r requirements\.txt"):
        prepare(tmp_path, UNIT, db_url="postgresql://course@host/class")


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://course:secret@host/class", "~/.pgpass"),
        ("postgresql://course@host/class?password=secret", "~/.pgpass"),
        ("mysql://course@host/class", "use postgresql://"),
        ("gradebook.db", "write postgresql://"),
        ("sqlite:///gradebook.db", "sqlite:////folder/gradebook.db"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_sentence(tmp_path, url, remedy):
    with pytest.raises(ClassroomError) as said:
        database.url_of(tmp_path, url)
    assert remedy in str(said.value)
    assert "secret" not in str(said.value)


def test_a_service_file_and_the_plain_name_are_taken(tmp_path):
    for written in ("postgres:///?service=marks", "postgresql:///?service=marks"):
        assert database.url_of(tmp_path, written) == "postgresql+psycopg2:///?service=marks"
    file = tmp_path / "other.db"
    assert database.url_of(tmp_path, f"sqlite:///{file}") == f"sqlite:///{file}"


def test_an_instructors_own_configuration_is_heeded_and_kept(tmp_path):
    own = tmp_path / "nbgrader_config.py"
    text = (
        f"import sys\n\nsys.path.insert(0, {str(paths.ROOT)!r})\n"
        "c = get_config()\nc.CourseDirectory.db_url = 'sqlite:////srv/marks.db'\n"
    )
    own.write_text(text, encoding="utf-8")
    path = list(sys.path)
    assert database.url_of(tmp_path) == "sqlite:////srv/marks.db"
    assert sys.path == path
    with pytest.raises(ClassroomError, match="is your own and names another gradebook"):
        prepare(tmp_path, UNIT, db_url=f"sqlite:///{tmp_path}/other.db")
    assert own.read_text(encoding="utf-8") == text
    own.write_text("c = get_config(\n", encoding="utf-8")
    with pytest.raises(ClassroomError, match="cannot be read"):
        database.url_of(tmp_path)


@pytest.mark.parametrize("place", ["", ", db_url='sqlite:////srv/marks.db'"])
def test_a_configuration_that_an_earlier_version_wrote_is_brought_up_to_date(tmp_path, place):
    file = tmp_path / "nbgrader_config.py"
    written = CONFIG.format(root=str(paths.ROOT), db_url=place)
    file.write_text(written.replace("gradebook.plugin", "earlier_plugin"), encoding="utf-8")
    if place:
        assert database.url_of(tmp_path) == "sqlite:////srv/marks.db"
    else:
        assert database.url_of(tmp_path) == database.default_url(tmp_path)
        prepare(tmp_path, UNIT)
        assert file.read_text(encoding="utf-8") == written
