"""Answers that are kept as long as the texts they were worked out from are not too many."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return sum(map(_size, value)) if isinstance(value, tuple) else 1


def kept_for(characters: int) -> Callable[[Function], Function]:
    """Keep what a function answers, the latest for at most so many characters of its arguments.

    A count of answers would not bound the memory: a student's cell may be as long as it likes, and
    a syntax tree takes a hundred bytes for each of its characters.
    """

    def decorate(function: Function) -> Function:
        kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        total = 0

        @functools.wraps(function)
        def answer(*arguments: Any) -> Any:
            nonlocal total
            if arguments in kept:
                kept.move_to_end(arguments)
                return kept[arguments]
            value = kept[arguments] = function(*arguments)
            total += _size(arguments)
            while total > characters and len(kept) > 1:  # The latest is kept however long it is.
                oldest, _ = kept.popitem(last=False)
                total -= _size(oldest)
            return value

        return answer  # type: ignore[return-value]

    return decorate
