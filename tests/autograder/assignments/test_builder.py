"""The students' notebooks: what the builder makes of a script, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from nbgrader.nbgraderformat import MetadataValidator

from autograder.assignments import builder, overview
from autograder.common import errors, paths
from autograder.units import assignment
from tests.autograder.helpers import put

SCRIPT = '''"""A small unit."""

# %% [markdown]
# # Small steps

# %% tags=["instructor"]
SECRET = "for the teacher's eyes"

# %%
import math

# %% tags=["active-ipynb"]
# from autograder import checks_for
# check = checks_for("small-steps")

# %% [markdown]
# ## Exercise 1. Double it

# %% exercise="double" points=2 section="small-double" forbids="mul multiply"
def double(x):
    """Twice `x`."""
    ### BEGIN SOLUTION
    twice_the_value = x + x
    return twice_the_value
    ### END SOLUTION


# %% check="double" tags=["active-ipynb"]
# check("double")

# %% [markdown]
# ## Exercise 2: A pair of numbers
#
# ```python
# # This line of code is no heading.
# ```
#
# * `second` gives twice the first. <!-- id: twice-the-first -->

# %% exercise="Pair" points=1.5 section="small-pair" title="Pairs"
class Pair:
    """Two numbers."""

    def __init__(self, first):
        ### BEGIN SOLUTION
        self.first = first
        ### END SOLUTION

    def second(self):
        """Twice the first."""
        ### BEGIN SOLUTION
        return double(self.first)
        ### END SOLUTION


# %% check="Pair" tags=["active-ipynb"]
# check("Pair")

# %% [markdown] question="why" points=3 section="small-double"
# ## Why
#
# Why double?
#
# ### BEGIN SOLUTION
# Because one is not enough.
# ### END SOLUTION
'''

UNIT = "small-steps"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "solutions" / "small" / "steps.py", SCRIPT)
    return tmp_path


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script's course, built once for the tests that only look."""
    root = tmp_path_factory.mktemp("example")
    put(root / "solutions" / "small" / "steps.py", SCRIPT)
    builder.build([UNIT], root)
    return root


def opened(root: Path) -> nbformat.NotebookNode:
    return nbformat.read(root / "exercises" / UNIT / f"{UNIT}.ipynb", as_version=4)


def built(root: Path) -> nbformat.NotebookNode:
    builder.build([UNIT], root)
    return opened(root)


def cells(notebook: nbformat.NotebookNode) -> dict[str, nbformat.NotebookNode]:
    return {
        cell.metadata.nbgrader.grade_id: cell
        for cell in notebook.cells
        if "nbgrader" in cell.metadata
    }


def test_the_ids_of_promises_stay_out_of_the_notebook(example: Path) -> None:
    texts = [cell.source for cell in opened(example).cells]
    assert any("twice the first.\n" in f"{text}\n" for text in texts)
    assert not any("<!--" in text for text in texts)


def test_the_students_notebook_asks_and_does_not_tell(example: Path) -> None:
    text = nbformat.writes(opened(example))
    for secret in ("twice_the_value", "double(self.first)", "one is not enough", "teacher's eyes"):
        assert secret in SCRIPT
        assert secret not in text
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text
    assert "points(" not in text
    assert "Why double?" in text


def test_every_stub_names_its_exercise_and_keeps_its_indentation(example: Path) -> None:
    found = cells(opened(example))
    assert found["double"].source == (
        'def double(x):\n    """Twice `x`."""\n'
        '    # YOUR CODE HERE\n    raise NotImplementedError("double is yours to write")'
    )
    stub = '        raise NotImplementedError("Pair is yours to write")'
    assert found["Pair"].source.split("\n").count(stub) == 2


def test_nbgraders_metadata_is_filled_in(example: Path) -> None:
    notebook = opened(example)
    MetadataValidator().validate_nb(notebook)
    found = cells(notebook)
    assert list(found) == [
        "setup",
        "setup-2",
        "double",
        "check_double",
        "Pair",
        "check_Pair",
        "why",
    ]
    double, check, why = found["double"], found["check_double"], found["why"]
    assert double.metadata.nbgrader.solution
    assert not double.metadata.nbgrader.grade
    assert check.metadata.nbgrader.grade
    assert check.metadata.nbgrader.locked
    assert check.metadata.nbgrader.points == 2
    assert not check.metadata.editable
    assert why.metadata.nbgrader.grade
    assert why.metadata.nbgrader.solution
    assert why.metadata.nbgrader.points == 3
    assert found["setup"].metadata.nbgrader.locked
    assert {cell.metadata.nbgrader.schema_version for cell in found.values()} == {3}


def test_no_option_of_ours_and_no_result_is_left_in_the_notebook(example: Path) -> None:
    notebook = opened(example)
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"nbgrader", "deletable", "editable"}
        if cell.cell_type == "code":
            assert cell.execution_count is None
            assert cell.outputs == []
    assert notebook.metadata.kernelspec.name == "python3"


def test_an_exercise_needs_what_its_graders_hand_it(root: Path) -> None:
    script = root / "solutions" / "small" / "steps.py"
    apart = SCRIPT.replace("return double(self.first)", "return 2 * self.first")
    for text, needs in (
        (apart, ()),
        (apart.replace("points=1.5", 'points=1.5 judged_on="double"'), ("double",)),
    ):
        script.write_text(text, encoding="utf-8")
        builder.build([UNIT], root)
        written = (root / "exercises" / UNIT / "assignment.json").read_text(encoding="utf-8")
        assert assignment.Assignment.from_json(written).exercises[1].needs == needs


def test_assignment_json_says_what_the_script_says(example: Path) -> None:
    text = (example / "exercises" / UNIT / "assignment.json").read_text(encoding="utf-8")
    small = assignment.Assignment.from_json(text)
    assert small.to_json() == text
    assert small.title == "Small steps"
    assert small.names == ("double", "Pair")
    assert (small.points, small.written_points) == (3.5, 3)
    double, pair = small.exercises
    assert double.title == "Double it"
    assert double.forbids == ("mul", "multiply")
    assert double.needs == ()
    assert pair.title == "Pairs"
    assert pair.needs == ("double",)
    assert pair.stub == cells(opened(example))["Pair"].source
    assert small.questions[0].title == "Why"
    assert json.loads(text) == json.loads(json.dumps(json.loads(text), sort_keys=True))


def test_building_twice_gives_the_same_bytes(root: Path) -> None:
    assert len(builder.build([UNIT], root)) == 2
    files = {path: path.read_bytes() for path in (root / "exercises" / UNIT).iterdir()}
    assert builder.build([UNIT], root) == []
    for path in files:
        path.unlink()
    builder.build([UNIT], root)
    assert {path: path.read_bytes() for path in files} == files


def test_check_names_the_file_that_differs_and_writes_nothing(root: Path) -> None:
    builder.build([UNIT], root)
    script = root / "solutions" / "small" / "steps.py"
    script.write_text(SCRIPT.replace("Why double?", "Why twice?"), encoding="utf-8")
    notebook = root / "exercises" / UNIT / f"{UNIT}.ipynb"
    before = notebook.read_bytes()
    assert builder.build([UNIT], root, check=True) == [notebook]
    assert notebook.read_bytes() == before


def test_editing_a_text_keeps_the_ids_of_the_other_cells(root: Path) -> None:
    before = [cell.id for cell in built(root).cells]
    script = root / "solutions" / "small" / "steps.py"
    script.write_text(SCRIPT.replace("# # Small steps", "# # Small steps\n# Welcome."))
    after = [cell.id for cell in built(root).cells]
    assert len(before) == len(set(before)) == len(after)
    assert [old != new for old, new in zip(before, after, strict=True)].count(True) == 1


def test_a_prepared_course_is_one_that_nbgrader_knows(root: Path) -> None:
    course = root / "course"
    builder.prepare_course(course, [UNIT], root / "solutions")
    source = nbformat.read(course / "source" / UNIT / f"{UNIT}.ipynb", as_version=4)
    MetadataValidator().validate_nb(source)
    assert 'points("small-steps", "double")' in cells(source)["check_double"].source
    assert (course / "release" / UNIT / f"{UNIT}.ipynb").is_file()
    with Gradebook(f"sqlite:///{course}/gradebook.db") as gradebook:
        notebook = gradebook.find_notebook(UNIT, UNIT)
        assert {cell.name: cell.max_score for cell in notebook.grade_cells} == {
            "check_double": 2,
            "check_Pair": 1.5,
            "why": 3,
        }


def test_points_and_minutes_stand_below_each_heading(example: Path) -> None:
    texts = [cell.source for cell in opened(example).cells if cell.cell_type == "markdown"]
    assert "## Exercise 1. Double it\n\n*2 points · about 10 minutes*" in texts
    (pair,) = [text for text in texts if "A pair of numbers" in text]
    assert pair.startswith(
        "## Exercise 2: A pair of numbers\n\n*1.5 points · about 10 minutes*\n\n```python\n# This"
    )
    (why,) = [text for text in texts if "Why double?" in text]
    assert why.startswith("## Why\n\n*3 points · about 10 minutes*\n\nWhy double?")
    assert sum(text.count(" minutes*") for text in texts) == 3


def test_the_overview_says_what_there_is_to_do(example: Path) -> None:
    title, image, table, *_ = opened(example).cells
    assert title.source == "# Small steps"
    assert image.source.startswith('<img alt="The parts of this unit. Pair uses double."')
    assert "| 1 | `double` | Double it | 2 | 10 |" in table.source
    assert "| 2 | `Pair` | Pairs | 1.5 | 10 |" in table.source
    assert "| | | Why (in words) | 3 | 10 |" in table.source
    assert "About 30 minutes in all." in table.source


def test_minutes_grow_with_what_is_to_be_written() -> None:
    def answer(lines: int) -> str:
        written = "    x = 1\n" * lines
        return f"def f():\n    ### BEGIN SOLUTION\n    # Why.\n\n{written}    ### END SOLUTION\n"

    assert [overview.minutes(answer(lines)) for lines in (0, 1, 5, 20)] == [5, 5, 10, 20]
    assert overview.minutes(answer(5) + answer(5)) == overview.minutes(answer(10))


def test_a_part_that_is_given_stands_between_exercises(root: Path) -> None:
    """What an exercise uses in a given part it needs too."""
    script = SCRIPT.replace(
        "# %% [markdown]\n# ## Exercise 2",
        '# %% tags=["given"]\ndef four_times(x):\n    return double(double(x))\n\n'
        "# %% [markdown]\n# ## Exercise 2",
    ).replace("return double(self.first)", "return four_times(self.first) / 2")
    put(root / "solutions" / "small" / "steps.py", script)
    notebook, small = builder.instructor(root / "solutions" / "small" / "steps.py")
    assert small.exercises[1].needs == ("double",)
    assert "Pair uses four_times; four_times uses double" in notebook.cells[2].source


SOLUTION_CELL = SCRIPT[SCRIPT.index('# %% exercise="double"') : SCRIPT.index('# %% check="double"')]
MISTAKES = {
    "no check cell": (
        '# %% check="double" tags=["active-ipynb"]\n# check("double")\n',
        "",
        "exercise double has no check cell; add",
    ),
    "check cell of nothing": ('check="double"', 'check="triple"', "no exercise triple above"),
    "two check cells": (
        '# %% check="Pair" tags=["active-ipynb"]\n# check("Pair")',
        '# %% check="double" tags=["active-ipynb"]\n# check("double")',
        "double already has a check cell; remove",
    ),
    "duplicate name": (
        '# %% exercise="Pair"',
        SOLUTION_CELL + '# %% exercise="Pair"',
        "double was already given on line 19; rename",
    ),
    "no points": ("points=2 ", "", "exercise double has no points; add points=2"),
    "negative points": ("points=2 ", "points=-2 ", "exercise double has no points"),
    "no section": (' section="small-pair"', "", "what to reread; add"),
    "unknown option": ("points=1.5", "points=1.5 pionts=3", "unknown cell option 'pionts'; the"),
    "judged on a later one": (
        "points=2 ",
        'points=2 judged_on="Pair" ',
        "double is judged_on Pair, which is no exercise before it; correct it.",
    ),
    "unreadable option": ("points=1.5", "points=one", "cannot read the cell options"),
    "two kinds": ('check="double"', 'check="double" exercise="double"', "split it"),
    "wrong name": ('exercise="double"', 'exercise="twice"', "defines no function or class"),
    "not a name": ('exercise="double"', 'exercise="do it"', "'do it' is no name"),
    "no solution region": (
        "        ### BEGIN SOLUTION\n        self.first = first\n        ### END SOLUTION\n\n"
        '    def second(self):\n        """Twice the first."""\n        ### BEGIN SOLUTION\n'
        "        return double(self.first)\n        ### END SOLUTION\n",
        "        self.first = first\n",
        "no solution region; put",
    ),
    "open region": (
        "    return twice_the_value\n    ### END SOLUTION\n",
        "    return twice_the_value\n",
        "do not match; close",
    ),
    "solution in a plain cell": (
        "import math",
        "### BEGIN SOLUTION\nimport math\n### END SOLUTION",
        "would reach the students",
    ),
    "points on a plain cell": ("# %%\nimport", "# %% points=2\nimport", "points says nothing"),
    "check that checks another": ('# check("double")', '# check("Pair")', "must hold the line"),
    "syntax": ("x + x", "x + ", "is not valid Python"),
    "wrong number": (
        "# ## Exercise 2: A pair",
        "# ## Exercise 3: A pair",
        "the heading of Pair must begin with Exercise 2",
    ),
    "no number": ("# ## Exercise 2: A pair", "# ## A pair", "must begin with Exercise 2"),
    "no text": (
        "# ## Exercise 2: A pair of numbers",
        "# A pair of numbers",
        'Pair has no text of its own; put one with the heading "### Exercise 2: …" above',
    ),
    "question in a code cell": (' [markdown] question="why"', ' question="why"', "add [markdown]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_malformed_script_gets_one_sentence_with_line_and_remedy(
    root: Path, mistake: str
) -> None:
    old, new, expected = MISTAKES[mistake]
    assert SCRIPT.count(old) == 1
    (root / "solutions" / "small" / "steps.py").write_text(
        SCRIPT.replace(old, new), encoding="utf-8"
    )
    with pytest.raises(builder.BuildError) as caught:
        builder.build([UNIT], root)
    message = str(caught.value)
    assert re.match(r"solutions/small/steps\.py, line \d+: ", message)
    assert expected in message
    assert "\n" not in message
    assert not (root / "exercises").exists()


def test_the_line_in_the_message_is_that_of_the_cell(root: Path) -> None:
    line = SCRIPT[: SCRIPT.index('# %% exercise="Pair"')].count("\n") + 1
    (root / "solutions" / "small" / "steps.py").write_text(SCRIPT.replace(" points=1.5", ""))
    with pytest.raises(builder.BuildError, match=rf"small/steps\.py, line {line}: exercise Pair"):
        builder.build([UNIT], root)


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(builder.BuildError, match=r"There is no solutions/small/nothing\.py"):
        builder.build(["small-nothing"], tmp_path)


# The course's own units.

UNITS = builder.sources()


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    course = tmp_path_factory.mktemp("course")
    builder.prepare_course(course, UNITS)
    return course


def test_there_is_every_unit() -> None:
    assert list(paths.UNITS) == UNITS
    assert "attention-scores" in UNITS


@pytest.mark.parametrize("unit", UNITS)
def test_the_committed_exercises_are_what_the_scripts_say(unit: str) -> None:
    assert builder.build([unit], check=True) == []


@pytest.mark.parametrize("unit", UNITS)
def test_every_stub_is_its_solution_with_lines_taken_out(unit: str, course: Path) -> None:
    solution = cells(nbformat.read(course / "source" / unit / f"{unit}.ipynb", as_version=4))
    release = cells(nbformat.read(course / "release" / unit / f"{unit}.ipynb", as_version=4))
    for exercise in assignment.load(unit).exercises:
        name = exercise.name
        kept = [
            line
            for line in release[name].source.split("\n")
            if line.strip() not in ("# YOUR CODE HERE", builder.stub_line(name))
        ]
        assert len(kept) < len(release[name].source.split("\n"))
        remaining = iter(solution[name].source.split("\n"))
        assert all(line in remaining for line in kept), name
        compile(release[name].source, name, "exec")


@pytest.mark.parametrize("unit", UNITS)
def test_no_line_of_a_solution_reaches_the_students(unit: str) -> None:
    private = solution_lines(unit)
    shown = (paths.EXERCISES / unit / f"{unit}.ipynb").read_text(encoding="utf-8")
    shown = json.dumps([cell.source for cell in nbformat.reads(shown, as_version=4).cells])
    assert len(private) > 20
    leaked = sorted(line for line in private if json.dumps(line)[1:-1] in shown)
    assert leaked == []


def solution_lines(unit: str) -> set[str]:
    """The longer lines of the unit's solution regions."""
    script = paths.solution(unit).read_text(encoding="utf-8")
    regions = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", script, flags=re.DOTALL)
    lines = {line.strip("# ") for region in regions for line in region.splitlines()}
    return {line for line in lines if len(line) > 24}


@pytest.mark.parametrize("unit", UNITS)
def test_a_week_holds_every_unit(unit: str) -> None:
    loaded = assignment.load(unit)
    assert all(exercise.minutes % 5 == 0 and exercise.minutes for exercise in loaded.exercises)
    assert loaded.minutes <= 180
    assert len(loaded.exercises) <= 11
    notebook = nbformat.read(paths.EXERCISES / unit / f"{unit}.ipynb", as_version=4)
    assert f"About {loaded.minutes} minutes in all." in notebook.cells[2].source
    assert [cell.id for cell in notebook.cells[1:3]] == ["picture", "overview"]


def test_loading_an_assignment_that_is_not_there_says_which_are() -> None:
    with pytest.raises(
        errors.AssignmentError, match="no assignment called atention-scores"
    ) as near:
        assignment.load("atention-scores")
    assert str(near.value).endswith("Did you mean attention-scores?")
    with pytest.raises(errors.AssignmentError, match="The assignments here are seq2seq-text, "):
        assignment.load("zzz")


def test_an_unknown_exercise_gets_the_nearest_name() -> None:
    scores = assignment.load("attention-scores")
    with pytest.raises(KeyError, match="Did you mean masked_softmax"):
        scores.exercise("mask_softmax")


def test_the_assignment_is_found_beside_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "EXERCISES", tmp_path / "nowhere")
    monkeypatch.chdir(tmp_path)
    small = assignment.Assignment("small", "Small", (assignment.Exercise("f", "F", 1.0, "s"),))
    (tmp_path / "assignment.json").write_text(small.to_json(), encoding="utf-8")
    assert assignment.load("small") == small
    (tmp_path / "assignment.json").write_text("{", encoding="utf-8")
    with pytest.raises(errors.AssignmentError):
        assignment.load("small")
