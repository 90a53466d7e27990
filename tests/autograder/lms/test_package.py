"""What Gradescope and GitHub Classroom run themselves, run as they do."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from autograder.assignments import bundle
from autograder.common import paths
from autograder.common.errors import ClassroomError
from autograder.demo.make_class import Notebook
from autograder.demo.styles import Style
from autograder.judging.results import ExerciseResult, TestResult
from autograder.lms import container, github_package, gradescope_package
from autograder.units.assignment import load
from autograder.units.dependencies import dependencies
from autograder.units.variants import reference_answers
from tests.autograder.helpers import assert_no_solutions, handed_out, status_of

UNIT = "attention-self_attention"  # It is given something of the unit before.
ATTENTION = load(UNIT)
RELEASED = paths.EXERCISES / UNIT / f"{UNIT}.ipynb"
ANSWERS = Style(reference_answers(UNIT), {})
FIRST = ATTENTION.names[0]


def notebook(count: int | None = None) -> Notebook:
    """A student's notebook with the first `count` exercises, or all, answered."""
    blank = Notebook(json.loads(RELEASED.read_text("utf-8")))
    return blank.answer(ANSWERS, ATTENTION.names[:count])


# Gradescope.

VISIBILITY = {"visible", "hidden", "after_due_date", "after_published"}


def valid(data: dict) -> dict:
    """Holds results.json against what Gradescope documents."""
    assert set(data) <= {
        *("score", "execution_time", "output", "output_format", "test_output_format"),
        *("test_name_format", "visibility", "stdout_visibility", "extra_data", "tests"),
        "leaderboard",
    }
    assert isinstance(data["score"], (int, float))
    assert data.get("visibility", "visible") in VISIBILITY
    assert data["stdout_visibility"] in VISIBILITY
    assert data.get("output_format", "text") in {"text", "html", "simple_format", "md", "ansi"}
    assert isinstance(data["output"], str)
    for test in data["tests"]:
        assert set(test) <= {
            *("score", "max_score", "status", "name", "name_format", "number", "output"),
            *("output_format", "tags", "visibility", "extra_data"),
        }
        assert 0 <= test["score"] <= test["max_score"] + 1e-6
        assert test["status"] in {"passed", "failed"}
        assert test["visibility"] in VISIBILITY
        assert isinstance(test["name"], str)
        assert isinstance(test["output"], str)
    return data


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("zip") / "autograder.zip"
    status_of(["package", "gradescope", UNIT, "--out", str(out)])
    return out


@pytest.fixture
def root(archive: Path) -> Iterator[Path]:
    """/autograder as Gradescope lays it out, where other users could come."""
    folder = Path(tempfile.mkdtemp(prefix="gradescope-"))
    folder.chmod(0o755)
    root = folder / "autograder"
    for name in ("source", "submission", "results"):
        (root / name).mkdir(parents=True)
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(root / "source")
    for name in ("run_autograder", "setup.sh"):
        (root / "source" / name).chmod(0o755)
    shutil.copy2(root / "source" / "run_autograder", root / "run_autograder")
    for path in [root, *root.rglob("*")]:
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
    yield root
    shutil.rmtree(folder)


def run(root: Path, way: str = "bubblewrap", python: str = sys.executable) -> tuple[int, dict]:
    """Start run_autograder as Gradescope does; its exit status and results."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "AUTOGRADER_ROOT": str(root),
        "AUTOGRADER_PYTHON": python,
        "AUTOGRADER_WAY": way,
    }
    done = subprocess.run(
        [str(root / "run_autograder")],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, valid(json.loads((root / "results" / "results.json").read_text()))


def hand_in(root: Path, work: Notebook, name: str = f"{UNIT}.ipynb") -> None:
    (root / "submission" / name).write_text(work.text(), encoding="utf-8")


def exercise(data: dict, name: str) -> list[dict]:
    """The entries of one exercise."""
    title = ATTENTION.exercise(name).title
    return [test for test in data["tests"] if test["name"].split(": hidden tests")[0] == title]


def test_the_zip_holds_what_gradescope_wants(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        infos = {info.filename: info for info in opened.infolist()}
        run_script = opened.read("run_autograder").decode()
        names = set(infos)
        requirements = opened.read("requirements.txt").decode()
    for script in ("setup.sh", "run_autograder"):
        assert stat.S_IMODE(infos[script].external_attr >> 16) == 0o755
    assert run_script.startswith("#!/usr/bin/env bash\n")
    content = ("solutions", "graders", "misconceptions", "equivalents", "exercises")
    held = {name for name in names if set(content) & set(name.split("/")[:2])}
    packages = [
        f"autograder/{room}/{place}" for room in content[1:3] for place in ("", "attention/")
    ]
    assert held == {
        *(f"{package}__init__.py" for package in packages),
        *(f"autograder/graders/{name}.py" for name in ("common", "attention/common")),
        "autograder/graders/attention/test_self_attention.py",
        *(
            f"autograder/misconceptions/attention/{name}.py"
            for name in ("common", "self_attention")
        ),
        *(f"solutions/{name}.py" for name in ("__init__", "attention/__init__")),
        # It uses the masked softmax of the unit before, and nothing of the unit after it.
        *(f"solutions/attention/{name}.py" for name in ("scores", "self_attention")),
        *(f"exercises/{UNIT}/{name}" for name in (RELEASED.name, "assignment.json", "given.py")),
    }
    assert not [name for name in names if "__pycache__" in name or "/demo/" in name]
    assert "torch==" in requirements
    for script in (run_script, gradescope_package.SETUP):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.parametrize("unit", paths.UNITS)
def test_the_zip_holds_all_that_a_units_marks_depend_on(unit: str) -> None:
    files = set(gradescope_package._sources(unit))
    assert len(files) < 250
    # What only the book's pages draw with stays at home.
    assert not [file for file in files if file.stem.endswith(("_pictures", "_diagrams"))]
    chapter = paths.chapter_of(unit)
    others = [paths.graders(other) for other in paths.UNITS if other != unit]
    assert not files.intersection(others)
    for file in set(dependencies(unit)) - files:
        # The chapter's __init__, which the zip has one of its own for, imports all of its units.
        assert file.parent == paths.SOLUTIONS / chapter, file
    for file in files:
        if file.parent == paths.SOLUTIONS / chapter:
            used = re.findall(
                r"^from solutions\.(\w+)\.(\w+) import", file.read_text(), re.MULTILINE
            )
            assert {paths.SOLUTIONS / place / f"{name}.py" for place, name in used} <= files


def test_unknown_visibility_and_unit_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ClassroomError, match="knows no visibility"):
        gradescope_package.files(UNIT, "secret")
    assert status_of(["package", "gradescope", "nothing", "--out", str(tmp_path / "x")]) == 2
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
@pytest.mark.sandbox
def test_right_work_gets_everything(root: Path) -> None:
    hand_in(root, notebook())
    code, data = run(root)
    assert code == 0
    assert data["score"] == ATTENTION.points
    assert sum(test["score"] for test in data["tests"]) == pytest.approx(ATTENTION.points, abs=0.01)
    assert {test["status"] for test in data["tests"]} == {"passed"}
    shown = {test["visibility"] for test in data["tests"] if "hidden tests" in test["name"]}
    assert shown == {"after_published"}


# Reads what it should not, writes the result itself, and prints what it found.
HOSTILE = """
import glob, json, os, subprocess, sys
found = []
for place in glob.glob("/tmp/gradescope-*/autograder") + ["{root}"]:
    for name in ("source/solutions/attention/self_attention.py", "source/seed.txt",
                 "source/autograder/graders/attention/test_self_attention.py",
                 "submission/attention-self_attention.ipynb", "results/results.json"):
        try:
            found.append(open(os.path.join(place, name)).read()[:20])
        except OSError:
            pass
    for name in ("results/results.json", "results/.results.part",
                 "source/autograder/grading/marker.py"):
        try:
            open(os.path.join(place, name), "w").write(json.dumps({{"score": 999, "tests": []}}))
            found.append("wrote")
        except OSError:
            pass
try:
    os.setuid(0)
    found.append("root")
except OSError:
    pass
for number in os.listdir("/proc"):
    if number.isdecimal():
        for name in ("environ", "mem", "maps"):
            try:
                if int(number) == os.getppid():
                    open("/proc/%s/%s" % (number, name), "rb").read(1)
                    found.append("parent " + name)
            except (OSError, ValueError):
                pass
print("FOUND", found, "UID", os.getuid())
sys.path.insert(0, "{root}/source")
try:
    import solutions.attention.self_attention
    found.append("imported")
except ImportError:
    pass
"""


@functools.cache
def open_python() -> str:
    """An interpreter that other users may start, with this one's packages; "" if there is none."""

    def closed(file: Path) -> bool:
        return any(not each.stat().st_mode & 0o001 for each in file.resolve().parents)

    import torch

    if closed(Path(torch.__file__)):
        return ""
    if not closed(Path(os.__file__)) and not closed(Path(sys.executable)):
        return sys.executable
    other = shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin")
    if other is None:
        return ""
    home = Path(tempfile.mkdtemp(prefix="open-python-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    home.chmod(0o755)
    done = subprocess.run([other, "-m", "venv", "--without-pip", home / "venv"], check=False)
    if done.returncode:
        return ""
    place = next((home / "venv" / "lib").glob("python*/site-packages"))
    (place / "course.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(home / "venv" / "bin" / "python")


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("bubblewrap", marks=pytest.mark.sandbox), "apart"])
def test_hostile_work_earns_what_it_solved_and_learns_nothing(root: Path, way: str) -> None:
    if way == "apart" and os.geteuid() != 0:
        pytest.skip("only root can run code as another user")
    python = open_python() if way == "apart" else sys.executable
    if not python:
        pytest.skip("no Python here that another user may start")
    work = notebook(1)
    attack = HOSTILE.format(root=root)
    # What it finds is shown to the grader's eyes by an exercise that fails with it.
    second = ATTENTION.names[1]
    work.own(3, attack)
    work.write(
        second, "def " + second + "(*a, **k):\n    raise RuntimeError(repr((found, os.getuid())))"
    )
    hand_in(root, work)
    before = (root / "source" / "solutions" / "attention" / "self_attention.py").read_bytes()
    code, data = run(root, way, python)
    assert code == 0, data["output"]
    most = ATTENTION.exercise(FIRST).points
    assert data["score"] == most
    assert sum(test["score"] for test in exercise(data, FIRST)) == pytest.approx(most, abs=0.01)
    text = json.dumps(data)
    assert "([], " in text, text[:3000]  # nothing was found, and the attack did run
    assert "([], 0)" not in text
    assert (
        root / "source" / "solutions" / "attention" / "self_attention.py"
    ).read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run code as another user")
def test_apart_closes_the_reference_to_others(root: Path) -> None:
    assert (root / "source").stat().st_mode & 0o005
    container.close_to_others(root)
    assert not root.stat().st_mode & 0o077
    seen = subprocess.run(
        ["/bin/cat", str(root / "source" / "solutions" / "attention" / "self_attention.py")],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        check=False,
    )
    assert seen.returncode != 0
    assert seen.stdout == b""


def test_without_a_wall_nothing_is_graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autograder.sandbox.limits import SandboxUnavailable

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SandboxUnavailable, match="only root could run it as another user"):
        container.stands_apart(tmp_path, "apart")


@pytest.mark.slow
def test_nothing_handed_in_and_something_else(root: Path) -> None:
    release = root / "source" / "release.ipynb"
    result = container.grade(root / "submission", release, UNIT, root, 1, "auto")
    data = valid(container.results(result, ATTENTION, "hidden", 1.0))
    assert data["score"] == 0
    assert "Your submission is missing." in data["output"]
    (root / "submission" / "report.pdf").write_bytes(b"%PDF")
    (root / "submission" / "secret").symlink_to(root / "source" / "solutions")
    code, data = run(root)
    assert code == 0
    assert data["score"] == 0
    assert "unreadable" in data["output"]
    assert "report.pdf" in json.dumps(data)


def test_there_is_a_result_even_when_python_does_not_start(root: Path) -> None:
    done, data = run(root, python="/nonexistent/python")
    assert done != 0
    assert data["score"] == 0
    assert "tell your instructor" in data["output"]


def test_hidden_tests_tell_their_purpose_and_nothing_else() -> None:
    tests = [
        TestResult("test_a", "Shapes", False, 1.0, "passed"),
        TestResult("test_b", "Wide inputs", True, 3.0, "failed", "x[0] was 3.14159"),
        TestResult("test_c", "Masks", True, 1.0, "passed"),
    ]
    one = ExerciseResult(FIRST, 1.0, 2.5, message="You divide by d_k.", tests=tests)
    shown, hidden = container._entries(one, "Scores", 1, "hidden")
    assert (shown["score"], shown["max_score"], shown["status"]) == (0.5, 0.5, "passed")
    assert (hidden["score"], hidden["max_score"], hidden["status"]) == (0.5, 2.0, "failed")
    assert (shown["visibility"], hidden["visibility"]) == ("visible", "hidden")
    assert "FAILED: Wide inputs" in hidden["output"]
    assert "You divide by d_k." in hidden["output"]
    assert "3.14159" not in hidden["output"]
    assert "Wide" not in shown["output"]
    assert "d_k" not in shown["output"]


# GitHub Classroom.


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("github") / f"{UNIT}-template"
    assert status_of(["package", "github", UNIT, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def workflow(template: Path) -> dict:
    text = (template / ".github" / "workflows" / "classroom.yml").read_text("utf-8")
    return yaml.safe_load(text)


def steps(workflow: dict) -> dict[str, dict]:
    """The steps that give points, by exercise."""
    job = workflow["jobs"]["run-autograding-tests"]
    return {
        re.search(r"--exercise (\w+)$", step["with"]["command"])[1]: step
        for step in job["steps"]
        if step.get("uses") == github_package.GRADER
    }


def test_the_workflow_is_what_github_classroom_reads(workflow: dict) -> None:
    # YAML 1.1 reads the key `on` as true; GitHub does not.
    assert "push" in (workflow.get("on") or workflow[True])
    assert workflow["permissions"]["checks"] == "write"
    job = workflow["jobs"]["run-autograding-tests"]
    assert job["if"] == "github.actor != 'github-classroom[bot]'"
    given = steps(workflow)
    assert set(given) == set(ATTENTION.names)
    assert sum(step["with"]["max-score"] for step in given.values()) == ATTENTION.points
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", step["id"]) for step in given.values())
    reporter = job["steps"][-1]
    assert reporter["uses"] == github_package.REPORTER
    runners = reporter["with"]["runners"].split(",")
    assert runners == [step["id"] for step in given.values()]
    for runner in runners:
        wanted = f"${{{{steps.{runner}.outputs.result}}}}"
        assert reporter["env"][f"{runner.upper()}_RESULTS"] == wanted


def test_the_template_tells_no_solutions(template: Path) -> None:
    files = handed_out(template)
    added = {".github/workflows/classroom.yml", ".gitignore"}
    assert set(files) - added == set(bundle.contents(UNIT))
    assert_no_solutions(files, UNIT)
    assert files["given.py"] == paths.given(UNIT).read_bytes()
    others = set(paths.UNITS) - {UNIT}
    assert [name for name in files if others.intersection(Path(name).parts)] == []
    graders = [name for name in files if name.startswith("autograder/graders/attention/test_")]
    assert graders == ["autograder/graders/attention/test_self_attention.py"]


@pytest.mark.slow
def test_the_commands_of_the_workflow_tell_right_from_wrong(
    template: Path, workflow: dict, tmp_path: Path
) -> None:
    """In a fresh copy, as the workflow runs them, with this Python as `python`."""
    clone = tmp_path / f"{UNIT}-ada"
    shutil.copytree(template, clone)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python").symlink_to(sys.executable)
    given = steps(workflow)
    second = ATTENTION.names[1]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    (clone / f"{UNIT}.ipynb").write_text(notebook(1).text(), encoding="utf-8")
    points = {}
    for name in (FIRST, second):
        done = subprocess.run(
            given[name]["with"]["command"],
            shell=True,
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1), done.stderr
        points[name] = given[name]["with"]["max-score"] if done.returncode == 0 else 0
    assert points == {FIRST: ATTENTION.exercise(FIRST).points, second: 0}


def test_a_folder_with_something_in_it_stays(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("mine")
    with pytest.raises(ClassroomError, match="is not empty"):
        github_package.package(UNIT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]
