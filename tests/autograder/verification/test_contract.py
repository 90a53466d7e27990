"""Promises of texts are held against the tests that keep them."""

from __future__ import annotations

import zlib

import pytest

from autograder.judging.runner import Graders
from autograder.verification import contract

NAMES = ("mean", "centre", "Scale")
OWN = {"mean": ("values", "empty", "not-called"), "centre": ("values",)}
KEPT = """
from autograder.judging.grader_marks import exercise, promises

@promises("values", "empty")
@exercise("mean")
def test_mean(student): ...

@promises("values", "any-dtype")
@exercise("centre")
def test_centre(student): ...

@exercise("Scale")
def test_scale(student): ...
"""


@pytest.fixture
def read(toy):
    """What is said of a unit whose graders are those of a text."""

    def judge(
        text=KEPT, own=OWN, conventions=("any-dtype", "any-strides"), exercises=NAMES, elsewhere=()
    ):
        # A file of its own, for pytest imports each once.
        path = toy.path.with_name(f"test_{zlib.crc32(text.encode())}.py")
        path.write_text(text)
        graders = Graders("toy", path=path, assignment=toy.assignment)
        return contract.read(graders, own, conventions, exercises, elsewhere)

    return judge


def test_a_promise_is_kept_by_a_test_that_names_it(read):
    # What is not to be called, and the conventions of all chapters, the machinery looks after.
    found = read()
    assert (found.untested, found.unknown) == ([], [])
    assert found.promises == 6
    assert found.without_ids == ["Scale"]


def test_a_promise_that_no_test_of_its_exercise_names_is_listed(read):
    found = read(KEPT.replace('"values", "any-dtype"', '"any-dtype"'))
    assert found.untested == ["centre: values"]
    assert read(KEPT.replace(', "any-dtype"', "")).untested == ["conventions: any-dtype"]


def test_a_name_that_no_text_has_is_listed(read):
    found = read(KEPT.replace('"empty"', '"nothing"'))
    assert found.untested == ["mean: empty"]
    assert found.unknown == ["test_mean names nothing"]


def test_what_is_forbidden_must_be_said(read):
    found = read(own=OWN | {"mean": ("values", "empty")})
    assert found.unknown == ["mean forbids calls, but its text has no id not-called"]


def test_conventions_are_asked_for_where_a_whole_unit_has_texts_with_ids(read):
    missing = KEPT.replace(', "any-dtype"', "")
    assert read(missing, exercises=["mean"]).untested == []
    assert read(missing, elsewhere=["any-dtype"]).untested == []
    without = read("from autograder.judging.grader_marks import exercise\n", own={})
    assert (without.untested, without.unknown, without.promises) == ([], [], 0)
    assert without.without_ids == list(NAMES)
