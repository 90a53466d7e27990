"""What the graders of several units share."""

from __future__ import annotations

import torch

from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake, WrongParameters, WrongValues
from autograder.judging.proxy import StudentError

State = dict[str, torch.Tensor]


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


def of_type(value, kind, what, case):
    """A value is one of the types that the course gives."""
    expectations.true(
        isinstance(value, kind),
        f"{what} should be a {kind.__name__}, but is a {expectations.type_name(value)} for {case}.",
    )


def linear(draw, name, rows, columns, bias=True) -> State:
    """The parameters of a linear layer."""
    state = {f"{name}.weight": draw.normal(rows, columns, scale=1.2 * columns**-0.5)}
    return state | ({f"{name}.bias": draw.normal(rows, scale=0.5)} if bias else {})


def attention_state(draw, width, prefix="") -> State:
    """The parameters of the four projections of an attention."""
    state = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        state |= linear(draw, f"{prefix}{name}", width, width)
    return state


def within(state, prefix) -> State:
    """The part of a state that belongs to the submodule `prefix`."""
    return {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }


def same_parameters(handle, expected):
    """The parameters have the names and the shapes that the exercise states."""
    actual = {name: tuple(shape) for name, shape in handle.parameters().items()}
    for name, shape in expected.items():
        if name not in actual:
            raise WrongParameters(
                f"There is no parameter called {name}; "
                f"yours are {', '.join(sorted(actual)) or 'none at all'}."
            )
        if actual[name] != shape:
            raise WrongParameters(
                f"The parameter {name} has the shape {actual[name]}; it should be {shape}."
            )
    extra = sorted(set(actual) - set(expected))
    if extra:
        raise WrongParameters(f"The exercise has no parameter called {', '.join(extra)}.")


def labels(state, *inputs):
    """What the gradients are asked for: inputs by position, then every parameter.

    A bias of k_proj adds the same number to a whole row of scores, so that its gradient is zero.
    """
    names = [name for name in state if not name.endswith("k_proj.bias")]
    return dict(inputs) | {f"parameter {name}": name for name in names}


def same_gradients(mine, theirs, names, case=""):
    """Gradients of a random weighted sum of the outputs agree, label by label.

    Always asked for in float64: gradients are long sums, in float32 too coarse to compare closely.
    """
    for label, words in names.items():
        expectations.true(
            mine.grads.get(label) is not None,
            f"No gradient reaches {words}; look for detach(), .data, .item() or no_grad().",
        )
        expectations.close(
            mine.grads[label], theirs.grads[label], what=f"the gradient of {words}", case=case
        )


def same_results(mine, theirs, names, case=""):
    """A tuple of results agrees. The last is compared first: the others follow from it."""
    expectations.items(mine, len(names), what=f"the result ({', '.join(names)})")
    results = list(zip(names, mine, theirs, strict=True))
    for name, actual, expected in reversed(results):
        expectations.close(actual, expected, what=f"the {name}", case=case)


def same_number(actual, expected, what, case="", least=1.0):
    """A Python number agrees up to the rounding of a sum in float32, of `least` or more."""
    suffix = f" for {case}" if case else ""
    # NumPy's float64 is a float too: the sandbox hands it over as one.
    if not isinstance(actual, (float, int)) or isinstance(actual, bool):
        raise Mistake(
            f"{what} should be a float, but is a {expectations.type_name(actual)}{suffix}"
            + ("; .item() makes one." if isinstance(actual, torch.Tensor) else ".")
        )
    if not abs(actual - expected) <= 2e-5 * max(least, abs(expected)):
        raise WrongValues(f"{what} should be {expected:.5g}, but is {actual:.5g}{suffix}.")


def refuses(make, cases):
    """Each case, words -> arguments, is refused by `make` with a ValueError."""
    for words, arguments in cases.items():
        expectations.raises("ValueError", lambda given=arguments: make(*given), what=words)


def refused_naming(thunk, what, *words):
    """`thunk` is refused with a ValueError whose message holds each of `words`."""
    said = ""

    def asked():
        nonlocal said
        try:
            return thunk()
        except StudentError as error:
            said = error.outcome.get("message", "")
            raise

    expectations.raises("ValueError", asked, what)
    missing = [word for word in words if word not in said]
    expectations.true(
        not missing,
        f"The ValueError's message for {what} should name {' and '.join(missing)}; "
        f"it says {said[:80]!r}.",
    )


def rows_differ(value, words, shape=None, p=None):
    """The two examples of a batch, alike in the input, differ: dropout acts.

    Callers see to it that dropout does the same to both with a probability below 1e-9: with 64
    entries, that it acts at 0.5 and both lose the same happens once in 2**64.
    """
    if shape is not None:
        expectations.shape(value, shape, what=words)
    expectations.finite(value, what=words)
    at = "" if p is None else f" with dropout={p}"
    expectations.true(
        value.ndim > 0 and len(value) == 2 and bool((value[0] - value[1]).abs().max() > 1e-3),
        f"In train mode{at} {words} is the same for two equal examples; pass dropout on.",
    )


def norm_state(draw, name, width) -> State:
    return {
        f"{name}.weight": 1.0 + draw.normal(width, scale=0.4),
        f"{name}.bias": draw.normal(width, scale=0.5),
    }


def dropped(value, kept, p, what, misconception=None, axes=()):
    """Entries are 0 with probability p, each by itself, the others `kept` divided by 1 - p.

    `axes` says what lies along each axis: "two examples", …
    """
    expectations.shape(value, kept.shape, what=what)
    expectations.finite(value, what=what)
    gone = value.abs() < 1e-9
    expectations.rate(
        int(gone.sum()),
        gone.numel(),
        p,
        what=f"the share of zeros in {what} in train mode at dropout={p}",
        misconception=misconception,
    )
    expectations.close(
        value[~gone], kept[~gone] / (1 - p), what=f"what dropout leaves of {what} at dropout={p}"
    )
    dropped_apart(gone, p, axes or [f"two along axis {n} of {what}" for n in range(gone.dim())])


# The axes of (B, T, D), for `dropped_apart`.
EACH_ENTRY = ("two examples", "two positions", "two features")


def dropped_apart(gone, p, axes):
    """Neighbours along each axis, which has a name in `axes`, are dropped independently."""
    for axis, words in enumerate(axes):
        pairs = gone.shape[axis] // 2
        neighbours = gone.narrow(axis, 0, 2 * pairs).unflatten(axis, (pairs, 2))
        one, other = neighbours.unbind(axis + 1)
        if pairs:
            expectations.independent(
                one,
                other,
                p,
                what=f"in train mode at dropout={p}, where each entry is dropped by itself, how "
                f"often {words} are dropped or kept together",
                false_alarm=1e-10,
            )
