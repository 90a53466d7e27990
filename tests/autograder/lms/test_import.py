"""What Canvas, Moodle, Gradescope and GitHub Classroom export becomes a folder to grade."""

from __future__ import annotations

import csv
import json
import logging
import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from autograder.grading.collect import collect, read_roster
from autograder.lms import Tool, archive, canvas, moodle
from autograder.lms.archive import Archive
from autograder.lms.base import People
from tests.autograder.helpers import status_of
from tests.autograder.lms import exports
from tests.autograder.lms.exports import EXPORTS, notebook, zipped


class Said:
    """What a command said, and its exit status."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def bring(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`import TOOL EXPORT` into tmp_path/class/submitted."""

    def run(tool: str, export: Path, *more: str) -> Said:
        to = tmp_path / "class" / "submitted"
        arguments = [
            "import",
            tool,
            str(export),
            "--assignment",
            "attention-scores",
            "--to",
            str(to),
        ]
        code = status_of([*arguments, *more])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Said(code, captured.out, captured.err)

    return run


def told(to: Path, student: str, attempt: str = "") -> str:
    """The text in a student's notebook."""
    file = to / student / attempt / "attention-scores" / "attention-scores.ipynb"
    return "".join(json.loads(file.read_text("utf-8"))["cells"][0]["source"])


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "class" / "submitted"


def test_canvas(bring, to: Path, tmp_path: Path) -> None:
    said = bring("canvas", zipped(tmp_path / "submissions.zip", exports.CANVAS))
    assert said.code == 0, said.err
    assert sorted(path.name for path in to.iterdir()) == [
        "hoppergrace_1202",
        "lovelaceada_1201",
        "müllerzoë_1203",
    ]
    assert told(to, "lovelaceada_1201") == "ada"
    assert told(to, "hoppergrace_1202") == "grace"
    assert told(to, "müllerzoë_1203") == "zoë"  # the only notebook, whatever it is called
    assert (to / "müllerzoë_1203" / "attention-scores" / "plot.png").read_bytes() == b"png"
    assert "late, without saying when: hoppergrace_1202" in said.out
    assert not list(to.rglob("timestamp.txt"))
    people = {person.id for person in read_roster(to.parent / "roster.csv")}
    assert people == {"hoppergrace_1202", "lovelaceada_1201", "müllerzoë_1203"}
    collected = collect(to, "attention-scores", read_roster(to.parent / "roster.csv"))
    assert [one.path.name for one in collected if one.path] == ["attention-scores.ipynb"] * 3


def test_canvas_anonymous_late_and_typed(bring, to: Path, tmp_path: Path) -> None:
    files = {
        "anon_X7gh2_880001_attention-scores.ipynb": notebook("one"),
        "LATE_anon_b91Qz_880002_attention-scores-1.ipynb": notebook("two"),
        "smith_jones_2nd_1204_880005_attention-scores.v2.ipynb": notebook("three"),
        "curiemarie_1205_text.html": b"<p>here</p>",
    }
    said = bring("canvas", zipped(tmp_path / "a.zip", files))
    assert said.code == 1
    assert "curiemarie_1205_text.html was typed into Canvas" in said.err
    assert {path.name for path in to.iterdir()} == {
        *("anon_X7gh2", "anon_b91Qz", "smith_jones_2nd_1204"),
    }
    assert told(to, "anon_b91Qz") == "two"


def test_the_same_notebook_again_is_another_attempt(bring, to: Path, tmp_path: Path) -> None:
    files = {
        "lovelaceada_1201_880001_attention-scores.ipynb": notebook("first"),
        "lovelaceada_1201_880009_attention-scores-1.ipynb": notebook("second"),
        "lovelaceada_1201_880011_attention-scores-10.ipynb": notebook("last"),
    }
    assert bring("canvas", zipped(tmp_path / "a.zip", files)).code == 0
    student = "lovelaceada_1201"
    names = [told(to, student, f"attempt-{number}") for number in (1, 2, 3)]
    assert names == ["first", "second", "last"]


def test_moodle_folders_of_all_versions_and_flat_files(bring, to: Path, tmp_path: Path) -> None:
    said = bring("moodle", zipped(tmp_path / "m.zip", exports.MOODLE))
    assert said.code == 0, said.err
    assert told(to, "ada-lovelace_401") == "ada"
    assert told(to, "grace-hopper_402") == "grace"
    assert told(to, "zoë-müller_403") == "zoë"
    with (to.parent / "roster.csv").open(encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["ada-lovelace_401"]["moodle_id"] == "401"
    assert rows["zoë-müller_403"]["name"] == "Zoë Müller"


def test_moodle_text_only_and_hidden_names(bring, to: Path, tmp_path: Path) -> None:
    files = {
        "Participant_901_assignsubmission_file/attention-scores.ipynb": notebook("hidden"),
        "Ada Lovelace_902_assignsubmission_onlinetext/onlinetext.html": b"<p>x</p>",
    }
    said = bring("moodle", zipped(tmp_path / "m.zip", files))
    assert said.code == 1
    assert "Ada Lovelace (902) typed an answer into Moodle and handed in no file." in said.err
    assert told(to, "participant_901") == "hidden"


def test_moodle_worksheet_as_class_list(bring, to: Path, tmp_path: Path) -> None:
    worksheet = tmp_path / "grades.csv"
    worksheet.write_text(
        'Identifier,"Full name","ID number","Email address",Status,Grade\n'
        '"Participant 401","Ada Lovelace",s01,ada@example.edu,x,\n'
        '"Participant 402","Grace Hopper",s02,grace@example.edu,x,\n'
        '"Participant 404","Emmy Noether",s04,emmy@example.edu,x,\n',
        encoding="utf-8",
    )
    said = bring("moodle", zipped(tmp_path / "m.zip", exports.MOODLE), "--roster", str(worksheet))
    assert said.code == 0, said.err
    assert told(to, "s01") == "ada"
    assert told(to, "s02") == "grace"
    assert "Zoë Müller is not on the class list" in said.out
    ids = {person.id for person in read_roster(to.parent / "roster.csv")}
    assert ids == {"s01", "s02", "s04", "zoë-müller_403"}  # who handed in nothing is there too


def test_gradescope(bring, to: Path, tmp_path: Path) -> None:
    said = bring("gradescope", zipped(tmp_path / "g.zip", exports.GRADESCOPE))
    assert said.code == 0, said.err
    assert told(to, "100") == "ada"
    assert told(to, "101") == told(to, "zoe@example.edu") == "grace and zoë"
    stamp = (to / "100" / "attention-scores" / "timestamp.txt").read_text()
    assert stamp == "2029-12-30 07:13:47.644186 UTC\n"
    stamp = (to / "101" / "attention-scores" / "timestamp.txt").read_text()
    assert stamp == "2029-12-31 12:00:00.000000 UTC\n"
    assert "submission_501 was handed in 2 times; only the last is there." in said.out
    assert collect(to, "attention-scores")[0].timestamp == "2029-12-30 07:13:47.644186 UTC"


def test_gradescope_history_with_files_is_attempts(bring, to: Path, tmp_path: Path) -> None:
    files = dict(exports.GRADESCOPE)
    files["assignment_77_export/submission_490/attention-scores.ipynb"] = notebook("earlier")
    assert bring("gradescope", zipped(tmp_path / "g.zip", files)).code == 0
    assert told(to, "100", "attempt-1") == "earlier"
    assert told(to, "100", "attempt-2") == "ada"
    stamp = to / "100" / "attempt-1" / "attention-scores" / "timestamp.txt"
    assert stamp.read_text() == "2029-12-29 07:00:00.000000 UTC\n"


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        (b"a: [", "submission_metadata.yml is damaged"),
        (b"\xff\xfe\xfa", "submission_metadata.yml is damaged"),
        (b"[" * 5000, "submission_metadata.yml is damaged"),
        (b"- 1\n- 2\n", "submission_501 is not in submission_metadata.yml"),
        (b"!!python/object/apply:os.system ['touch pwned']", "submission_501 is not in"),
        (b"submission_501: {}\n", "names nobody who handed it in"),
        (b"submission_501:\n  :submitters: 7\n  :created_at: 0000-99-99\n", "names nobody"),
        (b"../../x:\n  :submitters: []\n", "../../x is no submission"),
    ],
)
def test_damaged_metadata_loses_nothing(
    bring, to: Path, tmp_path: Path, metadata: bytes, sentence: str
) -> None:
    files = {
        "assignment_77_export/submission_metadata.yml": metadata,
        "assignment_77_export/submission_501/attention-scores.ipynb": notebook("ada"),
    }
    said = bring("gradescope", zipped(tmp_path / "g.zip", files))
    assert said.code == 1
    assert sentence in said.err
    assert told(to, "submission_501") == "ada"
    assert not Path("pwned").exists()


def test_github_folder_and_its_grades_tell_times(bring, to: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped(tmp_path / "h.zip", exports.GITHUB)) as opened:
        opened.extractall(tmp_path / "cloned")
    grades = tmp_path / "grades.csv"
    grades.write_text(exports.GITHUB_GRADES, encoding="utf-8")
    folder = tmp_path / "cloned" / "attention-scores-submissions"
    (folder / "attention-scores-ada-l" / "data.ipynb").symlink_to("/etc/passwd")
    said = bring("github", folder, "--roster", str(grades))
    assert said.code == 1
    assert "data.ipynb was not taken: it is a link" in said.err
    assert told(to, "s01") == "ada"
    assert told(to, "s02") == "grace"  # not the one in old/
    stamp = (to / "s01" / "attention-scores" / "timestamp.txt").read_text()
    assert stamp == "2029-12-30 07:13:47.000000 UTC\n"
    assert not list(to.rglob("config"))


def test_github_without_a_class_list(bring, to: Path, tmp_path: Path) -> None:
    assert bring("github", zipped(tmp_path / "h.zip", exports.GITHUB)).code == 0
    assert {path.name for path in to.iterdir()} == {"ada-l", "ghopper"}


@pytest.mark.parametrize("exported", EXPORTS)
@pytest.mark.parametrize("named", [tool.value for tool in Tool])
def test_the_wrong_tool_is_said(bring, to: Path, tmp_path: Path, exported: str, named: str) -> None:
    said = bring(named, zipped(tmp_path / "x.zip", EXPORTS[exported]))
    if exported == named:
        assert said.code == 0
        return
    assert said.code == 2
    titles = {"canvas": "Canvas", "moodle": "Moodle", "gradescope": "Gradescope"}
    title = titles.get(exported, "GitHub Classroom")
    assert f"looks like an export of {title}; type import {exported}." in " ".join(said.err.split())
    assert not to.exists()


@pytest.mark.parametrize("named", [tool.value for tool in Tool])
def test_something_else_is_said_too(bring, to: Path, tmp_path: Path, named: str) -> None:
    said = bring(named, zipped(tmp_path / "x.zip", {"holiday.jpg": b"x", "song.mp3": b"y"}))
    assert said.code == 2
    assert "is no export of" in said.err
    assert not to.exists()


def test_nothing_is_overwritten_and_the_same_again_is_fine(bring, to: Path, tmp_path: Path) -> None:
    first = zipped(tmp_path / "1.zip", exports.CANVAS)
    assert bring("canvas", first).code == 0
    roster = (to.parent / "roster.csv").read_bytes()
    assert bring("canvas", first).code == 0
    assert (to.parent / "roster.csv").read_bytes() == roster
    changed = {
        "lovelaceada_1201_880001_attention-scores.ipynb": notebook("other"),
        "noetheremmy_1206_880006_attention-scores.ipynb": notebook("emmy"),
    }
    said = bring("canvas", zipped(tmp_path / "2.zip", changed))
    assert said.code == 1
    assert "lovelaceada_1201 has another submission" in said.err
    assert told(to, "lovelaceada_1201") == "ada"
    assert told(to, "noetheremmy_1206") == "emmy"
    rows = (to.parent / "roster.csv").read_text("utf-8")
    assert rows.startswith(roster.decode())
    assert "noetheremmy_1206" in rows
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


def test_a_foreign_roster_csv_stays(bring, to: Path, tmp_path: Path) -> None:
    to.parent.mkdir()
    (to.parent / "roster.csv").write_text("tutor,room\nx,1\n")
    said = bring("canvas", zipped(tmp_path / "1.zip", exports.CANVAS))
    assert said.code == 1
    assert (to.parent / "roster.csv").read_text() == "tutor,room\nx,1\n"
    assert read_roster(to.parent / "roster-import.csv")


def test_names_that_spreadsheets_would_run(bring, to: Path, tmp_path: Path) -> None:
    files = {"=cmd|'calc'!A1_401_assignsubmission_file/attention-scores.ipynb": notebook("x")}
    assert bring("moodle", zipped(tmp_path / "m.zip", files)).code == 0
    with (to.parent / "roster.csv").open(encoding="utf-8") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))] == []
    member = People.read(to.parent / "roster.csv").members[0]
    assert member.name == "=cmd|'calc'!A1"


# Hostile archives.

GOOD = {"lovelaceada_1201_880001_attention-scores.ipynb": notebook("ada")}


def _only_inside(tmp_path: Path, to: Path) -> None:
    """Ada's notebook came through, and nothing else was written anywhere."""
    assert told(to, "lovelaceada_1201") == "ada"
    files = {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    assert files == {
        "a.zip",
        "class/roster.csv",
        "class/submitted/lovelaceada_1201/attention-scores/attention-scores.ipynb",
    }


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../../evil_1_2_attention-scores.ipynb", "its name leads out of the export"),
        ("x/../../evil_1_2_attention-scores.ipynb", "its name leads out of the export"),
        ("/tmp/evil_1_2_attention-scores.ipynb", "its name is an absolute path"),
        ("..\\..\\evil_1_2_attention-scores.ipynb", "its name leads out of the export"),
        ("C:\\evil_1_2_attention-scores.ipynb", "its name is an absolute path"),
        ("C:evil_1_2_attention-scores.ipynb", "its name is an absolute path"),
        ("evil\x1b[2J_1_2_attention-scores.ipynb", "its name has control characters"),
        ("evil\nevil_1_2_attention-scores.ipynb", "its name has control characters"),
        ("evil\u202e_1_2_attention-scores.ipynb", "its name has control characters"),
        ("e" * 300 + "_1_2_attention-scores.ipynb", "its name is too long"),
        ("x/" * 60 + "evil_1_2_attention-scores.ipynb", "its name is too long"),
    ],
)
def test_hostile_names(bring, to: Path, tmp_path: Path, name: str, reason: str) -> None:
    said = bring("canvas", zipped(tmp_path / "a.zip", {**GOOD, name: notebook("evil")}))
    assert said.code == 1
    assert reason in said.err
    assert "\x1b[2J" not in said.err
    _only_inside(tmp_path, to)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices(bring, to: Path, tmp_path: Path, kind: int) -> None:
    path = zipped(tmp_path / "a.zip", GOOD)
    with zipfile.ZipFile(path, "a") as opened:
        info = zipfile.ZipInfo("evil_1_2_attention-scores.ipynb")
        info.external_attr = (kind | 0o777) << 16
        info.create_system = 3
        opened.writestr(info, "/etc/passwd")
    said = bring("canvas", path)
    assert said.code == 1
    assert "evil_1_2_attention-scores.ipynb was not taken: it is a link or a device" in said.err
    _only_inside(tmp_path, to)


def test_a_bomb_is_not_unpacked(bring, to: Path, tmp_path: Path) -> None:
    bombs = {f"evil_{n}_2_attention-scores.ipynb": bytes(30 << 20) for n in (1, 2)}
    said = bring("canvas", zipped(tmp_path / "a.zip", {**GOOD, **bombs}))
    assert said.code == 1
    assert said.err.count("packed more densely than honest work ever is") == 2
    _only_inside(tmp_path, to)


def test_large_files_and_too_much_of_all(
    bring, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_FILE", 1 << 20)
    monkeypatch.setattr(archive, "MAX_TOTAL", (3 << 20) // 2)
    noise = os.urandom(1 << 20)
    files = {**GOOD, "b_1_2_a.ipynb": noise + noise, "c_2_2_a.bin": noise, "d_3_2_a.bin": noise}
    said = bring("canvas", zipped(tmp_path / "a.zip", files))
    assert said.code == 1
    assert "b_1_2_a.ipynb was not taken: it would unpack to 2 MiB" in said.err
    assert "d_3_2_a.bin was not taken: all files together" in said.err
    assert {path.name for path in to.iterdir()} == {"lovelaceada_1201", "c_2"}


def test_thousands_of_files(
    bring, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_ENTRIES", 2000)
    many = {f"s_{n}_{n}_attention-scores.ipynb": b"{}" for n in range(2001)}
    said = bring("canvas", zipped(tmp_path / "a.zip", many))
    assert said.code == 2
    assert "holds 2001 files, more than 2000" in " ".join(said.err.split())
    assert not to.exists()


def test_duplicate_names(bring, to: Path, tmp_path: Path) -> None:
    name = next(iter(GOOD))
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = zipped(tmp_path / "a.zip", [(name, GOOD[name]), (name, notebook("evil"))])
    said = bring("canvas", path)
    assert said.code == 1
    assert "another file of that name came first in the zip" in said.err
    _only_inside(tmp_path, to)


def test_encrypted_and_broken_entries(bring, to: Path, tmp_path: Path) -> None:
    locked, broken = "locked_1_2_attention-scores.ipynb", "broken_3_4_attention-scores.ipynb"
    path = zipped(tmp_path / "a.zip", {**GOOD, locked: notebook("x"), broken: notebook("y" * 500)})
    data = bytearray(path.read_bytes())
    # The flag of encryption in the central directory.
    central = data.rindex(b"PK\x01\x02", 0, data.rindex(locked.encode()))
    data[central + 8] |= 1
    start = data.index(broken.encode()) + len(broken)
    data[start + 5 : start + 25] = bytes(20)
    path.write_bytes(bytes(data))
    said = bring("canvas", path)
    assert said.code == 1
    assert f"{locked} was not taken: it is encrypted." in said.err
    assert f"{broken} cannot be read" in said.err
    _only_inside(tmp_path, to)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"<html>log in</html>", bytes(500)])
def test_broken_zips(bring, to: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.zip").write_bytes(data)
    said = bring("canvas", tmp_path / "a.zip")
    assert said.code == 2
    assert "is no zip that can be read" in " ".join(said.err.split())
    assert not to.exists()


def test_a_cut_zip_is_one_sentence(bring, to: Path, tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", exports.CANVAS)
    path.write_bytes(path.read_bytes()[:-30])
    said = bring("canvas", path)
    assert said.code == 2
    assert len(said.err.strip().splitlines()) <= 3


def test_brackets_in_names_are_no_markup(bring, to: Path, tmp_path: Path) -> None:
    said = bring("canvas", zipped(tmp_path / "a.zip", {"../[/red]_1_2_a.ipynb": b"{}"}))
    assert said.code == 2
    assert "../[/red]_1_2_a.ipynb was not taken" in " ".join(said.err.split())
    files = {**GOOD, "../[/red]_1_2_a.ipynb": b"{}"}
    said = bring("canvas", zipped(tmp_path / "a.zip", files))
    assert said.code == 1
    assert "../[/red]_1_2_a.ipynb was not taken" in said.err
    _only_inside(tmp_path, to)


def test_there_is_no_export(bring, tmp_path: Path) -> None:
    said = bring("canvas", tmp_path / "nothing.zip")
    assert said.code == 2
    assert "There is no export at" in said.err


def test_utf8_names_without_the_flag(bring, to: Path, tmp_path: Path) -> None:
    """As some tools write them: the bytes are UTF-8 and nothing says so."""
    name = "Zoë Müller_403_assignsubmission_file/attention-scores.ipynb"
    path = zipped(tmp_path / "m.zip", {name: notebook("zoë")})
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.index(mark) + place
        assert data[at + 1] & 0x08
        data[at + 1] &= ~0x08 & 0xFF
    path.write_bytes(bytes(data))
    assert bring("moodle", path).code == 0
    assert told(to, "zoë-müller_403") == "zoë"


def test_folders_are_read_like_zips(bring, to: Path, tmp_path: Path) -> None:
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name, data in GOOD.items():
        (folder / name).write_bytes(data)
    (folder / "evil_1_2_attention-scores.ipynb").symlink_to("/etc/passwd")
    (folder / "outside").symlink_to("/etc")
    os.mkfifo(folder / "pipe_3_4_attention-scores.ipynb")
    (folder / ".DS_Store").write_bytes(b"junk")
    said = bring("canvas", folder)
    assert said.code == 1
    assert said.err.count("was not taken") == 3
    assert {path.name for path in to.iterdir()} == {"lovelaceada_1201"}


@pytest.mark.parametrize(
    ("tool", "regexp"), [("canvas", canvas.NAMED_REGEXP), ("moodle", moodle.NAMED_REGEXP)]
)
def test_nbgraders_own_zip_collect_agrees(
    bring, to: Path, tmp_path: Path, tool: str, regexp: str
) -> None:
    """The patterns do in nbgrader's application what they do here, on an export without tricks."""
    from nbgrader.apps.zipcollectapp import ZipCollectApp
    from traitlets.config import Config

    plain = {
        "canvas": [
            "lovelaceada_1201_880001_attention-scores.ipynb",
            "hopper_LATE_1202_2_attention-scores-3.ipynb",
        ],
        "moodle": [
            "Ada Lovelace_1201_assignsubmission_file/attention-scores.ipynb",
            "Grace Hopper_1202_assignsubmission_file_/attention-scores.ipynb",
        ],
    }[tool]
    path = zipped(tmp_path / "x.zip", dict(zip(plain, (notebook("a"), notebook("g")), strict=True)))
    assert bring(tool, path).code == 0
    course = tmp_path / "course"
    (course / "downloaded" / "attention-scores" / "archive").mkdir(parents=True)
    (course / "release" / "attention-scores").mkdir(parents=True)
    (course / "release" / "attention-scores" / "attention-scores.ipynb").write_bytes(
        notebook("released")
    )
    shutil.copy(path, course / "downloaded" / "attention-scores" / "archive")
    config = Config()
    config.CourseDirectory.root = str(course)
    config.CourseDirectory.assignment_id = "attention-scores"
    config.FileNameCollectorPlugin.named_regexp = regexp
    app = ZipCollectApp(config=config)
    app.log.setLevel(logging.CRITICAL)
    app.load_cwd_config = False
    app.initialize(["attention-scores"])
    app.start()
    theirs = {
        file.relative_to(course / "submitted").parts[0]: file.read_bytes()
        for file in (course / "submitted").rglob("*.ipynb")
    }
    ours = {
        file.relative_to(to).parts[0].rsplit("_", 1)[1]: file.read_bytes()
        for file in to.rglob("attention-scores.ipynb")
    }
    assert theirs == ours
    assert len(ours) == 2


def test_reading_stays_within_a_folder_of_names_in_no_encoding(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "downloaded")
    os.mkdir(folder)
    with open(folder + b"/caf\xe9_1_2_attention-scores.ipynb", "wb") as file:
        file.write(b"{}")
    with Archive(tmp_path / "downloaded") as opened:
        assert opened.entries == []
        assert "unknown encoding" in opened.refused[0]
