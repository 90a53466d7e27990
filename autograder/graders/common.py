"""What the graders of several chapters share."""

from __future__ import annotations

import torch

from autograder import expect
from autograder.grading import Mistake


def sizes(**named: object) -> str:
    """`B=2, T=3`, to tell the student which case failed."""
    return ", ".join(f"{name}={value}" for name, value in named.items())


def pair(student, reference, name, state=None, dtype=None, **kwargs):
    """The student's module and the reference's, with the same parameters."""
    if state is not None and dtype is not None:
        state = {key: value.to(dtype) for key, value in state.items()}
    return (
        student.module(name, state=state, dtype=dtype, **kwargs),
        reference.module(name, state=state, dtype=dtype, **kwargs),
    )


def same_parameters(handle, expected):
    """The parameters have the names and the shapes that the exercise states."""
    actual = {name: tuple(shape) for name, shape in handle.parameters().items()}
    for name, shape in expected.items():
        expect.true(
            name in actual,
            f"There is no parameter called {name}; "
            f"yours are {', '.join(sorted(actual)) or 'none at all'}.",
        )
        expect.true(
            actual[name] == shape,
            f"The parameter {name} has the shape {actual[name]}; it should be {shape}.",
        )
    extra = sorted(set(actual) - set(expected))
    expect.true(not extra, f"The exercise has no parameter called {', '.join(extra)}.")


def same_gradients(mine, theirs, names, case=""):
    """Gradients of a random weighted sum of the outputs agree, label by label.

    Always asked for in float64: gradients are long sums, in float32 too coarse to compare closely.
    """
    for label, words in names.items():
        expect.true(
            mine.grads.get(label) is not None,
            f"No gradient reaches {words}; look for detach(), .data, .item() or no_grad().",
        )
        expect.close(
            mine.grads[label], theirs.grads[label], what=f"the gradient of {words}", case=case
        )


def same_results(mine, theirs, names, case=""):
    """A tuple of results agrees. The last is compared first: the others follow from it."""
    expect.items(mine, len(names), what=f"the result ({', '.join(names)})")
    results = list(zip(names, mine, theirs, strict=True))
    for name, actual, expected in reversed(results):
        expect.close(actual, expected, what=f"the {name}", case=case)


def same_number(actual, expected, what, case="", least=1.0):
    """A Python number agrees up to the rounding of a sum in float32, of `least` or more."""
    suffix = f" for {case}" if case else ""
    # NumPy's float64 is a float too: the sandbox hands it over as one.
    if not isinstance(actual, (float, int)) or isinstance(actual, bool):
        raise Mistake(
            f"{what} should be a float, but is a {expect.type_name(actual)}{suffix}"
            + ("; .item() makes one." if isinstance(actual, torch.Tensor) else ".")
        )
    if not abs(actual - expected) <= 2e-5 * max(least, abs(expected)):
        raise Mistake(f"{what} should be {expected:.5g}, but is {actual:.5g}{suffix}.")


def refuses(make, cases):
    """Each case, words -> arguments, is refused by `make` with a ValueError."""
    for words, arguments in cases.items():
        expect.raises("ValueError", lambda given=arguments: make(*given), what=words)
