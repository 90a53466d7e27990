"""Judging by the student's own parts.

An exercise is often made of earlier ones. What it answers is compared with the reference; where the
two differ, the student's own parts are asked aside and put together as the exercise says. An answer
that does right by its parts earns its points, whatever became of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake
from autograder.judging.proxy import Handle, Observation, Todo

# Gradients through many layers may be this many tolerances off.
SLACK = 50.0


class Parts:
    """The student's own earlier exercises, asked aside: what they answer is no evidence here."""

    def __init__(self, student) -> None:
        self.proxy = student.aside()

    def make(self, name: str, **options) -> Callable[..., Any]:
        """A module of the student's."""
        handle = self.proxy.module(name, **options)
        return lambda *args: alive(handle(*args))

    def aside(self, handle: Handle) -> Handle:
        """A module that the test has made, in eval mode."""
        return handle.through(self.proxy)

    def of(self, handle: Handle, name: str) -> Callable[..., Any]:
        """A submodule or a method of a module that the test has made."""
        aside = self.aside(handle)
        return lambda *args: alive(aside.method(name, *args))


def alive(value):
    """An answer with which a part can stand for itself; not zeros, nor the same everywhere."""
    if isinstance(value, (tuple, list)):
        return tuple(map(alive, value))
    expectations.finite(value, what="a part")
    expectations.true(bool((value != value.flatten()[0]).any()), "A part answers nothing.")
    return value


def by_parts(student, own: Callable[[Parts], Any]) -> Any:
    """What `own(parts)` gives; None if the parts raise, or answer nothing to be put together."""
    parts = Parts(student)
    try:
        return own(parts)
    except Exception:
        _pass_on(student, parts)
        return None


def _pass_on(student, parts: Parts) -> None:
    """What became of the way to the implementation is not the parts' own fault."""
    fault = parts.proxy.fault
    if fault is not None and not isinstance(fault, ValueError):
        student.fault = fault
        raise fault


def to_blame(student, sound: Callable[[Parts], bool]) -> bool:
    """Whether the student's own parts are there, and raise or are not `sound(parts)`."""
    parts = Parts(student)
    try:
        return not sound(parts)
    except Todo:
        return False
    except Exception:
        _pass_on(student, parts)
        return True


def same_by_parts(student, got, want, own, what: str | Sequence[str], case: str = "") -> None:
    """`got` is the reference's answer, or what the student's own parts give by `own(parts)`.

    A tensor, or a tuple of as many tensors as there are names in `what`. Nothing is drawn on the
    way: inputs of later cases are the same for everybody.
    """
    try:
        if isinstance(what, str):
            expectations.close(got, want, what=what, case=case)
        else:
            expectations.items(got, len(what), what=f"the result ({', '.join(what)})")
            for name, actual, expected in zip(what, got, want, strict=True):
                expectations.close(actual, expected, what=f"the {name}", case=case)
    except Mistake:
        value = by_parts(student, own)
        of_kind = isinstance(got, torch.Tensor) or not isinstance(what, str)
        if not (of_kind and same_values(got, value)):
            raise


def same_values(got, want) -> bool:
    """Two tensors, or two tuples of them, agree in number, shape, dtype and value."""
    got, want = (each if isinstance(each, (tuple, list)) else (each,) for each in (got, want))
    return len(got) == len(want) and all(
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.dtype == other.dtype
        and expectations.close_enough(one, other)
        for one, other in zip(got, want, strict=True)
    )


def flows(student, mine, theirs, given, own, what, case, names=None) -> None:
    """In float64: values by the reference or by parts, gradients, and inputs left alone.

    Args:
        own: puts together what the student's parts give, as in `same_by_parts`.
        what: the name of the result, or of each of several.
        names: as in `same_flow`.
    """
    seen, wanted = mine.observe(*given), theirs.observe(*given)
    same_by_parts(student, seen.value, wanted.value, own, what, case)
    same_flow(seen, wanted, names, case)
    expectations.unchanged(seen)


def same_flow(mine: Observation, theirs: Observation, names=None, case: str = "") -> None:
    """Gradients arrive, and where the values are the reference's, so are they.

    Args:
        mine: what was seen of the student's.
        theirs: what was seen of the reference's.
        names: labels of the gradients that must arrive, with words for each. Without them all
            that the reference has must. Where a part is another one than the reference's, not
            each of its parameters need have any then.
    """
    same = same_values(mine.value, theirs.value)
    if names is None:
        reached = {_part(label) for label, got in mine.grads.items() if got is not None}
        names = {
            label: "x" if label == "0" else label.removeprefix("parameter ")
            for label, want in theirs.grads.items()
            if want is not None and not label.endswith("k_proj.bias")
            if same or _part(label) not in reached
        }
    arrive(mine, theirs, names, same, case)


def arrive(mine, theirs, names: Mapping[str, str], same: bool, case: str = "") -> None:
    """The gradients of `names` arrive; they are the reference's if the values are the `same`.

    They are granted more than a single layer's: rounding grows from layer to layer.
    """
    for label, words in names.items():
        got, want = mine.grads.get(label), theirs.grads[label]
        expectations.true(
            got is not None,
            f"No gradient reaches {words}; look for detach(), .data, .item() or no_grad().",
        )
        if same and not expectations.close_enough(got, want, SLACK):
            expectations.close(got, want, what=f"the gradient of {words}", case=case)


def _part(label: str) -> str:
    """The submodule that a gradient's label belongs to: embeddings, layers.0, pooler, ..."""
    names = label.removeprefix("parameter ").removeprefix("bert.").removeprefix("gpt.").split(".")
    return ".".join(names[:2] if names[0] in ("layers", "blocks") else names[:1])
