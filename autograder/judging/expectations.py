"""Comparisons for graders. Each failure is a `Mistake` in words that a student can use."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from autograder.judging.grader_marks import Mistake, WrongError, WrongShape, WrongValues
from autograder.judging.proxy import Observation, StudentError
from autograder.sandbox.side_effects import GRAD, REQUIRES_GRAD

# Relative error allowed, per dtype, as a share of the largest expected value: room for another
# order of summation, far from any wrong formula. For float64 too there is room for a factor that
# somebody keeps in float32, such as torch.sqrt(torch.tensor(d)).
RELATIVE = {
    torch.float64: 1e-6,
    torch.float32: 2e-5,
    torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
}


# Gradients pass through longer chains of rounding than values do.
GRADIENT_SLACK = 5.0

# Sums that cancel leave rounding errors as large as their terms, which are of order 1 here.
LEAST_SCALE = 0.1

# How a sentence on an argument that is changed ends.
IN_PLACE = " in place; work on a copy, since the caller still needs it."


def tolerance(expected: torch.Tensor) -> float:
    """Absolute error allowed: the dtype's relative error times the scale of the finite values."""
    if not expected.is_floating_point():
        return 0.0
    values = expected.detach()
    scale = float(values.abs().max()) if values.numel() else 1.0
    if not math.isfinite(scale):
        finite = values[torch.isfinite(values)]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
    return RELATIVE.get(expected.dtype, 0.0) * max(scale, LEAST_SCALE)


def close_enough(actual: torch.Tensor, expected: torch.Tensor, slack: float = 1.0) -> bool:
    """Same shape, and every value within `slack` tolerances; NaN and infinities must coincide."""
    if actual.shape != expected.shape:
        return False
    if not expected.is_floating_point():
        return bool((actual == expected).all())
    if actual.dtype == expected.dtype and torch.equal(actual, expected):
        return True  # What follows would say so too, but takes its time.
    left, right = actual.to(torch.float64), expected.to(torch.float64)
    limit = slack * tolerance(expected)
    gap = (left - right).abs()
    if gap.numel() and math.isfinite(worst := float(gap.max())):
        return worst <= limit
    same = gap <= limit
    same |= left == right  # equal infinities, whose difference is NaN
    same |= left.isnan() & right.isnan()
    return bool(same.all())


def type_name(value: Any) -> str:
    """How to call a value's type to a student: a foreign object by its own type's name."""
    foreign = getattr(value, "type_name", None)
    return foreign if isinstance(foreign, str) else type(value).__name__


def _with(case: str) -> str:
    return f" for {case}" if case else ""


def tensor(actual: Any, what: str, *, case: str = "") -> torch.Tensor:
    """`actual`, which must be a tensor."""
    if not isinstance(actual, torch.Tensor):
        got = f"{_verb(what, 'is')} a {type_name(actual)}"
        raise Mistake(f"{what} should be a torch.Tensor, but {got}{_with(case)}.")
    return actual


def shape(actual: Any, expected: Sequence[int], what: str, *, case: str = "") -> None:
    """`actual` is a tensor of that shape."""
    got = tuple(tensor(actual, what, case=case).shape)
    if got != tuple(expected):
        seen = f"{_verb(what, 'has')} {got}"
        raise WrongShape(f"{what} should have shape {tuple(expected)}, but {seen}{_with(case)}.")


def pair(actual: Any, what: str = "the result") -> tuple[Any, Any]:
    """`actual`, which must be a tuple (or list) of two."""
    first, second = items(actual, 2, what)
    return first, second


def items(
    actual: Any, count: int, what: str = "the result", *, kind: str = "tuple"
) -> Sequence[Any]:
    """`actual`, which must be a tuple (or list) of `count` values; `kind` says which is asked."""
    if not isinstance(actual, (tuple, list)) or len(actual) != count:
        amount = f"of {count} value{'' if count == 1 else 's'}"
        got = f"of {len(actual)}" if isinstance(actual, (tuple, list)) else f"a {type_name(actual)}"
        raise Mistake(f"{what} should be a {kind} {amount}, not {got}.")
    return actual


def close(
    actual: Any,
    expected: torch.Tensor,
    what: str = "the result",
    *,
    case: str = "",
    misconception: str | None = None,
) -> None:
    """`actual` equals `expected` in shape, dtype and value, up to rounding."""
    shape(actual, expected.shape, what, case=case)
    if actual.dtype != expected.dtype:
        raise Mistake(
            f"{what} should have dtype {_dtype(expected)}, "
            f"but {_verb(what, 'has')} {_dtype(actual)}{_with(case)}.",
            misconception,
        )
    if close_enough(actual, expected):
        return
    raise WrongValues(_difference(actual, expected, what, case), misconception)


def equal(
    actual: Any,
    expected: Any,
    what: str = "the result",
    *,
    case: str = "",
    misconception: str | None = None,
) -> None:
    """`actual` equals `expected` exactly: integers, booleans, strings, lists and dicts of them."""
    if isinstance(expected, torch.Tensor):
        close(actual, expected, what, case=case, misconception=misconception)
        return
    if type(actual) is not type(expected) or actual != expected:
        got = actual if isinstance(actual, (bool, int, float, str, list, tuple, dict)) else None
        shown = _short(got) if got is not None else f"a {type_name(actual)}"
        raise WrongValues(
            f"{what} should be {_short(expected)}, but {_verb(what, 'is')} {shown}{_with(case)}.",
            misconception,
        )


def true(condition: bool, message: str, *, misconception: str | None = None) -> None:
    """`condition` holds; `message` says what is wrong otherwise."""
    if not condition:
        raise Mistake(message, misconception)


def finite(actual: Any, what: str, *, case: str = "", misconception: str | None = None) -> None:
    """No NaN and no infinity."""
    values = tensor(actual, what, case=case)
    if not bool(torch.isfinite(values).all()):
        kind = "NaN" if bool(values.isnan().any()) else "infinite values"
        raise WrongValues(f"{what} {_verb(what, 'contains')} {kind}{_with(case)}.", misconception)


def row_sums_one(actual: Any, what: str = "each row of the weights", *, case: str = "") -> None:
    """The last axis sums to 1."""
    values = tensor(actual, what, case=case)
    sums = values.to(torch.float64).sum(-1)
    worst = float((sums - 1).abs().max()) if sums.numel() else 0.0
    if not worst <= 1e-4:
        off = sums.flatten()[(sums - 1).abs().nan_to_num(math.inf).flatten().argmax()]
        raise Mistake(f"{what} should sum to 1, but one sums to {float(off):.4g}{_with(case)}.")


def raises(
    names: str | tuple[str, ...],
    thunk: Callable[[], Any],
    what: str,
    *,
    misconception: str | None = None,
) -> None:
    """`thunk` ends in one of the named exceptions (or a subclass): bad input is refused."""
    names = (names,) if isinstance(names, str) else names
    try:
        thunk()
    except StudentError as error:
        if error.kind == "error" and any(name in error.types for name in names):
            return
        got = error.types[0] if error.types else error.kind
        raise WrongError(
            f"{what} should raise {' or '.join(names)}, but ended in {got}.", misconception
        ) from None
    raise Mistake(f"{what} should raise {' or '.join(names)}, but was accepted.", misconception)


def changed_in_place(labels: Sequence[str], what: str = "your code") -> str:
    """The sentence on arguments that a call has changed, each told once."""
    names = ", ".join(dict.fromkeys(map(argument, labels)))
    return f"{what} changes {names}{IN_PLACE}"


def unchanged(
    seen: Observation, what: str = "your code", *, misconception: str | None = None
) -> None:
    """No input was changed in place; of gradients `asked_again` tells."""
    changed = [one for one in seen.mutated if one not in (GRAD, REQUIRES_GRAD)]
    if changed:
        raise Mistake(changed_in_place(changed, what), misconception)


def gradients(
    seen: Observation,
    expected: Observation,
    what: str = "the gradient",
    *,
    only: Sequence[str] | None = None,
    misconception: str | None = None,
) -> None:
    """Gradients of the same random weighted sum agree; a missing one is reported as such."""
    for label, gradient in expected.grads.items():
        if only is not None and label not in only:
            continue
        got = seen.grads.get(label)
        name = f"{what} with respect to {argument(label)}"
        if gradient is None or not bool(gradient.abs().max() > 0):
            if got is not None and bool(got.abs().max() > 0):
                raise WrongValues(f"{name} should be zero: nothing depends on it.", misconception)
            continue
        if got is None:
            raise Mistake(
                f"{name} is missing: something cuts the graph (detach, .data, item, numpy).",
                misconception,
            )
        if not close_enough(got, gradient, GRADIENT_SLACK):
            raise WrongValues(_difference(got, gradient, name, ""), misconception)


def rate(
    count: int,
    trials: int,
    probability: float,
    what: str,
    *,
    false_alarm: float = 1e-9,
    misconception: str | None = None,
) -> None:
    """`count` of `trials` is plausible for `probability` (Chernoff's bound on a false alarm)."""
    seen = count / trials
    if trials * _divergence(seen, probability) > math.log(2 / false_alarm):
        raise Mistake(
            f"{what} should be about {probability:.3g}, but is {seen:.3g} over {trials} draws.",
            misconception,
        )


def independent(
    one: torch.Tensor,
    other: torch.Tensor,
    probability: float,
    what: str,
    *,
    false_alarm: float = 1e-9,
    misconception: str | None = None,
) -> None:
    """Decisions of one tensor and of another agree as often as those of two coins.

    Args:
        one, other: bool, of one shape; each entry is True with `probability`, or False with it.
        what: what happens how often, such as "how often two heads agree".
    """
    rate(
        int((one == other).sum()),
        one.numel(),
        probability**2 + (1 - probability) ** 2,
        what,
        false_alarm=false_alarm,
        misconception=misconception,
    )


def _divergence(seen: float, probability: float) -> float:
    """How far a share is from a probability: Kullback and Leibler's measure, for a coin."""
    total = 0.0
    for share, expected in ((seen, probability), (1 - seen, 1 - probability)):
        if share and not expected:
            return math.inf
        if share:
            total += share * math.log(share / expected)
    return total


def _verb(what: str, singular: str) -> str:
    """The verb that agrees with `what`: "the weights are", "the gradient of the scores is"."""
    noun = re.split(" (?:of|with respect to) ", what)[0].split()[-1]
    if noun.endswith("s") and not noun.endswith(("ss", "us", "is", "bias")) and noun[-2].isalpha():
        return {"is": "are", "has": "have", "contains": "contain"}[singular]
    return singular


def _dtype(values: torch.Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")


def argument(label: str) -> str:
    """How to call an argument that has a position (`"0"`) or a name for a label."""
    head = label.split(".")[0]
    if head.isdigit():
        ordinal = ("first", "second", "third", "fourth", "fifth", "sixth")
        number = int(head)
        return f"its {ordinal[number] if number < len(ordinal) else f'{number + 1}th'} argument"
    return f"`{label}`"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _number(value: torch.Tensor, digits: int = 4) -> str:
    item = value.item()
    return f"{item:.{digits}g}" if isinstance(item, float) else str(item)


def _numbers(expected: torch.Tensor, actual: torch.Tensor) -> tuple[str, str]:
    """Both, with so many digits that they look different."""
    for digits in (4, 6, 9, 17):
        left, right = _number(expected, digits), _number(actual, digits)
        if left != right:
            break
    return left, right


def _difference(actual: torch.Tensor, expected: torch.Tensor, what: str, case: str) -> str:
    """Where and how far two tensors of one shape differ."""
    if expected.is_floating_point() and bool((actual.isnan() & ~expected.isnan()).any()):
        rows = _rows(actual.isnan() & ~expected.isnan())
        return f"{what} {_verb(what, 'contains')} NaN {rows}{_with(case)}."
    left, right = actual.to(torch.float64), expected.to(torch.float64)
    gap = (left - right).abs()
    wrong = ~(gap <= tolerance(expected)) & (left != right) & ~(left.isnan() & right.isnan())
    if expected.ndim == 0:
        wanted, got = _numbers(expected, actual)
        return f"{what} should be {wanted}, but {_verb(what, 'is')} {got}{_with(case)}."
    worst = int(torch.where(wrong, gap.nan_to_num(math.inf), -1.0).flatten().argmax())
    index = _index(worst, expected.shape)
    wanted, got = _numbers(expected[index], actual[index])
    return (
        f"{what} {_verb(what, 'is')} wrong {_rows(wrong)}{_with(case)}: at {list(index)} expected "
        f"{wanted}, got {got}."
    )


def _index(position: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The index, axis by axis, of a position in the flattened tensor."""
    index: list[int] = []
    for size in reversed(sizes):
        position, place = divmod(position, size)
        index.insert(0, place)
    return tuple(index)


def _rows(wrong: torch.Tensor) -> str:
    """Which entries differ: all, some rows, or how many."""
    count, total = int(wrong.sum()), wrong.numel()
    if count == total:
        return "everywhere"
    if wrong.ndim >= 2:
        rows = wrong.any(-1)
        if int(rows.sum()) < rows.numel() and rows.ndim == 1:
            listed = rows.nonzero().flatten().tolist()
            return f"in row{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed[:8]))}"
    return f"in {count} of {total} entries"
