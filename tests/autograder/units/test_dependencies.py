"""What the marks of a unit depend on: its own files, and of other units what it imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from autograder.common import paths
from autograder.units import dependencies as module
from autograder.units.dependencies import dependencies, digest
from tests.autograder.helpers import put


def names(unit: str) -> set[str]:
    return {file.relative_to(paths.ROOT).as_posix() for file in dependencies(unit)}


def test_a_unit_depends_on_its_own_files_and_on_what_is_common() -> None:
    found = names("attention-self_attention")
    assert {
        "autograder/graders/attention/test_self_attention.py",
        "autograder/graders/attention/common.py",
        "autograder/graders/common.py",
        "autograder/misconceptions/attention/self_attention.py",
        "exercises/attention-self_attention/assignment.json",
        "exercises/attention-self_attention/given.py",
        "solutions/attention/self_attention.py",
        "solutions/attention/scores.py",  # which the reference imports
        "autograder/judging/runner.py",
        "autograder/sandbox/worker.py",
    } <= found


@pytest.mark.parametrize("unit", paths.UNITS)
def test_a_unit_depends_on_no_other_units_graders_or_mistakes(unit: str) -> None:
    found = names(unit)
    chapter = paths.chapter_of(unit)
    for room in ("graders", "misconceptions"):
        inside = {Path(name) for name in found if name.startswith(f"autograder/{room}/")}
        own = f"test_{unit.partition('-')[2]}" if room == "graders" else unit.partition("-")[2]
        assert {file.stem for file in inside if file.parent.name == chapter} <= {
            own,
            "common",
            "__init__",
        }
        assert not {file for file in inside if file.parent.name in {*paths.CHAPTERS} - {chapter}}
    others = {name for name in found if name.startswith("exercises/")}
    assert others <= {f"exercises/{unit}/{name}" for name in ("assignment.json", "given.py")}
    assert not {name for name in found if name.startswith("autograder/checking/")}


def test_a_later_unit_of_the_chapter_changes_nothing() -> None:
    found = names("attention-scores")
    assert "solutions/attention/scores.py" in found
    assert not {"solutions/attention/__init__.py", "solutions/attention/multi_head.py"} & found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A chapter of two units, whose package hands on the names of both."""
    names_of_both = "from solutions.gpt.model import f\nfrom solutions.gpt.training import g\n"
    put(tmp_path / "solutions" / "gpt" / "__init__.py", f'"""Both."""\n{names_of_both}__all__ = []')
    put(tmp_path / "solutions" / "gpt" / "model.py", "def f():\n    import toolkit.tasks\n")
    put(tmp_path / "solutions" / "gpt" / "training.py", "def g(): ...\n")
    put(tmp_path / "toolkit" / "__init__.py", "def later():\n    import toolkit.plots\n")
    put(tmp_path / "toolkit" / "tasks.py", "")
    put(tmp_path / "toolkit" / "plots.py", "")
    return tmp_path


def found_in(checkout: Path) -> set[str]:
    files = dependencies("gpt-model", checkout, ())
    return {file.relative_to(checkout).as_posix() for file in files}


def test_a_package_that_hands_on_names_does_not_bring_its_modules(checkout: Path) -> None:
    assert found_in(checkout) == {
        "solutions/gpt/model.py",
        "toolkit/__init__.py",  # executed, but nobody calls what would import more
        "toolkit/tasks.py",
    }
    file = checkout / "solutions" / "gpt" / "model.py"
    file.write_text("from solutions.gpt import g\n")
    assert found_in(checkout) >= {"solutions/gpt/__init__.py", "solutions/gpt/training.py"}


def test_a_package_that_does_something_counts(checkout: Path) -> None:
    file = checkout / "solutions" / "gpt" / "__init__.py"
    file.write_text(file.read_text() + "\nimport torch\n\ntorch.set_num_threads(1)\n")
    put(checkout / "solutions" / "gpt" / "model.py", "from solutions.gpt.model import f\n")
    assert {"solutions/gpt/__init__.py", "solutions/gpt/training.py"} <= found_in(checkout)


def test_the_digest_is_of_names_and_contents(checkout: Path) -> None:
    files = dependencies("gpt-model", checkout, ())
    before = digest(files, checkout)
    assert digest(files, checkout) == before
    assert digest(files[1:], checkout) != before
    (checkout / "toolkit" / "tasks.py").write_text("changed = 1\n")
    assert digest(files, checkout) != before


def test_what_asks_for_recordings_is_part_of_what_marks() -> None:
    from autograder.assignments import recorder

    for name in (*recorder.MACHINERY, *module.MACHINERY):
        assert (paths.PACKAGE / f"{name}.py").is_file()
