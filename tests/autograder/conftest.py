"""What the tests of the autograder share: a toy unit, solved notebooks, an empty course.

The unit of three small exercises lets the machinery be tested apart from any content.
"""

from __future__ import annotations

import functools
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from autograder.common import paths
from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units import variants
from autograder.units.assignment import Assignment, Exercise
from autograder.units.variants import Misconception
from tests.autograder.helpers import no_sandbox
from tests.autograder.unit_graders import graders_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

SOURCE = textwrap.dedent(
    '''
    import torch
    from torch import nn

    # %% exercise="mean" points=4
    def mean(x, dim=-1):
        """The mean along `dim`."""
        ### BEGIN SOLUTION
        if x.numel() == 0:
            raise ValueError("x is empty")
        return x.sum(dim) / x.shape[dim]
        ### END SOLUTION

    # %% exercise="centre" points=2
    def centre(x):
        """Subtract the mean of each row."""
        ### BEGIN SOLUTION
        return x - mean(x).unsqueeze(-1)
        ### END SOLUTION

    # %% exercise="Scale" points=2
    class Scale(nn.Module):
        """Multiply by a learned vector."""

        def __init__(self, width):
            super().__init__()
            ### BEGIN SOLUTION
            self.weight = nn.Parameter(torch.ones(width))
            ### END SOLUTION

        def forward(self, x):
            ### BEGIN SOLUTION
            return x * self.weight
            ### END SOLUTION

    # %%
    '''
)

GRADERS = textwrap.dedent(
    '''
    from autograder.judging import expectations
    from autograder.judging.grader_marks import exercise, hidden

    @exercise("mean")
    def test_small(student, reference, draw):
        """Means of a small matrix."""
        x = draw.normal(2, 3)
        expectations.close(student.mean(x), reference.mean(x), "the mean")

    @hidden
    @exercise("mean", weight=2)
    def test_other_axis(student, reference, draw):
        """Means along another axis."""
        x = draw.normal(4, 3)
        expectations.close(student.mean(x, dim=0), reference.mean(x, dim=0), "the mean")

    @exercise("mean")
    def test_empty(student, reference, draw):
        """Refuses an empty tensor."""
        x = draw.normal(0, 3)
        expectations.raises("ValueError", lambda: student.mean(x), "mean of nothing")

    @exercise("centre")
    def test_centre(student, reference, draw):
        """Centred rows."""
        x = draw.normal(3, 4)
        seen = student.observe("centre", x)
        expectations.close(seen.value, reference.centre(x), "the result")
        expectations.unchanged(seen, "centre")

    @exercise("Scale")
    def test_scale(student, reference, draw):
        """Scales with loaded weights, and gradients agree."""
        right = reference.module("Scale", width=3, state={"weight": draw.normal(3)})
        own = student.module("Scale", width=3, state=right.state())
        x = draw.normal(2, 3)
        seen, expected = own.observe(x), right.observe(x)
        expectations.close(seen.value, expected.value, "the result")
        expectations.gradients(seen, expected)
    '''
)

MISCONCEPTIONS = (
    Misconception(
        "divides_by_rows",
        "mean",
        "You divide by the number of rows.",
        "toy-mean",
        swap=[("x.shape[dim]", "x.shape[0]")],
    ),
    Misconception(
        "sum_only", "mean", "You forget to divide.", "toy-mean", swap=[(" / x.shape[dim]", "")]
    ),
    Misconception(
        "adds", "centre", "You add the mean.", "toy-centre", swap=[("x - mean", "x + mean")]
    ),
)

ASSIGNMENT = Assignment(
    "toy",
    "Toy",
    (
        Exercise("mean", "Mean", 4, "toy-mean", ("mean", "nanmean")),
        Exercise("centre", "Centre", 2, "toy-centre", needs=("mean",)),
        Exercise("Scale", "Scale", 2, "toy-scale"),
    ),
)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `sandbox` where there is none."""
    marker = item.get_closest_marker("sandbox")
    if marker is not None and marker.kwargs.get("needed", True) and no_sandbox():
        pytest.skip(no_sandbox())


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy unit: `run(source)` judges a source text; `graders` and `source` are at hand."""
    path = tmp_path / "test_toy.py"
    path.write_text(GRADERS)
    reference = variants.load_variant(SOURCE, "toy")
    wrong = {
        item.name: variants.load_variant(
            SOURCE.replace(*item.swap[0]),
            item.name,
        )
        for item in MISCONCEPTIONS
    }
    monkeypatch.setattr(variants, "source_of", lambda unit: SOURCE)
    monkeypatch.setattr(variants, "reference_namespace", lambda unit: reference)
    monkeypatch.setattr(variants, "misconceptions", lambda unit: MISCONCEPTIONS)
    monkeypatch.setattr(variants, "wrong_namespace", lambda unit, name: wrong[name])
    graders = Graders("toy", path=path, assignment=ASSIGNMENT)

    def run(source: str, **options):
        executor = Executor(variants.load_variant(source, "student"))
        return graders.run(executor.execute, **{"refusing": executor.refusing, **options})

    return SimpleNamespace(
        run=run, graders=graders, source=SOURCE, path=path, assignment=ASSIGNMENT
    )


@functools.cache
def _answers(unit: str) -> dict[str, str]:
    """The reference's answers to a unit's exercises and questions, by cell."""
    from autograder.assignments import builder

    instructor, _ = builder.instructor(paths.solution(unit))
    return {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in instructor.cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


@pytest.fixture(scope="session")
def solved() -> Callable[..., NotebookNode]:
    """Makes the students' notebook of a unit with the reference's answers, some changed."""
    from autograder.grading import repair

    def make(unit: str = "attention-self_attention", **changes: str) -> NotebookNode:
        nb = repair.blank(repair.released(unit))
        unknown = set(changes) - set(_answers(unit))
        assert not unknown, f"{unit} has no {', '.join(sorted(unknown))}"
        for cell in nb.cells:
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("solution"):
                lines = changes.get(marks.grade_id, _answers(unit)[marks.grade_id]).splitlines()
                cell.source = "\n".join(line for line in lines if "### " not in line)
        return nb

    return make


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An nbgrader course on self-attention in which nobody has handed in yet; to be copied."""
    from autograder.gradebook.course import prepare

    course = tmp_path_factory.mktemp("prepared") / "course"
    prepare(course, "attention-self_attention")
    return course


@pytest.fixture
def course(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared course, for one test to write into."""
    return Path(shutil.copytree(prepared, tmp_path / "course"))


@pytest.fixture(scope="module")
def graders(request: pytest.FixtureRequest) -> Graders:
    """The graders of the unit that the test file names in `UNIT`."""
    return graders_of(request.module.UNIT)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each style of a unit's graders, or each early mistake."""
    if "styled" in metafunc.fixturenames:
        styles = list(metafunc.cls.styles)
        names = [f"{exercise}-{name}".replace(" ", "_") for exercise, name in styles]
        metafunc.parametrize("styled", styles, ids=names)
    if "early" in metafunc.fixturenames:
        metafunc.parametrize("early", metafunc.cls.kept)
    if "made" in metafunc.fixturenames:
        metafunc.parametrize("made", metafunc.cls.unexcused, ids="-".join)
