"""What holds for the source of every chapter: its cells, its stubs, its module."""

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

from autograder.common.paths import SOLUTIONS

CHAPTERS = sorted(path.stem for path in SOLUTIONS.glob("[a-z]*.py"))


@pytest.fixture(scope="module", params=CHAPTERS)
def chapter(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def cells(chapter: str) -> list[Any]:
    return jupytext.read(SOLUTIONS / f"{chapter}.py").cells


@pytest.fixture(scope="module")
def module(chapter: str) -> ModuleType:
    return importlib.import_module(f"solutions.{chapter}")


def exercises(cells: list[Any]) -> list[int]:
    return [i for i, cell in enumerate(cells) if "exercise" in cell.metadata]


def test_every_exercise_has_text_hints_solution_and_an_active_check(cells):
    found = exercises(cells)
    assert len(found) >= 14
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
    questions = [cell for cell in cells if "question" in cell.metadata]
    assert len(questions) == 2
    for cell in questions:
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
    return {name.split(".")[0] for name in found}


def test_the_module_imports_only_torch_and_the_standard_library(chapter):
    """A function that reads a checkpoint imports the library for it when it is called."""
    tree = ast.parse((SOLUTIONS / f"{chapter}.py").read_text(encoding="utf-8"))
    assert _imported(tree.body) <= {"torch", *sys.stdlib_module_names}
    assert _imported(ast.walk(tree)) <= {"torch", "safetensors", *sys.stdlib_module_names}


def test_importing_it_prints_nothing_and_leaves_pytorch_alone(chapter, capsys):
    path = SOLUTIONS / f"{chapter}.py"
    spec = importlib.util.spec_from_file_location(f"{chapter}_again", path)
    state, dtype, threads = (
        torch.get_rng_state(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (dtype, threads)
    assert capsys.readouterr() == ("", "")
