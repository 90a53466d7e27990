"""A style's file is cut to the unit that is asked, with all that its answers use."""

from __future__ import annotations

import ast

import pytest

from autograder.common import paths
from autograder.demo.styles import read_style, styles
from autograder.units.assignment import load
from autograder.units.variants import reference_answers

UNIT = "attention-self_attention"
FILE = '''"""Answers to all units of a chapter."""

import math

import torch
from solutions.attention import masked_softmax

ROOTS = {4: 2.0}
TURNS = 3


# %% own="root"
def root(number):
    return ROOTS.get(number, math.sqrt(number))


# %% exercise="DotScore"
class DotScore:
    pass


# %% own="below"
def below(size):
    return torch.ones(size, size).tril().bool()


# %% exercise="causal_mask"
def causal_mask(size):
    return below(size)


# %% exercise="padding_mask"
def padding_mask(lengths, max_length=None):
    return attention_dropout(masked_softmax(lengths / root(4)), DotScore, twice(1))


# %% exercise="split_heads"
def split_heads(x, num_heads):
    return x


# %% own="twice"
def twice(x):
    return 2 * x
'''


def test_a_unit_takes_its_own_answers_and_the_references_for_the_rest():
    style = read_style(FILE, UNIT)
    assert list(style.answers) == list(load(UNIT).names)
    assert style.answers["causal_mask"] == "def causal_mask(size):\n    return below(size)\n"
    assert style.answers["decoder_mask"] == reference_answers(UNIT)["decoder_mask"]


def test_own_cells_stand_before_the_exercise_that_they_were_written_for():
    own = read_style(FILE, UNIT).own
    assert [cell.partition("(")[0] for cell in own["causal_mask"]] == ["def below"]
    assert read_style(FILE, "attention-scores").own["DotScore"][1].startswith("def root")


def test_what_an_answer_uses_of_the_rest_of_the_file_stands_before_it():
    """A constant above the cells, a helper and an answer of an earlier unit, a later helper."""
    own = read_style(FILE, UNIT).own["padding_mask"]
    starts = ["ROOTS =", "def root", "class DotScore", "def twice"]
    assert [cell[: len(start)] for cell, start in zip(own, starts, strict=True)] == starts


def test_what_the_notebook_gives_is_not_written_again():
    """`math`, `torch`, and the parts of earlier units that the first cell imports."""
    cells = [cell for own in read_style(FILE, UNIT).own.values() for cell in own]
    assert not [cell for cell in cells if "import" in cell]


def test_what_given_py_holds_is_imported_from_it():
    text = (
        '# %% exercise="merge_heads"\ndef merge_heads(heads):\n    return masked_softmax(heads)\n'
    )
    own = read_style(text, "attention-multi_head").own
    assert own["merge_heads"] == ("from given import masked_softmax\n",)


def test_a_name_that_nothing_defines_is_said():
    with pytest.raises(ValueError, match="nothing defines thrice, which merge_heads of attention-"):
        read_style(
            '# %% exercise="merge_heads"\ndef merge_heads(heads):\n    return thrice(heads)\n',
            "attention-multi_head",
        )


@pytest.mark.parametrize("unit", paths.units())
def test_each_unit_is_solved_in_three_styles_without_the_reference_modules(unit):
    found = styles(unit)
    assert len(found) >= 3
    for style in found.values():
        assert list(style.answers) == list(load(unit).names)
        cells = [*style.answers.values(), *(cell for own in style.own.values() for cell in own)]
        assert not any("solutions" in ast.dump(ast.parse(cell)) for cell in cells)
