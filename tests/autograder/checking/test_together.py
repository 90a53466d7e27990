"""A chapter's notebooks put together: whose parts are taken, and what is said of the others."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch

from autograder.assignments import whole_chapter
from autograder.checking import together
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.units.assignment import load, units_of

CHAPTER = "attention"
FIRST, SECOND, LAST = units_of([CHAPTER])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with what is given of the chapter, and no notebook."""
    _, given = whole_chapter.files(CHAPTER)
    (tmp_path / given).write_bytes((paths.EXERCISES / given).read_bytes())
    yield tmp_path
    sys.modules.pop(f"{CHAPTER}-mine", None)


def put(path: Path, *cells: str) -> Path:
    """A notebook of these code cells."""
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    return path


def parts_of(folder: Path) -> tuple[ModuleType, dict[str, together.Part]]:
    mine, parts = together.assembled(CHAPTER, folder)
    return mine, {part.unit: part for part in parts}


def test_all_is_the_students_where_all_is_written(
    folder: Path, solved: Callable[..., nbformat.NotebookNode]
) -> None:
    for unit in (FIRST, SECOND, LAST):  # with the cells that check, train and draw
        text = nbformat.writes(solved(unit))
        (folder / unit).mkdir()
        (folder / unit / f"{unit}.ipynb").write_text(text, encoding="utf-8")
    mine, parts = parts_of(folder)
    for unit, part in parts.items():
        assert part.yours == list(load(unit).names)
        assert (part.given, part.open, part.troubles) == ([], [], [])
    heads = mine.MultiHeadAttention(8, 2)
    inside = vars(sys.modules[mine.__name__])
    assert (
        heads.forward.__globals__["scaled_dot_product_attention"]
        is (inside["scaled_dot_product_attention"])
    )
    output, weights = heads(*[torch.ones(1, 3, 8)] * 3)
    assert (output.shape, weights.shape) == ((1, 3, 8), (1, 2, 3, 3))


def test_without_notebooks_earlier_parts_are_given_and_the_last_say_what_to_write(
    folder: Path,
) -> None:
    mine, parts = parts_of(folder)
    assert parts[FIRST].notebook is None
    assert "AttentionDecoderStep" in parts[FIRST].given
    assert "scaled_dot_product_attention" in parts[SECOND].given
    assert parts[LAST].open == list(load(LAST).names)
    assert mine.masked_softmax(torch.zeros(1, 4)).tolist() == [[0.25] * 4]
    with pytest.raises(NotImplementedError, match=r"^MultiHeadAttention is yours to write$"):
        mine.MultiHeadAttention(8, 2)
    said = together.told(parts.values())
    assert f"{LAST}: no {LAST}.ipynb here\n  to write  split_heads, merge_heads," in said
    assert max(map(len, said.splitlines())) <= 80


def test_a_given_part_uses_the_students_and_a_stub_is_given(folder: Path) -> None:
    stub = load(SECOND).exercise("scaled_dot_product_attention").stub
    put(folder / FIRST / f"{FIRST}.ipynb", "def masked_softmax(*_): return 'mine'")
    put(folder / SECOND / f"{SECOND}.ipynb", stub)
    mine, parts = parts_of(folder)
    assert parts[FIRST].yours == ["masked_softmax"]
    assert "scaled_dot_product_attention" in parts[SECOND].given
    used = mine.scaled_dot_product_attention.__globals__
    assert used["masked_softmax"] is mine.masked_softmax
    assert mine.masked_softmax() == "mine"


def test_an_answer_counts_above_what_is_left_of_its_stub(folder: Path) -> None:
    left = (
        "def causal_mask(length):\n    return length\n"
        '    raise NotImplementedError("causal_mask is yours to write")'
    )
    again = load(SECOND).exercise("causal_mask").stub  # a copy of the cell, below the answer
    put(folder / f"{SECOND}.ipynb", left, again)
    mine, parts = parts_of(folder)
    assert parts[SECOND].yours == ["causal_mask"]
    assert mine.causal_mask(3) == 3


def test_only_what_defines_something_runs(folder: Path) -> None:
    put(
        folder / f"{LAST}.ipynb",
        "import math\n\nSCALE = math.sqrt(4)\nlosses = 1 / 0\nprint(1 / 0)",
        "from given import masked_softmax\n\n1 / 0",
        "%%ungraded\n1 / 0",
        "%matplotlib inline\nfor _ in range(3): 1 / 0",
        "HALF = SCALE / 2",
        "def split_heads(x, num_heads):\n    losses = []\n    return HALF, masked_softmax, losses",
    )
    mine, parts = parts_of(folder)
    assert parts[LAST].troubles == []
    assert parts[LAST].yours == ["split_heads"]
    assert mine.split_heads(0, 0) == (1.0, mine.masked_softmax, [])


def test_helpers_of_one_name_in_two_notebooks_do_not_meet(folder: Path) -> None:
    for unit, name in ((FIRST, "masked_softmax"), (SECOND, "causal_mask")):
        helper = f"def helper():\n    return {name!r}\n\ndef {name}(*_):\n    return helper()"
        put(folder / unit / f"{unit}.ipynb", helper)
    mine, _ = parts_of(folder)
    assert (mine.masked_softmax(), mine.causal_mask()) == ("masked_softmax", "causal_mask")


def test_a_cell_that_does_not_run_is_named_with_its_notebook(folder: Path) -> None:
    put(
        folder / f"{FIRST}.ipynb",
        "def masked_softmax(scores, mask=None):\n    return (1",
        "def context_vector(a, v, more=1 / 0):\n    return v",
        "def attention_dropout(*_):\n    return 1",
    )
    (folder / f"{SECOND}.ipynb").write_text("{", encoding="utf-8")
    _, parts = parts_of(folder)
    first, second = parts[FIRST].troubles
    assert first == f"In {FIRST}.ipynb code cell 1, line 2: '(' was never closed."
    assert second.startswith(f"In {FIRST}.ipynb code cell 2, line 1: def context_vector")
    assert parts[FIRST].yours == ["attention_dropout"]
    assert "masked_softmax" in parts[FIRST].given
    assert parts[SECOND].troubles[0].startswith(f"{SECOND}.ipynb is not a readable notebook")
    assert together.told(parts.values()).endswith(
        "\n".join([first, second, *parts[SECOND].troubles])
    )


@pytest.mark.parametrize("place", together.PLACES)
def test_a_notebook_is_found_where_it_was_unpacked(folder: Path, place: str) -> None:
    here = folder / "one" / "two"
    here.mkdir(parents=True)
    _, given = whole_chapter.files(CHAPTER)
    (folder / given).rename(here / given)
    put(here / place.format(unit=FIRST) / f"{FIRST}.ipynb", "def masked_softmax(): return 1")
    _, parts = parts_of(here)
    assert parts[FIRST].yours == ["masked_softmax"]


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssignmentError, match=r"^There is no chapter 'gtp'; there are seq2seq,"):
        together.assembled("gtp", tmp_path)
    with pytest.raises(AssignmentError, match=r"^gpt-given\.py is missing: put the one that came"):
        together.assembled("gpt", tmp_path)


def test_the_notebook_of_a_chapter_is_no_assignment() -> None:
    for chapter in paths.CHAPTERS:
        notebook, _ = whole_chapter.files(chapter)
        cells = json.loads((paths.EXERCISES / notebook).read_text(encoding="utf-8"))["cells"]
        assert not [cell for cell in cells if cell["metadata"]]
