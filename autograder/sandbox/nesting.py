"""Tensors inside nested lists, tuples and dicts, as requests and answers hold them.

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

# The types of what holds no tensor and cannot be changed in place.
SCALARS = frozenset([int, float, bool, str, type(None)])


def walk(value: Any, label: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor inside nested lists, tuples and dicts, with a label such as `0` or `mask`."""
    if isinstance(value, torch.Tensor):
        yield label, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if type(item) not in SCALARS:
                yield from walk(item, f"{label}.{index}" if label else str(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(item) not in SCALARS:
                yield from walk(item, f"{label}.{key}" if label else str(key))


def transform(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same nesting of lists, tuples and dicts with `change` applied to every tensor."""
    if type(value) in SCALARS:
        return value
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [item if type(item) in SCALARS else transform(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple([transform(item, change) for item in value])
    if isinstance(value, dict):
        return {key: transform(item, change) for key, item in value.items()}
    return value
