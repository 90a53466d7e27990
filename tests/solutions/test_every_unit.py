"""What holds for the source of every unit, its cells, stubs and module, and for every chapter."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
from types import ModuleType
from typing import Any

import jupytext
import pytest
import torch

from autograder.common.paths import CHAPTERS, SOLUTIONS, UNITS, chapter_of, solution
from autograder.common.paths import module as module_name

CHAPTER = pytest.mark.parametrize("chapter", CHAPTERS)


@pytest.fixture(scope="module", params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def cells(unit: str) -> list[Any]:
    return jupytext.read(solution(unit)).cells


@pytest.fixture(scope="module")
def module(unit: str) -> ModuleType:
    return importlib.import_module(module_name("solutions", unit))


def exercises(cells: list[Any]) -> list[int]:
    return [i for i, cell in enumerate(cells) if "exercise" in cell.metadata]


def questions(cells: list[Any]) -> list[Any]:
    return [cell for cell in cells if "question" in cell.metadata]


@CHAPTER
def test_a_chapter_has_its_units_in_its_folder_and_nothing_else(chapter):
    files = {path.name for path in (SOLUTIONS / chapter).iterdir() if path.name != "__pycache__"}
    units = {f"{unit}.py" for unit in CHAPTERS[chapter]}
    assert files == {"__init__.py", "conventions.md", *units}


# Names that one of the chapters once had for what `book/notation.md` names for all.
OTHER_NAMES = {
    *("width", "features", "embedding_dim", "intermediate", "ffn_dim"),
    *("layers", "blocks", "depth", "n_heads", "n_layers", "vocab", "context_length"),
    *("segments", "segment_ids", "rate", "dropout_p", "warmup", "peak", "floor", "pre_norm"),
}


def test_the_chapters_speak_one_dialect(module):
    functions = [
        function
        for name, owner in vars(module).items()
        if getattr(owner, "__module__", "") == module.__name__ and not name.startswith("_")
        for function in ([owner] if inspect.isfunction(owner) else vars(owner).values())
        if inspect.isfunction(function)
    ]
    arguments = {name for function in functions for name in inspect.signature(function).parameters}
    assert functions
    assert not arguments & OTHER_NAMES


@CHAPTER
def test_a_chapter_has_fourteen_exercises_and_two_written_questions(chapter):
    sources = [jupytext.read(SOLUTIONS / chapter / f"{u}.py").cells for u in CHAPTERS[chapter]]
    assert sum(len(exercises(cells)) for cells in sources) >= 14
    assert sum(len(questions(cells)) for cells in sources) == 2


def test_every_exercise_has_text_hints_solution_and_an_active_check(cells):
    found = exercises(cells)
    assert 3 <= len(found) <= 11
    for number, i in enumerate(found, 1):
        text, solution, check = cells[i - 1 : i + 2]
        name = solution.metadata["exercise"]
        assert text.cell_type == "markdown"
        assert f"### Exercise {number}: " in text.source
        assert f"`{name}" in text.source
        assert text.source.count("<summary>Hint") >= 2, name
        assert text.source.count("<details>") == text.source.count("</details>")
        assert f"`{solution.metadata['section']}`" in text.source
        assert solution.metadata["points"] >= 1
        assert check.metadata["check"] == name
        assert check.source == f'check("{name}")'
        code = solution.source
        assert code.count("### BEGIN SOLUTION") == code.count("### END SOLUTION") >= 1
        assert re.search(rf"^(class|def) {name}\b", code, re.MULTILINE), name


def test_what_the_docstring_refuses_the_text_says_too(cells):
    for i in exercises(cells):
        text, solution = cells[i - 1].source, cells[i]
        refuses = "ValueError" in solution.source
        assert refuses == ("ValueError" in text), solution.metadata["exercise"]


def test_the_written_questions_have_model_answers(cells):
    for cell in questions(cells):
        assert cell.cell_type == "markdown"
        assert cell.metadata["points"] == 3
        begin, end = cell.source.index("### BEGIN SOLUTION"), cell.source.index("### END SOLUTION")
        assert end - begin > 500


def test_a_stub_with_its_regions_removed_is_valid_python(cells):
    for i in exercises(cells):
        stub = re.sub(
            r"( *)### BEGIN SOLUTION.*?### END SOLUTION",
            r"\1raise NotImplementedError",
            cells[i].source,
            flags=re.DOTALL,
        )
        ast.parse(stub)
        assert "SOLUTION" not in stub


def test_everything_public_is_documented_and_typed(module):
    for name, thing in inspect.getmembers(module):
        if getattr(thing, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        functions = [thing]
        if inspect.isclass(thing):
            functions = [v for v in vars(thing).values() if inspect.isfunction(v)]
            assert thing.__doc__, name
        for function in functions:
            assert function.__doc__, f"{name}.{function.__name__}"
            signature = inspect.signature(function)
            assert signature.return_annotation is not inspect.Signature.empty
            for parameter in signature.parameters.values():
                assert parameter.name == "self" or parameter.annotation is not parameter.empty


def _imported(nodes):
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    ours = ("solutions", "toolkit")
    return {name if name.startswith(ours) else name.split(".")[0] for name in found}


# Modules of the toolkit that import nothing but PyTorch and the standard library.
LIGHT = {"toolkit.kv_cache", "toolkit.module_swap"}


def test_the_module_imports_only_torch_the_standard_library_and_earlier_units(unit):
    """A function that reads a checkpoint imports what it needs when it is called."""
    tree = ast.parse(solution(unit).read_text(encoding="utf-8"))
    chapter, _, name = unit.partition("-")
    before = CHAPTERS[chapter][: CHAPTERS[chapter].index(name)]
    known = {"torch", *sys.stdlib_module_names}
    allowed = {*known, *LIGHT, *(f"solutions.{chapter}.{u}" for u in before)}
    assert _imported(tree.body) <= allowed
    late = _imported(ast.walk(tree)) - allowed
    assert all(name.startswith("toolkit") for name in late)


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_what_the_modules_import_of_the_toolkit_needs_no_other_library(name):
    tree = ast.parse((SOLUTIONS.parent / f"{name.replace('.', '/')}.py").read_text("utf-8"))
    assert _imported(ast.walk(tree)) <= {"torch", *sys.stdlib_module_names}


def test_the_chapters_package_hands_on_every_name_of_its_units(unit, module):
    package = importlib.import_module(f"solutions.{chapter_of(unit)}")
    for statement in ast.parse(solution(unit).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign):
            parts = [part for target in statement.targets for part in ast.walk(target)]
            names = [part.id for part in parts if isinstance(part, ast.Name)]
        else:
            continue
        for name in names:
            if not name.startswith("_"):
                assert getattr(package, name) is getattr(module, name)
                assert name in package.__all__


def test_importing_it_prints_nothing_and_leaves_pytorch_alone(unit, capsys):
    path = solution(unit)
    spec = importlib.util.spec_from_file_location("again", path)
    state, dtype, threads = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, threads)
    assert capsys.readouterr() == ("", "")
