"""The cells of a notebook as syntax trees: each is parsed once, though several parts read it."""

from __future__ import annotations

import ast
import functools
import warnings

KEPT = 64  # trees: those of one notebook's cells, and of the stubs they are compared with
MAX_KEPT = 10_000  # characters, of which a tree takes up to a hundred times as many bytes


def parsed(source: str) -> ast.Module | None:
    """The tree of `source`, which nobody may change; None where it is no Python."""
    return _kept(source) if len(source) <= MAX_KEPT else _parse(source)


def _parse(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Invalid escapes and the like are not ours.
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_kept = functools.lru_cache(maxsize=KEPT)(_parse)
