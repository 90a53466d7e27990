"""The ids of promises are read from texts, and taken out of what students read."""

from __future__ import annotations

import pytest

from autograder.common import paths
from autograder.units import promises
from autograder.units.variants import source_of

SCRIPT = """
# %% [markdown]
# ## A part <!-- id: of-the-part -->

# %% [markdown]
# * Twice `x`. <!-- id: twice -->
# * Of any shape,
#   and of any type.
#   <!-- id: any-shape -->

# %% exercise="double" points=1
def double(x):
    "An id in code is none: <!-- id: not-this -->"

# %% check="double"
# check("double")

# %% exercise="halve" points=1
def halve(x): ...

# %% [markdown] question="why"
# Why?
"""


def test_an_exercise_has_the_ids_of_the_texts_above_it():
    found = promises.by_exercise(SCRIPT)
    assert found == {"double": ("of-the-part", "twice", "any-shape"), "halve": ()}


def test_a_text_without_its_ids_has_no_trace_of_them():
    text = "* Twice `x`. <!-- id: twice -->\n* Any shape.\n  <!-- id: any -->\n\n<!-- kept -->"
    assert promises.without_ids(text) == "* Twice `x`.\n* Any shape.\n\n<!-- kept -->"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id: twice ", "id: Two_times ", "double: write <!-- id: like-this -->"),
        ("id: twice ", "id twice ", "double: write <!-- id: like-this -->"),
        ("id: twice ", "id: any-shape ", "double: the id any-shape is there twice"),
        ("Why?", "Why? <!-- id: why -->", "question why: no exercise follows the id why"),
        ('"why"\n', '"why"\n# %% [markdown]\n# <!-- id: end -->\n', "the end: no exercise"),
    ],
)
def test_an_id_that_cannot_be_meant_is_refused_with_its_place(old, new, message):
    with pytest.raises(ValueError, match=message):
        promises.by_exercise(SCRIPT.replace(old, new))


@pytest.mark.parametrize("unit", paths.UNITS)
def test_no_exercise_names_a_promise_as_its_conventions_do(unit):
    own = promises.by_exercise(source_of(unit))
    conventions = promises.of_conventions(unit)
    assert len(set(conventions)) == len(conventions) > 0
    assert not set(conventions) & {one for ids in own.values() for one in ids}


def test_tests_name_what_they_keep() -> None:
    assert {"weight", "parameter-names", "gradients"} <= promises.named_by("attention-scores")
