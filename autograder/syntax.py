"""The cells of a notebook as syntax trees: each is parsed once, though several parts read it."""

from __future__ import annotations

import ast
import warnings

from autograder.kept_texts import kept_for


@kept_for(characters=100_000)
def parsed(source: str) -> ast.Module | None:
    """The tree of `source`, which nobody may change; None where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes and the like are not ours.
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
