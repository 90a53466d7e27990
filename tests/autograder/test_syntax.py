"""A cell is parsed once, and what is no Python is said to be none."""

from __future__ import annotations

import ast
import warnings

from autograder.syntax import parsed


def test_a_tree_is_that_of_the_source_and_made_once():
    source = "def once(x):\n    return x  # for test_syntax\n"
    tree = parsed(source)
    assert ast.dump(tree) == ast.dump(ast.parse(source))
    assert parsed(source) is tree


def test_what_is_no_python_has_no_tree():
    assert parsed("def broken(:\n") is None
    assert parsed("x = '\x00'") is None
    assert parsed("(" * 5000) is None


def test_nothing_is_said_about_a_doubtful_escape():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parsed("doubtful = '\\d'") is not None
