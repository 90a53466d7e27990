"""Several attempts of one student, and what identifies a file that was handed in."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autograder.common import paths
from autograder.grading.collect import Person, Submission, best_notebook, collect, named, shown
from tests.autograder.helpers import put

UNIT = "attention-scores"
NOTEBOOK = f"{UNIT}.ipynb"
ODD = [
    RuntimeError("Symlink loop"),
    RecursionError("too deep"),
    MemoryError(),
    OSError(5, "Input/output error"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
]


def found(folder: Path, *roster: str) -> dict[tuple[str, int], Submission]:
    people = [Person(name) for name in roster]
    return {(one.student, one.attempt): one for one in collect(folder, UNIT, people)}


class TestDigest:
    def test_it_is_that_of_the_files_bytes(self, tmp_path):
        path = put(tmp_path / "s1" / NOTEBOOK, "{ }\n")
        put(tmp_path / "s2.ipynb", "{ }\n")
        put(tmp_path / "s3" / NOTEBOOK, "{}\n")
        digests = [one.digest for one in found(tmp_path).values()]
        assert digests[0] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert digests[0] == digests[1] != digests[2]

    def test_without_a_file_there_is_none(self, tmp_path):
        (tmp_path / "s1").mkdir()
        put(tmp_path / "s2" / f"{UNIT}.zip")
        (tmp_path / "s3").mkdir()
        (tmp_path / "s3" / NOTEBOOK).symlink_to("/etc/hostname")
        (tmp_path / "s4").mkdir()
        os.mkfifo(tmp_path / "s4" / NOTEBOOK)
        assert [one.digest for one in found(tmp_path, "s5").values()] == [""] * 5

    def test_a_file_that_cannot_be_read_is_told(self, tmp_path, monkeypatch):
        put(tmp_path / "s1" / NOTEBOOK)
        put(tmp_path / "s2" / NOTEBOOK)
        plain = Path.open

        def broken(self, *arguments, **options):
            if "s1" in self.parts:
                raise OSError(5, "Input/output error")
            return plain(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", broken)
        first, second = found(tmp_path).values()
        assert first.path is None
        assert "Input/output error" in first.reason
        assert second.digest


class TestAttempts:
    def test_each_is_like_a_students_folder(self, tmp_path):
        one = put(tmp_path / "ada" / "attempt-1" / NOTEBOOK)
        two = put(tmp_path / "ada" / "attempt-2" / UNIT / "my work.ipynb")
        put(tmp_path / "ada" / "attempt-2" / UNIT / "timestamp.txt", "2030-02-03 10:00:00 UTC")
        ten = put(tmp_path / "ada" / "attempt-10" / NOTEBOOK)
        bob = put(tmp_path / "bob" / NOTEBOOK)
        people = found(tmp_path, "ada", "eve")
        assert list(people) == [("ada", 1), ("ada", 2), ("ada", 10), ("bob", 1), ("eve", 1)]
        assert [item.path for item in people.values()] == [one, two, ten, bob, None]
        second = people["ada", 2]
        assert second.timestamp == "2030-02-03 10:00:00 UTC"
        assert second.repairs == [f"renamed my work.ipynb to {NOTEBOOK}"]
        assert people["ada", 1].timestamp is None

    def test_within_the_folder_of_the_assignment(self, tmp_path):
        path = put(tmp_path / "ada" / UNIT / "attempt-2" / NOTEBOOK)
        assert found(tmp_path)["ada", 2].path == path

    @pytest.mark.parametrize("name", ["Attempt 2", "attempt_2", "ATTEMPT-02", "attempt2"])
    def test_written_in_other_ways(self, tmp_path, name):
        path = put(tmp_path / "ada" / name / NOTEBOOK)
        assert found(tmp_path)["ada", 2].path == path

    def test_two_folders_for_one_attempt(self, tmp_path):
        first = put(tmp_path / "ada" / "attempt-02" / NOTEBOOK)
        put(tmp_path / "ada" / "attempt-2" / NOTEBOOK)
        (submission,) = found(tmp_path).values()
        assert submission.path == first
        assert submission.notes == ["attempt-2 was not graded; there is another attempt 2"]

    @pytest.mark.parametrize("name", ["attempt-0", "attempt-10000", "attempt-" + "9" * 60])
    def test_a_number_that_is_none(self, tmp_path, name):
        put(tmp_path / "ada" / name / NOTEBOOK)
        put(tmp_path / "ada" / "attempt-1" / NOTEBOOK)
        (submission,) = found(tmp_path).values()
        assert submission.attempt == 1
        assert "number the attempts from 1" in submission.notes[0]

    def test_a_notebook_beside_them_is_the_first(self, tmp_path):
        beside = put(tmp_path / "ada" / NOTEBOOK)
        put(tmp_path / "ada" / "attempt-2" / NOTEBOOK)
        assert found(tmp_path)["ada", 1].path == beside
        inside = put(tmp_path / "ada" / "attempt-1" / NOTEBOOK)
        people = found(tmp_path)
        assert people["ada", 1].path == inside
        assert all("beside the folders" in one.notes[0] for one in people.values())

    def test_attempts_at_another_assignment_are_none_at_this(self, tmp_path):
        put(tmp_path / "ada" / "attempt-1" / "bert-model" / "bert-model.ipynb")
        path = put(tmp_path / "ada" / "attempt-2" / UNIT / NOTEBOOK)
        put(tmp_path / "bob" / "attempt-1" / "bert-model.ipynb")
        people = found(tmp_path)
        assert list(people) == [("ada", 2), ("bob", 1)]
        assert people["ada", 2].path == path
        assert people["bob", 1] == Submission("bob")

    def test_one_that_is_no_notebook_is_told(self, tmp_path):
        put(tmp_path / "ada" / "attempt-1" / NOTEBOOK)
        put(tmp_path / "ada" / "attempt-2" / "work.zip")
        assert "work.zip" in found(tmp_path)["ada", 2].reason

    def test_a_link_leads_nowhere(self, tmp_path):
        put(tmp_path / "bob" / "attempt-1" / NOTEBOOK)
        (tmp_path / "ada").mkdir()
        (tmp_path / "ada" / "attempt-1").symlink_to(tmp_path / "bob" / "attempt-1")
        (tmp_path / "ada" / "attempt-2").mkdir()
        (tmp_path / "ada" / "attempt-2" / NOTEBOOK).symlink_to(
            tmp_path / "bob" / "attempt-1" / NOTEBOOK
        )
        people = found(tmp_path)
        assert [people["ada", number].path for number in (1, 2)] == [None, None]
        assert all("link" in people["ada", number].reason for number in (1, 2))

    def test_a_file_named_after_the_student_is_the_first_too(self, tmp_path):
        put(tmp_path / "ada" / "attempt-2" / NOTEBOOK)
        path = put(tmp_path / "ada.ipynb")
        assert found(tmp_path)["ada", 1].path == path

    def test_names_that_nbgrader_cannot_hold_stay_apart(self, tmp_path):
        for name in ("a[1]", "a(1)"):
            for number in (1, 2):
                put(tmp_path / name / f"attempt-{number}" / NOTEBOOK)
        assert list(found(tmp_path)) == [("a(1)", 1), ("a(1)", 2), ("a(1)-2", 1), ("a(1)-2", 2)]

    names = st.sampled_from(
        [
            *("attempt-1", "attempt-2", "attempt-02", "Attempt 3", "attempt-0", "attempt", UNIT),
            *(
                f"attempt-1/{UNIT}",
                f"{UNIT}/attempt-2",
                "bert-model",
                ".hidden",
                "attempt-1/attempt-2",
            ),
        ]
    )
    files = st.sampled_from([NOTEBOOK, "work.ipynb", "bert-model.ipynb", "a.zip", "timestamp.txt"])

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(places=st.lists(st.tuples(names, files), max_size=5))
    def test_whatever_lies_there_every_attempt_is_there_once(self, tmp_path_factory, places):
        folder = tmp_path_factory.mktemp("in")
        (folder / "ada").mkdir()
        for place, name in places:
            put(folder / "ada" / place / name, "x")
        submissions = collect(folder, UNIT)
        attempts = [one.attempt for one in submissions]
        assert attempts == sorted(set(attempts))
        assert attempts
        assert {one.student for one in submissions} == {"ada"}
        assert all(bool(one.digest) == (one.path is not None) for one in submissions)


class TestWhateverLiesThere:
    """One entry's trouble is its student's result; nobody else's, and nobody is left out."""

    def reasons(self, folder: Path) -> dict[str, str]:
        put(folder / "honest" / NOTEBOOK)
        submissions = {student: one for (student, _), one in found(folder).items()}
        assert submissions.pop("honest").path is not None
        assert not any(one.path for one in submissions.values())
        return {student: one.reason for student, one in submissions.items()}

    @pytest.mark.parametrize("place", ["ada.ipynb", f"ada/{NOTEBOOK}", f"ada/attempt-2/{NOTEBOOK}"])
    @pytest.mark.parametrize("target", ["itself", "nowhere"])
    def test_a_link_to_itself_or_to_nothing(self, tmp_path, place, target):
        link = tmp_path / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(link.name if target == "itself" else "nowhere")
        reasons = self.reasons(tmp_path)
        assert list(reasons) == ["ada"]
        assert "cannot be opened (" in reasons["ada"]

    def test_folders_that_lead_in_a_circle_or_nowhere(self, tmp_path):
        (tmp_path / "ada").symlink_to("ada")
        (tmp_path / "bob").symlink_to("nowhere")
        (tmp_path / "eve").mkdir()
        (tmp_path / "eve" / "attempt-1").symlink_to("../eve")
        (tmp_path / "eve" / UNIT).symlink_to(".")
        reasons = self.reasons(tmp_path)
        assert list(reasons) == ["ada", "bob", "eve"]
        assert all("link" in reason for reason in reasons.values())

    def test_pipes_sockets_and_devices(self, tmp_path, monkeypatch):
        os.mkfifo(tmp_path / "pipe.ipynb")
        monkeypatch.chdir(tmp_path)  # A socket's address is short.
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("socket.ipynb")
        (tmp_path / "device").mkdir()
        with suppress(PermissionError):  # Of whom is not root.
            os.mknod(tmp_path / "device" / NOTEBOOK, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        reasons = self.reasons(tmp_path)
        assert reasons["pipe"] == "pipe.ipynb is not a file"
        assert reasons["socket"] == "socket.ipynb is not a file"

    @pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
    def test_whatever_is_raised_for_one(self, tmp_path, monkeypatch, error):
        put(tmp_path / "ada" / NOTEBOOK)
        plain = Path.iterdir

        def broken(self):
            if self.name == "ada":
                raise error
            return plain(self)

        monkeypatch.setattr(Path, "iterdir", broken)
        reasons = self.reasons(tmp_path)
        assert reasons["ada"].startswith("the submission cannot be opened (")

    def test_a_name_that_is_not_utf_8(self, tmp_path):
        folder = os.fsencode(tmp_path) + b"/ad\xff"
        os.mkdir(folder)
        with open(folder + b"/" + NOTEBOOK.encode(), "w") as file:
            file.write("{}")
        ((student, _),) = found(tmp_path)
        assert student == "ad_"


class TestNamesThatSystemsHide:
    def test_who_handed_in_under_one_is_graded_under_a_name_that_nbgrader_finds(self, tmp_path):
        paths = [
            put(tmp_path / ".ada" / NOTEBOOK),
            put(tmp_path / ".bob.ipynb"),
            put(tmp_path / "__eve" / NOTEBOOK),
        ]
        people = found(tmp_path)
        assert [people[name, 1].path for name in ("_ada", "_bob", "__eve")] == paths
        assert people["_ada", 1].notes == ["handed in under the name .ada"]
        assert people["_bob", 1].notes == ["handed in under the name .bob"]
        assert people["__eve", 1].notes == []

    def test_the_name_goes_to_who_has_it(self, tmp_path):
        put(tmp_path / ".ada" / NOTEBOOK)
        path = put(tmp_path / "_ada" / NOTEBOOK)
        people = found(tmp_path)
        assert people["_ada", 1].path == path
        assert people["_ada-2", 1].notes == ["handed in under the name .ada"]

    def test_what_holds_no_notebook_is_named(self, tmp_path):
        put(tmp_path / "ada" / NOTEBOOK)
        put(tmp_path / ".plans" / "readme.txt")
        put(tmp_path / "__old" / "bert-model.ipynb")
        put(tmp_path / "bob.zip")
        remarks: list[str] = []
        (submission,) = collect(tmp_path, UNIT, remarks=remarks)
        assert submission.student == "ada"
        assert remarks == [
            f".plans, __old, bob.zip were left out: no student's folder and no notebook of {UNIT}."
        ]

    @pytest.mark.parametrize(
        "name", [".git", ".ipynb_checkpoints", "__MACOSX", "__pycache__", "._ada", ".DS_Store"]
    )
    def test_a_systems_own_is_passed_over_in_silence(self, tmp_path, name):
        path = put(tmp_path / "ada" / "work.ipynb")
        for folder in (tmp_path, tmp_path / "ada"):
            put(folder / name / NOTEBOOK)
            put(folder / f"._{NOTEBOOK}")
        remarks: list[str] = []
        (submission,) = collect(tmp_path, UNIT, remarks=remarks)
        assert (submission.path, submission.notes, remarks) == (path, [], [])

    @pytest.mark.parametrize(
        "place", [f".{NOTEBOOK}", f"__{NOTEBOOK}", f".final/{NOTEBOOK}", f"__{UNIT}/work.ipynb"]
    )
    def test_in_a_students_folder_they_count_where_there_is_nothing_else(self, tmp_path, place):
        path = put(tmp_path / "ada" / place)
        assert found(tmp_path)["ada", 1].path == path
        other = put(tmp_path / "ada" / "homework.ipynb")
        assert found(tmp_path)["ada", 1].path == other


class TestWhichUnitsNotebook:
    """Names of units have words in common; nobody is given the notebook of another unit."""

    @pytest.mark.parametrize("unit", paths.UNITS)
    def test_every_unit_knows_its_own_names_and_no_others(self, unit):
        chapter, name = unit.split("-")
        for own in (
            *(unit, f"{unit} (2)", f"{unit}-1", f"{unit}2", f"Kopie von {unit}", f"{unit} - Copy"),
            *(f"smith_12345_{unit}", f"{unit}-final", unit.replace("-", "_"), unit.upper()),
            *(unit.replace("-", " ").replace("_", " ").title(), unit.replace("_", "")),
            *(f".{unit}", f"{unit}s" if not unit.endswith("s") else unit[:-1]),
        ):
            assert named(own) == {unit}, own
        assert unit in named(name)
        assert named(name) == {one for one in paths.UNITS if one.split("-")[1] == name}
        assert named(chapter) == {one for one in paths.UNITS if one.split("-")[0] == chapter}

    @pytest.mark.parametrize("name", ["homework", "Untitled1", "notes", "my text", "final", ""])
    def test_a_name_that_says_nothing_could_be_any_units(self, name):
        assert named(name) == frozenset()

    def test_the_notebook_that_puts_a_chapter_together_is_no_units(self, tmp_path):
        put(tmp_path / "ada" / "attention-mine.ipynb")
        put(tmp_path / "ada" / "attention-multi_head.ipynb")
        (submission,) = found(tmp_path).values()
        assert (submission.path, submission.reason) == (None, "")

    @pytest.mark.parametrize(
        "other",
        [
            *("attention-self_attention", "attention-self_attention (3)", "Attention Multi Head"),
            *("self_attention", "bert-model", "bert", "atention-self_atention", "model (1)"),
        ],
    )
    def test_another_units_is_not_taken_where_it_is_the_only_one(self, tmp_path, other):
        put(tmp_path / "ada" / f"{other}.ipynb")
        put(tmp_path / "bob" / other / f"{other}.ipynb")
        put(tmp_path / "cem" / UNIT / f"{other}.ipynb")
        put(tmp_path / "dee" / "attempt-1" / f"{other}.ipynb")
        people = found(tmp_path)
        assert [people[name, 1].path for name in ("ada", "bob", "cem", "dee")] == [None] * 4
        put(tmp_path / "ada" / "notes.ipynb")
        assert found(tmp_path)["ada", 1].path == tmp_path / "ada" / "notes.ipynb"

    @pytest.mark.parametrize("place", ["{}", "mine/{}", "{unit}/{}", "{chapter}/{}"])
    def test_of_all_units_in_one_folder_or_in_a_folder_each(self, tmp_path, place):
        ways = "{}.ipynb", "{} (2).ipynb", "Kopie von {}.ipynb"
        where = {
            unit: tmp_path
            / "ada"
            / place.format(ways[number % 3].format(unit), unit=unit, chapter=paths.chapter_of(unit))
            for number, unit in enumerate(paths.UNITS)
        }
        for path in where.values():
            put(path)
        put(tmp_path / "ada" / "attention-mine.ipynb")
        for unit, path in where.items():
            (submission,) = collect(tmp_path, unit)
            assert submission.path == path
            path.unlink()
            (submission,) = collect(tmp_path, unit)
            assert (submission.path, submission.reason) == (None, "")
            put(path)

    def test_in_the_folder_of_the_chapter_by_its_own_word(self, tmp_path):
        for unit in ("bert-model", "gpt-model", "attention-scores"):
            chapter, name = unit.split("-")
            path = put(tmp_path / "ada" / chapter / f"{name}.ipynb")
            put(tmp_path / "ada" / chapter / "notes.ipynb")
            (submission,) = collect(tmp_path, unit)
            assert submission.path == path
            assert submission.repairs == [f"renamed {name}.ipynb to {unit}.ipynb"]

    def test_what_names_the_unit_comes_before_what_names_none(self):
        names = [UNIT, f"{UNIT} (2)", "scores", "attention", "homework", "model"]
        files = [Path(f"{name}.ipynb") for name in names]
        for place in range(5):
            assert best_notebook(files[place:][::-1], UNIT) == files[place]
        assert best_notebook(files[5:], UNIT) is None

    @pytest.mark.parametrize("place", ["{unit}.ipynb", "{unit}/{unit}.ipynb"])
    def test_what_goes_by_the_name_of_another_unit_is_nobodys(self, tmp_path, place):
        others = ["attention-self_attention", "bert-model"]
        for unit in (UNIT, *others):
            put(tmp_path / place.format(unit=unit))
        put(tmp_path / "ada" / NOTEBOOK)
        remarks: list[str] = []
        submissions = collect(tmp_path, UNIT, remarks=remarks)
        assert [one.student for one in submissions] == ["ada", UNIT]
        assert all(one.path for one in submissions)
        first, second = (place.format(unit=unit).partition("/")[0] for unit in others)
        assert remarks == [
            f"{first}, {second} were left out: no student's folder and no notebook of {UNIT}."
        ]

    def test_of_several_copies_the_last(self):
        files = [Path(f"{UNIT}{copy}.ipynb") for copy in (" (1)", " (10)", " (2)")]
        assert best_notebook(files, UNIT) == files[1]


def test_a_name_is_cut_where_it_is_too_long_and_cleaned():
    assert shown("x" * 60) == "x" * 60
    assert shown("x" * 61) == "x" * 59 + "…"
    assert shown("x" * 121, limit=120) == "x" * 119 + "…"
    assert shown("a\x1b[2J\u202e\udc80b") == "a?[2J??b"
