"""A copy of a model with other modules in it and the same parameters, such as fused ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from torch import nn


def swap_modules(
    model: nn.Module, kinds: Mapping[type[nn.Module], Callable[[nn.Module], nn.Module]]
) -> nn.Module:
    """Copy a model, and replace its modules of given types.

    Args:
        model: any module; it stays as it is.
        kinds: for each type that is replaced what makes the new module of the old one. Only modules
            of exactly this type are replaced, so that nothing is replaced twice.

    Returns:
        The copy. It holds the parameters and buffers of ``model`` themselves, not copies of them.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    if type(twin) in kinds:
        return kinds[type(twin)](twin)
    new: dict[int, nn.Module] = {}  # a module that stands at two names stays one
    for parent in list(twin.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and type(child) in kinds:
                if id(child) not in new:
                    new[id(child)] = kinds[type(child)](child)
                parent.register_module(name, new[id(child)])
    return twin
