"""nbgrader's exchange, with the settings of the page on JupyterHub: from release to feedback."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from autograder.common import paths
from autograder.gradebook import classroom
from autograder.gradebook.course import quiet_database
from autograder.gradebook.database import opened, url_of
from autograder.grading.collect import Person
from autograder.units.assignment import load
from tests.autograder.helpers import nbgrader

UNIT = "attention-self_attention"
ASSIGNMENT = load(UNIT)
PAGE = paths.ROOT / "book" / "howto-jupyterhub.md"
SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = {  # What stands first in each file that the page shows, to find it by.
    "students": "# nbgrader_config.py of everybody",
    "grader": "# nbgrader_config.py of the grader",
}
WRONG = "def causal_mask(length):\n    return torch.ones(length, length, dtype=torch.bool)\n"


def snippets(language: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return [body for kind, body in SNIPPET.findall(text) if kind == language]


def settings(name: str, **places: Path) -> str:
    """A file of settings from the page, with this test's folders in place of a hub's."""
    (text,) = [body for body in snippets("python") if body.startswith(SETTINGS[name])]
    for written, place in places.items():
        known = {"exchange": "/srv/nbgrader/exchange", "repository": "/srv/transformers-by-hand"}
        assert known[written] in text
        text = text.replace(known[written], str(place))
    return text


class TestPage:
    """Every snippet of the page is what it says it is."""

    @pytest.mark.parametrize("language", ["python", "yaml", "bash"])
    def test_snippets_are_valid(self, language):
        found = snippets(language)
        assert len(found) >= 2
        for text in found:
            if language == "python":
                ast.parse(text)
            elif language == "yaml":
                assert isinstance(yaml.safe_load(text), dict)
            else:
                subprocess.run(["bash", "-n"], input=text, text=True, check=True)

    def test_settings_in_toml_are_valid(self):
        found = snippets("toml")
        assert found
        for text in found:
            assert tomllib.loads(text)["db_url"].startswith("postgresql://")

    def test_no_snippet_is_in_a_language_that_is_not_looked_at(self):
        kinds = {kind for kind, _ in SNIPPET.findall(PAGE.read_text(encoding="utf-8"))}
        assert kinds - {"text"} == {"python", "yaml", "bash", "toml"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory, solved) -> dict[str, Path]:
    """A course that was released, fetched, worked on, handed in, graded and given back."""
    folder = tmp_path_factory.mktemp("hub")
    people = {name: folder / "home" / name for name in ("grader", "ada", "bob")}
    grader = people["grader"]
    course = grader / "transformers"
    (making,) = [body for body in snippets("python") if "import prepare" in body]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(grader))
        exec(compile(making, PAGE.name, "exec"), {})
    for home in people.values():
        (home / ".jupyter").mkdir(parents=True)
    (folder / "etc").mkdir()
    (folder / "etc" / "nbgrader_config.py").write_text(
        settings("students", exchange=folder / "exchange"), encoding="utf-8"
    )
    (grader / ".jupyter" / "nbgrader_config.py").write_text(
        settings("grader", repository=paths.ROOT), encoding="utf-8"
    )

    def run(home: Path, *command: str) -> str:
        """One nbgrader command as a person on the hub types it."""
        environment = {
            "HOME": str(home),
            "JUPYTER_DATA_DIR": str(home / ".local"),
            "JUPYTER_CONFIG_DIR": str(home / ".jupyter"),
            "JUPYTER_CONFIG_PATH": str(folder / "etc"),
        }
        return nbgrader(*command, cwd=home, **environment)

    run(grader, "release_assignment", UNIT)
    for name in ("ada", "bob"):
        home = people[name]
        run(home, "fetch_assignment", UNIT)
        fetched = home / UNIT / f"{UNIT}.ipynb"
        assert "BEGIN SOLUTION" not in fetched.read_text(encoding="utf-8")
        work = solved() if name == "ada" else solved(causal_mask=WRONG)
        fetched.write_text(nbformat.writes(work), encoding="utf-8")
        run(home, "submit", UNIT, "--student", name)
    run(grader, "collect", UNIT)
    return {"course": course, "folder": folder, **people, "run": run}


@pytest.fixture(scope="module")
def graded(hub):
    """Graded as collected; what was due long ago is late."""
    before = sorted(path for path in (hub["course"] / "submitted").rglob("*"))
    result = classroom.grade(
        UNIT,
        hub["course"] / "submitted",
        hub["course"],
        roster=[Person("eve")],  # She handed in nothing, and must not stop the others' feedback.
        due="2020-01-01 00:00:00 UTC",
    )
    assert sorted(path for path in (hub["course"] / "submitted").rglob("*")) == before
    hub["run"](hub["grader"], "release_feedback", UNIT)
    for name in ("ada", "bob"):
        hub["run"](hub[name], "fetch_feedback", UNIT, "--student", name)
    return result


@pytest.mark.slow
@pytest.mark.sandbox
class TestExchange:
    def test_what_was_handed_in_is_collected_under_the_students_names(self, hub):
        for name in ("ada", "bob"):
            folder = hub["course"] / "submitted" / name / UNIT
            assert (folder / f"{UNIT}.ipynb").is_file()
            assert "UTC" in (folder / "timestamp.txt").read_text(encoding="ascii")

    def test_marks_and_lateness_reach_the_gradebook(self, hub, graded):
        scores = {one.student: one.score for one in graded.results}
        assert scores["ada"] == ASSIGNMENT.points > scores["bob"]
        assert graded.complete
        with quiet_database(), opened(url_of(hub["course"])) as book:
            for name in ("ada", "bob"):
                score = scores[name]
                submission = book.find_submission(UNIT, name)
                assert submission.score == score
                assert submission.total_seconds_late > 365 * 24 * 3600
        late = {one.student for one in graded.results if any("late" in note for note in one.notes)}
        assert late == {"ada", "bob"}

    def test_each_student_gets_the_own_page_and_no_other(self, hub, graded):
        for name in ("ada", "bob"):
            (page,) = (hub[name] / UNIT / "feedback").rglob("*.html")
            html = page.read_text(encoding="utf-8")
            written = hub["course"] / "feedback" / name / UNIT / f"{UNIT}.html"
            assert html == written.read_text(encoding="utf-8")
            assert ASSIGNMENT.title in html
        result = next(one for one in graded.results if one.student == "bob")
        assert result.exercises["causal_mask"].points < 1

    def test_nothing_of_the_course_but_the_release_is_in_the_exchange(self, hub, graded):
        outbound = hub["folder"] / "exchange" / "transformers" / "outbound"
        names = {path.name for path in outbound.rglob("*") if path.is_file()}
        assert names == {f"{UNIT}.ipynb", paths.GIVEN}
        inbound = hub["folder"] / "exchange" / "transformers" / "inbound"
        assert inbound.stat().st_mode & 0o777 == 0o733  # Written by all, read by the grader.
