"""What tests of several chapters' reference modules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jupytext
import pytest
import torch
from torch import Tensor, nn

import toolkit

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
# How often a statistical test may fail on correct code.
FALSE_ALARM = 1e-9
TOOLKIT = Path(toolkit.__file__).parent


def close(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Equal up to rounding: 64 units in the last place of the largest expected entry."""
    assert actual.dtype == expected.dtype, what
    assert actual.shape == expected.shape, what
    scale = max(expected.abs().max().item(), 1.0) if expected.numel() else 1.0
    error = (actual - expected).abs().max().item() if expected.numel() else 0.0
    assert error <= 64 * torch.finfo(expected.dtype).eps * scale, f"{what}: off by {error}"


def cotangent(output: Tensor) -> Tensor:
    """A fixed weight for every entry, none like its neighbour."""
    steps = torch.arange(1, output.numel() + 1, dtype=output.dtype)
    return torch.sin(steps).reshape(output.shape)


def same_with_gradients(
    ours: Callable[..., Tensor | tuple[Tensor, ...]],
    theirs: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    parameters: Sequence[Tensor] = (),
) -> None:
    """Same values, and same gradients with respect to inputs and parameters, of every output."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    wanted = [*inputs, *parameters]
    results = []
    for function in (ours, theirs):
        out = function(*inputs)
        out = out if isinstance(out, tuple) else (out,)
        loss = sum((o * cotangent(o)).sum() for o in out)
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        results.append((out, gradients))
    (our_values, our_gradients), (their_values, their_gradients) = results
    for number, (a, b) in enumerate(zip(our_values, their_values, strict=True)):
        close(a, b, f"output {number}")
    for number, (a, b) in enumerate(zip(our_gradients, their_gradients, strict=True)):
        assert (a is None) == (b is None), f"gradient {number}"
        if a is not None:
            close(a, b, f"gradient {number}")


def within_rate(count: int, n: int, p: float) -> bool:
    """Whether count of n fits the probability p, by Bernstein's bound at FALSE_ALARM."""
    log = math.log(2 / FALSE_ALARM)
    return abs(count / n - p) <= math.sqrt(2 * p * (1 - p) * log / n) + 2 * log / (3 * n)


def exercise_cells(source: Path) -> dict[str, Any]:
    """The solution cell of each exercise of the chapter whose units lie in the folder `source`."""
    cells = [
        cell for file in sorted(source.glob("[a-z]*.py")) for cell in jupytext.read(file).cells
    ]
    found = [cell for cell in cells if "exercise" in cell.metadata]
    named = {cell.metadata["exercise"]: cell for cell in found}
    assert len(named) == len(found), "two units of a chapter ask for one name"
    return named


def refused(function: Callable[[], Any], words: str = ".", *, source: Path) -> None:
    """A ValueError of a module in the folder `source`, or of what it is given from the toolkit.

    It is one sentence that has these words in it.
    """
    with pytest.raises(ValueError, match=words) as caught:
        function()
    assert "\n" not in str(caught.value)
    assert 15 < len(str(caught.value)) < 150
    # A sentence of ours, not one that PyTorch or Python raised on the way.
    assert Path(caught.traceback[-1].path).parent in (source, TOOLKIT)


def filled(module: nn.Module, **values: Tensor | float) -> nn.Module:
    """The module with 0 everywhere, but for the parameters given (``__`` for a dot)."""
    named = dict(module.named_parameters())
    with torch.no_grad():
        for parameter in named.values():
            parameter.zero_()
        for name, value in values.items():
            named[name.replace("__", ".")].copy_(torch.as_tensor(value))
    return module
