"""Answers without work: nothing, zeros, a constant, chance, NaN, or the first input given back.

None may earn a point, whatever became of the other exercises. Some are what anybody would write;
others know the form of the right answer, or the parameters of the right class, and nothing else.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.units import variants
from autograder.units.assignment import Assignment, Exercise

# What the other exercises are: not written, right, or answered without work as well.
SETTINGS = ("others missing", "others right", "others alike")

Answer = Callable[[list[Any]], Any]  # of the arguments

# What is put in place of the numbers of an answer.
CONTENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "constant": torch.ones_like,
    "random": lambda value: (
        torch.randn_like(value)
        if value.is_floating_point()
        else torch.randint_like(value, 2 if value.dtype == torch.bool else 9)
    ),
    "NaN": lambda value: (
        torch.full_like(value, torch.nan) if value.is_floating_point() else torch.zeros_like(value)
    ),
}


def _refuse(given: list[Any]) -> None:
    raise ValueError("no")


def _first(given: list[Any]) -> Any:
    return given[0] if given else None


def _filled(value: Any, content: str) -> Any:
    """The same nesting with other numbers; what is no number loses its content too."""
    if isinstance(value, torch.Tensor):
        return CONTENTS[content](value.detach())
    if isinstance(value, nn.Module):
        return nn.Identity()
    if isinstance(value, str):
        return ""
    if isinstance(value, float):
        return float(CONTENTS[content](torch.tensor(value)))
    if isinstance(value, int):
        return type(value)(CONTENTS[content](torch.tensor(value)))
    if isinstance(value, (list, tuple)):
        return type(value)(_filled(item, content) for item in value)
    if isinstance(value, dict):
        return {key: _filled(item, content) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return type(value)(**{name: _filled(getattr(value, name), content) for name in fields})
    return value


def _like_first_tensor(content: str) -> Answer:
    def answer(given: list[Any]) -> torch.Tensor:
        tensors = (value for value in given if isinstance(value, torch.Tensor))
        return _filled(next(tensors, torch.zeros(2, 3)), content)

    return answer


def _like(value: Any, content: str) -> Answer:
    return lambda given: _filled(value, content)


# Answers that know their arguments only.
PLAIN: dict[str, Answer] = {
    "nothing": lambda given: None,
    "refusal": _refuse,
    "empty": lambda given: torch.empty(0),
    "empty list": lambda given: [],
    "empty dict": lambda given: {},
    "first input": _first,
    "first input twice": lambda given: (_first(given), _first(given)),
    "zero": lambda given: 0.0,
    "true": lambda given: True,
}
for _content in CONTENTS:
    PLAIN[f"{_content} as a float"] = _like(0.5, _content)
    PLAIN[f"{_content} as a scalar"] = _like(torch.tensor(0.5), _content)
    PLAIN[f"{_content} like the first input"] = _like_first_tensor(_content)
FORMS = {f"{content} in the right form": content for content in CONTENTS}
PARAMETERS = {
    f"{name} with the right parameters": name
    for name in PLAIN
    if name in ("nothing", "empty") or name.endswith("first input")
}
KINDS = (*PLAIN, *FORMS, *PARAMETERS)


def _methods(cls: type) -> Iterator[tuple[str, types.FunctionType]]:
    for name, member in vars(cls).items():
        if isinstance(member, types.FunctionType) and not name.startswith("_"):
            yield name, member


def _in_form(function: Callable[..., Any], content: str) -> Callable[..., Any]:
    """What `function` returns, with other numbers; it changes none of its arguments."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        return _filled(function(*copy.deepcopy(args), **copy.deepcopy(kwargs)), content)

    return answer


def _method_in_form(function: Callable[..., Any], content: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: _filled(function(self, *args, **kwargs), content)


def _method(answer: Answer) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: answer([*args, *kwargs.values()])


def answer_of(right: Any, kind: str) -> Any:
    """An answer without work to an exercise, whose right answer is the function or class `right`.

    A function has no parameters: with the right ones it is the plain answer.
    """
    if not isinstance(right, type):
        if kind in FORMS:
            return _in_form(right, FORMS[kind])
        plain = PLAIN[PARAMETERS.get(kind, kind)]
        return lambda *args, **kwargs: plain([*args, *kwargs.values()])
    if kind in FORMS:
        own = {name: _method_in_form(method, FORMS[kind]) for name, method in _methods(right)}
        return type(right.__name__, (right,), own)
    if kind in PARAMETERS:
        plain = _method(PLAIN[PARAMETERS[kind]])
        return type(right.__name__, (right,), {name: plain for name, _ in _methods(right)})
    return type(
        right.__name__,
        (nn.Module,),
        {
            "__init__": lambda self, *args, **kwargs: nn.Module.__init__(self),
            "forward": _method(PLAIN[kind]),
        },
    )


@cache
def _unwritten(unit: str, exercises: tuple[Exercise, ...]) -> dict[str, Any]:
    """The names of a notebook in which nothing is written yet."""
    code = variants.given_code(unit)
    cells = [text for item in exercises for text in (code[item.name], item.stub)]
    return variants.load_code([compile(cell, "<notebook>", "exec") for cell in cells], "unwritten")


def namespace(assignment: Assignment, exercise: str, kind: str, setting: str) -> dict[str, Any]:
    """The names of a notebook in which `exercise` is answered without work."""
    right = variants.reference_namespace(assignment.unit)
    blank = _unwritten(assignment.unit, assignment.exercises)
    answered = assignment.names if setting == "others alike" else (exercise,)
    others = right if setting == "others right" else blank
    return others | {name: answer_of(right[name], kind) for name in answered}


def kinds(unit: str, exercise: str) -> tuple[str, ...]:
    """The kinds of answers without work that an exercise may get."""
    is_class = isinstance(variants.reference_namespace(unit)[exercise], type)
    return KINDS if is_class else (*PLAIN, *FORMS)


class _Noting(dict[str, Any]):
    """Names, of which it is noted which are asked for."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(names)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def gifts(graders: Graders, exercise: str) -> tuple[int, list[str]]:
    """How many answers without work are refused, or earn something, and those that do.

    None uses other exercises of its notebook: what these are matters only where a test asks for
    one of them.
    """
    others = {*graders.assignment.names} - {exercise}
    chosen, found = kinds(graders.unit, exercise), []
    earned: dict[str, float] = {}  # by kinds that do not depend on the others
    for setting in SETTINGS:
        for kind in chosen:
            points = earned.get(kind)
            if points is None:
                names = _Noting(namespace(graders.assignment, exercise, kind, setting))
                execute = Executor(names).execute
                result = graders.run(execute, exercises=[exercise], diagnose=False)
                points = result[exercise].points
                if not others & names.asked:
                    earned[kind] = points
            if points:
                found.append(f"{exercise}: {kind}, {setting}, earns {points:g}")
    return len(SETTINGS) * len(chosen), found
