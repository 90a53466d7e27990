"""What the graders of several chapters share."""

from __future__ import annotations

from autograder import expect


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
