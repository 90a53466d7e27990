"""What a grader holds instead of student code: calls go out as requests, values come back."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from autograder.judging.grader_marks import Mistake
from autograder.judging.records import restored
from autograder.sandbox.executor import (
    CALLS,
    GENERATOR,
    MODULE,
    RECORD,
    Outcome,
    Request,
    without_records,
)
from autograder.sandbox.timelimit import did_not_return

# How the sentence on a forbidden call ends.
WRITE_YOURSELF = "which this exercise asks you to write yourself."


class StudentError(Exception):
    """The student's code raised, hung, or died. `types` names the exception and its bases."""

    def __init__(self, outcome: Outcome, what: str, given: str = "") -> None:
        self.outcome = outcome
        self.kind: str = outcome["kind"]
        self.types: list[str] = outcome.get("types", [])
        self.what = what
        super().__init__(describe_error(outcome, what, given))


class Todo(Exception):
    """There is nothing to judge yet: the stub is untouched, or the name is not defined."""


def describe_error(outcome: Outcome, what: str, given: str = "") -> str:
    """One sentence on why `what` yielded no value, and what was given to it when it raised."""
    kind, message = outcome["kind"], outcome.get("message", "")
    if kind == "error":
        if outcome["type"] in ("StateMismatch", "NotAModule"):
            return f"{what}: {message}."
        where = f" ({outcome['where']})" if outcome.get("where") else ""
        asked = f"; it was given {given}" if given else ""
        return f"{what} raised {outcome['type']}: {message}{where}{asked}"
    if kind == "timeout" and "used_up" in outcome:
        return f"{what} was not run to its end: {outcome['used_up']}."
    if kind == "timeout" and "seconds" in outcome:
        return did_not_return(what, outcome["seconds"], outcome["where"])
    if kind == "timeout":
        return f"{what} did not finish in time; is there a loop that never ends?"
    if kind == "crash":
        return f"{what} ended the Python process; remove calls such as exit() or os._exit()."
    if kind == "memory":
        return f"{what} used more memory than it may; is there a tensor that grows without need?"
    return f"{what} gave no readable answer: {message}"


@dataclass(frozen=True)
class Generator:
    """Among the arguments of a function: a torch.Generator that has just got this seed."""

    seed: int


def _plain(value: Any, used: dict[str, bool]) -> Any:
    """`value`, or what stands in a request for the module of a handle; noted in `used`."""
    if isinstance(value, Generator):
        return {GENERATOR: value.seed}
    if dataclasses.is_dataclass(value):
        return without_records(value)
    if not isinstance(value, Handle):
        return value
    used[str(value._number)] = value._training
    return {MODULE: value._number}


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The part of a request that says with what a function is called."""
    used: dict[str, bool] = {}
    arguments: dict[str, Any] = {
        "args": [_plain(value, used) for value in args],
        "kwargs": {key: _plain(value, used) for key, value in kwargs.items()},
    }
    given = [*arguments["args"], *arguments["kwargs"].values()]
    if used:
        arguments["modules"] = used
    if any(isinstance(value, Generator) for value in (*args, *kwargs.values())):
        arguments["generators"] = True
    if any(RECORD in value for value in given if isinstance(value, dict)):
        arguments["records"] = True
    return arguments


def given_in(request: Request) -> str:
    """The arguments of a request in a few words: `float32 (2, 3), mask=None`."""
    named = [f"{name}={_in_words(value)}" for name, value in request.get("kwargs", {}).items()]
    text = ", ".join([*map(_in_words, request.get("args", [])), *named])
    return text if len(text) <= 200 else text[:199] + "…"


def _in_words(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        few = value.numel() < 7 and not value.is_floating_point()
        return f"{kind} {value.tolist() if few else tuple(value.shape)}"
    if isinstance(value, dict):
        known = {MODULE: "a module", GENERATOR: "a generator", RECORD: "a record"}
        return next((words for key, words in known.items() if key in value), "a dict")
    text = repr(value)
    if len(text) <= 40:
        return text
    return f"a {type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else text[:40]


@dataclass
class Observation:
    """A value and what else was seen: gradients by input label, inputs changed in place.

    Labels are positions (`"0"`, `"1"`), keyword names (`"mask"`) or `"parameter q_proj.weight"`.
    """

    value: Any
    grads: dict[str, torch.Tensor | None] = field(default_factory=dict)
    mutated: list[str] = field(default_factory=list)


@dataclass
class Exchange:
    """One entry of a transcript: what was asked, and what came back."""

    request: Request
    outcome: Outcome


class Proxy:
    """Stands for one implementation. `execute` carries a request to it and brings the outcome.

    Args:
        execute: carries one request to the implementation.
        rng: from which the seed of every request is derived.
    """

    def __init__(
        self,
        execute: Callable[[Request], Outcome],
        *,
        rng: int = 0,
    ) -> None:
        self._execute = execute
        self._rng = rng
        self._handles = 0
        self.transcript: list[Exchange] = []
        self.fault: BaseException | None = None  # Of the way to the implementation, not its own.

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.observe(name, *args, grad=False, **kwargs).value

    def observe(self, name: str, /, *args: Any, grad: bool = True, **kwargs: Any) -> Observation:
        """Call function `name`, with gradients of a random weighted sum of its outputs.

        A handle among the arguments reaches the function as the module that it stands for.
        """
        return self._ask_function(name, args, kwargs, grad=grad)

    def drawing(self, name: str, /, *args: Any, **kwargs: Any) -> Observation:
        """Call function `name`; if PyTorch's own generator moves, it is in `mutated`.

        It is called `executor.GLOBAL_GENERATOR` there.
        """
        return self._ask_function(name, args, kwargs, grad=False, still=True)

    def training(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call function `name` where gradients are recorded, so that it can train a handle.

        Otherwise a call whose gradients nobody asks for runs under `torch.no_grad()`.
        """
        return self._ask_function(name, args, kwargs, grad=False, autograd=True).value

    def recording(self, name: str, /, *args: Any, **kwargs: Any) -> Observation:
        """Call function `name` where gradients may be recorded, and see whether any are.

        If something is kept for a backward pass, `executor.GRAPH` is in `mutated`.
        """
        return self._ask_function(name, args, kwargs, grad=False, graph=True)

    def placing(self, name: str, /, *args: Any, **kwargs: Any) -> Observation:
        """Call function `name`, and see where the tensors of its answer lie.

        What is new memory, or not contiguous, is in `mutated`: `executor.COPIED` or
        `executor.SCATTERED` and the tensor's label.
        """
        return self._ask_function(name, args, kwargs, grad=False, memory=True)

    def calls(self, method: str, name: str, /, *args: Any, **kwargs: Any) -> int:
        """How often function `name` calls this method of the modules that it is given."""
        seen = self._ask_function(name, args, kwargs, grad=False, counted=method)
        numbers = [one[len(CALLS) :] for one in seen.mutated if one.startswith(CALLS)]
        if len(numbers) != 1 or not numbers[0].isdecimal():
            raise Mistake(f"Your {name} does not say how often it calls {method}.")
        return int(numbers[0])

    def module(
        self,
        name: str,
        /,
        *,
        state: dict[str, torch.Tensor] | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> Handle:
        """Create class `name` with `kwargs`, load `state` strictly; the handle is in eval mode.

        `name` may also be a function that returns a module, and a handle among the arguments
        reaches it as the module that it stands for.
        """
        self._handles += 1
        arguments = _arguments((), kwargs)
        del arguments["args"]
        request = {
            "op": "create",
            "handle": self._handles,
            "name": name,
            **arguments,
            "state": state,
            "dtype": str(dtype).removeprefix("torch.") if dtype else None,
        }
        self._ask(request, f"Your {name}")
        return Handle(self, request["handle"], name)

    def repeat(self, name: str, request: Request) -> list[str]:
        """What `sandbox.side_effects` notices when a call is made several times."""
        found = self._ask({"op": "repeat", "name": name, **request}, f"Your {name}").value
        if not isinstance(found, list) or not all(isinstance(fact, str) for fact in found):
            raise Mistake(f"Your {name} does not say what it does when it is asked again.")
        return found

    def aside(self) -> Proxy:
        """Another way to the same implementation: what is asked there is not in the transcript.

        Its handles are numbered apart.
        """
        other = Proxy(self._execute, rng=self._rng)
        other._handles = 1 << 20
        return other

    def _ask_function(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], **wanted: bool | str
    ) -> Observation:
        request = {"op": "call", "name": name, **_arguments(args, kwargs), **wanted}
        return self._ask(request, f"Your {name}")

    def _ask(self, request: Request, what: str) -> Observation:
        position = len(self.transcript)
        request["rng"] = zlib.crc32(f"{self._rng}:{position}".encode())
        # The weights of the sum whose gradient is taken: the same for student and reference,
        # whatever else the two were asked before.
        request["cotangent"] = zlib.crc32(f"{self._rng}".encode())
        try:
            outcome = self._execute(request)
        except BaseException as error:
            self.fault = error
            raise
        self.transcript.append(Exchange(request, outcome))
        if outcome["kind"] in ("todo", "missing"):
            raise Todo(outcome.get("message", ""))
        if outcome["kind"] != "value":
            raise StudentError(outcome, what, given_in(request))
        if outcome["forbidden"]:
            raise Mistake(
                f"{what} calls torch's {', '.join(outcome['forbidden'])}, {WRITE_YOURSELF}",
                misconception="forbidden",
            )
        return Observation(restored(outcome["value"]), outcome["grads"], outcome["mutated"])


class Handle:
    """A module that lives where the implementation lives."""

    def __init__(self, proxy: Proxy, number: int, name: str) -> None:
        self._proxy = proxy
        self._number = number
        self._name = name
        self._training = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.observe(*args, grad=False, **kwargs).value

    def observe(self, *args: Any, grad: bool = True, **kwargs: Any) -> Observation:
        """Forward, with gradients to the inputs and to the parameters."""
        return self.observe_method("forward", *args, grad=grad, **kwargs)

    def method(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call another method of the module."""
        return self.observe_method(method, *args, grad=False, **kwargs).value

    def observe_method(
        self, method: str, /, *args: Any, grad: bool = True, **kwargs: Any
    ) -> Observation:
        """Call another method, with gradients to the inputs and to the parameters."""
        return self._ask("invoke", **_arguments(args, kwargs), grad=grad, method=method)

    def through(self, proxy: Proxy) -> Handle:
        """The same module in eval mode, reached through another proxy (`Proxy.aside`)."""
        return Handle(proxy, self._number, self._name)

    def train(self) -> Handle:
        self._training = True
        return self

    def eval(self) -> Handle:
        self._training = False
        return self

    def parameters(self) -> dict[str, list[int]]:
        """Name and shape of each parameter."""
        return self._shapes("parameters")

    def buffers(self) -> dict[str, list[int]]:
        """Name and shape of each buffer."""
        return self._shapes("buffers")

    def state(self) -> dict[str, torch.Tensor]:
        """The state dict."""
        return self._described("state", torch.Tensor, "inspect", state=True)

    def step(self, *args: Any, lr: float = 0.1, **kwargs: Any) -> dict[str, torch.Tensor]:
        """The state after one step of gradient descent on a random weighted sum of outputs."""
        return self._described("state", torch.Tensor, "step", args=list(args), kwargs=kwargs, lr=lr)

    def _shapes(self, key: str) -> dict[str, list[int]]:
        return self._described(key, (list, tuple), "inspect")

    def _described(
        self, key: str, kind: type | tuple[type, ...], op: str, **request: Any
    ) -> dict[str, Any]:
        """What the worker says of the module under `key`, by name.

        Raises:
            Mistake: it says something else, as a cheat may that answers in the worker's place. A
                grader that stumbled over it would have failed, and nobody would be judged.
        """
        value = self._ask(op, **request).value
        said = value.get(key) if isinstance(value, dict) else None
        if not isinstance(said, dict) or not all(isinstance(each, kind) for each in said.values()):
            raise Mistake(f"Your {self._name} does not say what its {key} are.")
        return said

    def _ask(self, op: str, **request: Any) -> Observation:
        request = {"op": op, "handle": self._number, "training": self._training, **request}
        return self._proxy._ask(request, f"Your {self._name}")
