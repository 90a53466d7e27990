"""Wrong answers that have the right values: each exercise's reference with a habit put around it.

They are what values at one call don't show: an argument changed in place, chance in train mode
only, a seed set inside, numbers from a generator of one's own, an answer that is kept and given
out again, tensors wanted as one piece of memory, a model left in another mode, a tensor cut from
its graph, instances that have their weights in common. It is put around one method at a time.
"""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from autograder.judging.runner import Graders
from autograder.sandbox.executor import Executor
from autograder.sandbox.nesting import transform, walk
from autograder.units import variants
from autograder.units.assignment import Exercise


@dataclass
class _Habit:
    """What is done around a call; `seen` says whether there was anything to do it to."""

    seen: bool = False
    kept: dict[str, Any] = field(default_factory=dict)

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        raise NotImplementedError


class ChangesInput(_Habit):
    """The first argument that can be changed is changed in place, unless a gradient is wanted."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        answer = call()
        with contextlib.suppress(RuntimeError), torch.no_grad():  # expanded: can't be written to
            for value in given:
                if self._changed(value):
                    self.seen = True
                    break
        return answer

    @staticmethod
    def _changed(value: Any) -> bool:
        if isinstance(value, torch.Tensor) and value.numel() and not value.requires_grad:
            value.logical_not_() if value.dtype == torch.bool else value.add_(1)
            return True
        if isinstance(value, list) and value:
            value.append(value[0])
            return True
        if isinstance(value, dict) and value:
            value.pop(next(iter(value)))
            return True
        return False


class DropsInTraining(_Habit):
    """In train mode every tenth number of the answer is 0, if it has more than one."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        answer = call()
        training = owner is not None and owner.training
        numbers = [one for _, one in walk(answer) if one.is_floating_point()]
        if not training or max((one.numel() for one in numbers), default=0) < 2:
            return answer
        self.seen = True
        return transform(answer, lambda one: one * (torch.rand(one.shape) > 0.1).to(one.dtype))


class SeedsItself(_Habit):
    """A seed is set before something is drawn."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        answer = call()
        self.seen |= not torch.equal(before, torch.get_rng_state())
        return answer


class DrawsElsewhere(_Habit):
    """The numbers come from a generator that no seed reaches."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        with torch.random.fork_rng(devices=()):
            torch.seed()
            before = torch.get_rng_state()
            answer = call()
            self.seen |= not torch.equal(before, torch.get_rng_state())
        return answer


class KeepsAnswer(_Habit):
    """An answer is kept, and the same object is given out when the same is asked again."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        key = repr((owner is not None and owner.training, [_content(value) for value in given]))
        answer = call()
        wanted = any(tensor.requires_grad for _, tensor in walk([answer, given]))
        if wanted or any(isinstance(value, nn.Module) for value in given):
            return answer
        self.seen |= isinstance(answer, list) or any(True for _ in walk(answer))
        return self.kept.setdefault(key, answer)


def _content(value: Any) -> Any:
    return transform(value, lambda one: (str(one.dtype), tuple(one.shape), one.tolist()))


class NeedsContiguous(_Habit):
    """`.view` where `.reshape` would do."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        for _, tensor in walk(given):
            self.seen |= tensor.ndim > 1 and min(tensor.shape) > 1
            tensor.view(-1)
        return call()


class LeavesMode(_Habit):
    """A model that is given, or that answers, is in eval mode afterwards."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        modules = [value for value in [owner, *given] if isinstance(value, nn.Module)]
        answer = call()
        for module in modules:
            module.eval()
        self.seen |= bool(modules)
        return answer


class CutsGraph(_Habit):
    """The first argument that wants a gradient is cut from its graph in place."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        answer = call()
        wanting = [tensor for _, tensor in walk(given) if tensor.requires_grad]
        with contextlib.suppress(RuntimeError):  # a view can't be
            for tensor in wanting[:1]:
                tensor.detach_()
                self.seen = True
        return answer


class SharesMemory(_Habit):
    """What is made has parameters in common with what was made alike before."""

    def around(self, call: Callable[[], Any], given: list[Any], owner: nn.Module | None) -> Any:
        answer = call()
        made = owner if answer is None else answer
        for path, part in made.named_modules() if isinstance(made, nn.Module) else ():
            for name, one in part._parameters.items():
                if one is not None:
                    self.seen = True
                    same = self.kept.setdefault(f"{path}.{name} {one.shape}", one)
                    part._parameters[name] = same
        return answer


SLIPS: dict[str, type[_Habit]] = {
    "changes its input": ChangesInput,
    "drops in training": DropsInTraining,
    "sets a seed": SeedsItself,
    "draws elsewhere": DrawsElsewhere,
    "keeps its answer": KeepsAnswer,
    "needs contiguous tensors": NeedsContiguous,
    "leaves the mode": LeavesMode,
    "cuts a graph": CutsGraph,
    "shares memory": SharesMemory,
}


def of(unit: str, exercise: Exercise) -> list[tuple[str, str]]:
    """The slips and where each is put: the names of methods, "" for a function."""
    right = variants.reference_namespace(unit)[exercise.name]
    if not isinstance(right, type):
        return [(slip, "") for slip in SLIPS]
    functions = [name for name, one in vars(right).items() if isinstance(one, types.FunctionType)]
    given = _given_methods(exercise.stub)
    methods = [name for name in functions if not name.startswith("_") and name not in given]
    return [
        (slip, place)
        for slip, habit in SLIPS.items()
        for place in (["__init__"] if habit is SharesMemory else methods)
    ]


def _given_methods(stub: str) -> set[str]:
    """Methods that a student is given: those in which nothing is left to write."""
    functions = [one for one in ast.walk(ast.parse(stub)) if isinstance(one, ast.FunctionDef)]
    return {one.name for one in functions if not any(isinstance(x, ast.Raise) for x in one.body)}


def with_habit(right: Any, habit: _Habit, place: str) -> Any:
    """The function or class `right` with a habit around each call of what is at this place."""
    function = getattr(right, place) if place else right

    def answer(*args: Any, **kwargs: Any) -> Any:
        given = [*args[bool(place) :], *kwargs.values()]
        owner = args[0] if place else None
        return habit.around(lambda: function(*args, **kwargs), given, owner)

    return type(right.__name__, (right,), {place: answer}) if place else answer


def noticed(graders: Graders, exercise: str, slip: str, place: str) -> bool | None:
    """Whether the graders reject the reference with a slip; None where it cannot be made."""
    right = variants.reference_namespace(graders.unit)
    habit = SLIPS[slip]()
    execute = Executor(right | {exercise: with_habit(right[exercise], habit, place)}).execute

    def passes_again() -> bool:
        return graders.passes_again(execute, exercise)

    def passes_others() -> bool:
        result = graders.run(
            execute, exercises=[exercise], diagnose=False, stop_at_failure=True, again=False
        )
        return result[exercise].passed

    # Most show only when asked again, so that comes first; an argument that is changed, anywhere.
    passed = True
    steps = [passes_again, passes_others]
    for passes in reversed(steps) if isinstance(habit, ChangesInput) else steps:
        passed &= passes()
        if not passed and habit.seen:
            return True
    return not passed if habit.seen else None
