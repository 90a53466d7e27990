"""A module as another student initialises it, which is up to them in most exercises."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SPREAD = 0.1  # the standard deviation of the values


def redrawn(namespace: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The names of an implementation in which all parameters of one class are drawn anew.

    What the notebook itself makes of the class keeps its values.

    Returns:
        None if `name` is no module.
    """
    made = namespace.get(name)
    if not isinstance(made, type) or not issubclass(made, nn.Module):
        return None

    def __init__(self: nn.Module, *given: Any, **named: Any) -> None:
        made.__init__(self, *given, **named)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape) * SPREAD)

    return {**namespace, name: type(name, (made,), {"__init__": __init__})}
