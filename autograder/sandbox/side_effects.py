"""Asks one call several times: what does the answer depend on, and what does the call leave behind?

A right function answers the same to the same question, whatever was asked before it, and leaves its
arguments, its parameters and the modules that it is given as they were. Here a call is made with
the same seed and another, in train and eval mode, with and without gradients, after other calls,
after the weights have changed, for one row and for several equal ones, and after the caller has
written over an answer. Only answers of one implementation are compared with one another, so that no
reference is needed.

This file is copied into the sandbox: it imports what is copied with it only.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from autograder.sandbox.nesting import transform, walk

if TYPE_CHECKING:
    from autograder.sandbox.executor import Executor, Outcome, Request

# What can be found, besides CHANGES with the label of an argument.
CHANGES = "changes "  # an argument, in place
CHANCE, EACH_TIME = "chance", "chance each time"  # another seed, another answer: ever, always
FIXED = "fixed"  # no seed gives another answer, although one should
UNSEEDED = "unseeded"  # the same seed, another answer
SEEDED = "seeded"  # the call sets a seed
MODE = "mode"  # the other one of train and eval, another answer
GRADIENT = "gradient"  # other answers with and without gradients
MEMORY = "memory"  # after another call, another answer
SHARED = "shared"  # after the caller has written over an answer, another one
KEPT = "kept"  # after the caller has written over what was given, another answer
STRIDES = "strides"  # the same tensors, laid out otherwise in memory, another answer
SPECIAL_ROW = "special row"  # an embedding has a row that learns nothing
PARAMETERS = "parameters"  # the call changes the module's own, or those of a module it is given
TRAINING = "training"  # it leaves a module in another mode
REQUIRES_GRAD = "requires_grad"  # it freezes or thaws parameters, or tensors that it is given
GRAD = "grad"  # it leaves gradients in parameters
STALE = "stale"  # gradients from before, in parameters, another answer
STALE_FROZEN = "stale frozen"  # the same of parameters that want no gradient
WEIGHTS = "weights"  # back at the weights of before, an answer to those between
UNREAD = "unread"  # with other weights, the same answer
ROWS = "rows"  # one row, another answer than several equal ones
PUT_BACK = "put back"  # numbers are drawn, and the generator is where it was
INSTANCES = "instances"  # two modules that are made alike have weights in common

SEEDS = 6
# So many seeds without another answer say that there is none: where the reference answers
# otherwise with each of `SEEDS`, even a chance of 3/4 of the same answer comes to 1e-8.
SEEDS_FOR_FIXED = 64
TOLERANCE = 1e-5  # of the largest value


class _NoAnswer(Exception):
    """The call raised an error, or did not end."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome["kind"])
        self.outcome = outcome


def found(executor: Executor, request: Request) -> list[str] | Outcome:
    """What is noticed about the call `request["asked"]`, sorted; an outcome if it has no answer.

    Args:
        executor: carries requests out; it has no modules afterwards.
        request: `made`, the requests that make the modules; `asked`, a call or an invocation of
            them; `expected`, what is noticed about a right implementation: it is not looked for;
            `chance_only`, whether nothing else is looked for; `python_too`, whether Python's
            `random` may be drawn from as well.
    """
    try:
        return sorted(_Inquiry(executor, request).facts())
    except _NoAnswer as none:
        return none.outcome


class _Inquiry:
    def __init__(self, executor: Executor, request: Request) -> None:
        self._executor = executor
        self._made: list[Request] = request["made"]
        self._expected: list[str] = request["expected"]
        plain = {} if GRADIENT in self._expected else {"grad": False}
        self._asked: Request = {**request["asked"], **plain}
        self._given = {key: self._asked[key] for key in ("args", "kwargs")}
        # What draws from PyTorch's own generator does not care for Python's.
        self._elsewhere = {} if request.get("python_too") else {"python_rng": 1}
        self._chance_only = bool(request.get("chance_only"))
        self._states: dict[int, dict[str, torch.Tensor]] = {}
        self._first: tuple[Any, list[torch.Tensor]]  # an answer, and the weights after it
        self._facts: set[str] = set()
        self._makes = 0

    def facts(self) -> set[str]:
        if self._chance_only:
            self._look_at_chance(self._afresh())
        elif EACH_TIME in self._expected or not self._nothing_matters():
            self._find_out()
        if not self._chance_only:  # What is left behind matters, whatever the answer is.
            if MODE in self._expected:  # else it is asked in both
                self._try(**self._other_mode())
            answer = self._try_afresh(grad=True, leaves=True)
            if answer is not _NoAnswer and not self._facts:  # of an error other tests tell
                self._note_unless(GRADIENT, self._first[0], answer)
        known = {*self._facts, *self._expected}
        if not self._chance_only and UNSEEDED not in self._facts:
            if not {WEIGHTS, MEMORY, SHARED, KEPT, PARAMETERS} & known:
                self._look_at_weights()
            if not {ROWS, MEMORY, CHANCE, EACH_TIME, PARAMETERS} & known:
                self._look_at_rows()
            if STALE not in known and self._asked.get("modules"):
                self._look_at_old_gradients()
        return self._facts

    def _nothing_matters(self) -> bool:
        """Whether all is well, asked at once in as few calls as may be: mostly it is."""
        other, further = self._others()
        answer = self._afresh()
        once = [self._try(**other), self._try(**further), self._try()]
        self._make()
        expected = set(self._expected)
        if not {STRIDES, CHANCE} & expected:
            further = _laid_out(further)
        again = [self._try(**further), self._try(**other)]
        rest = [self._try(**change) for change in self._changes()]
        if self._has_mode:  # An error must not leave it changed.
            self._try(**_longer(_longer(further)), **self._other_mode())
        if not alike(once, [*again[::-1], answer]) or not all(alike(answer, one) for one in rest):
            return False
        if not {SHARED, KEPT} & expected:
            self._spoil_and_ask(answer)
        return True

    def _changes(self) -> Iterator[dict[str, Any]]:
        """What should not matter, several things at a time."""
        expected = set(self._expected)
        for number in range(1, SEEDS + 1):
            change: dict[str, Any] = {}
            if not {CHANCE, UNSEEDED} & expected:
                change |= {"rng": self._asked["rng"] + number}
            if UNSEEDED not in expected:
                change |= self._elsewhere
            if self._has_mode and MODE not in expected and number > 1:
                change |= self._other_mode()
            if not {STRIDES, CHANCE} & expected and number == 3:
                change |= _laid_out(self._given)
            yield change

    def _others(self) -> list[dict[str, Any]]:
        """Arguments of other questions.

        Both have other values: `_longer` leaves many a tensor as it is, which may be kept.
        """
        flipped = _flipped(self._given)
        return [flipped, _longer(flipped)]

    def _spoil_and_ask(self, answer: Any) -> None:
        """This comes last: what is spoilt outside the modules stays so."""
        self._try(spoil=True)
        if alike(answer, self._try()):
            return
        self._make()
        self._try(spoil=SHARED)
        self._facts.add(KEPT if alike(answer, self._try()) else SHARED)

    def _find_out(self) -> None:
        """What it is that matters, one thing after the other."""
        answer = self._afresh()
        if not self._look_at_chance(answer):
            return
        chance = CHANCE in self._facts or EACH_TIME in self._expected
        if self._has_mode:
            for number in range(1 if chance else SEEDS):  # a little may be dropped
                change = {**self._other_mode(), "rng": self._asked["rng"] + number}
                self._note_unless(MODE, answer, self._try_afresh(**change))
        for given in (self._given, self._others()[1]):
            plain, laid_out = (self._try_afresh(**one) for one in (given, _laid_out(given)))
            # Which number is drawn for which place may depend on the layout.
            if laid_out is _NoAnswer or not chance:
                self._note_unless(STRIDES, plain, laid_out)
        if MEMORY in self._expected:
            return
        for other in self._others():
            alone = self._try_afresh(**other)
            self._make()
            first, after, last = self._try(), self._try(**other), self._try()
            if not alike([answer, alone, answer], [first, after, last]):
                self._facts.add(MEMORY)
        if MEMORY not in self._facts:
            self._make()
            self._spoil_and_ask(answer)

    def _look_at_chance(self, answer: Any) -> bool:
        """What of chance there is; whether one seed gives one answer, so that more can be said."""
        if not alike(answer, self._try_afresh()):
            self._facts.add(UNSEEDED)
            return False
        self._note_unless(UNSEEDED, answer, self._try_afresh(**self._elsewhere))
        varies = EACH_TIME in self._expected
        count = SEEDS_FOR_FIXED if varies else SEEDS
        different = 0
        for number in range(1, count + 1):
            different += not alike(answer, self._try_afresh(rng=self._asked["rng"] + number))
            if varies and different:
                self._look_for_seed()
                return True  # as it should be
        if varies:
            self._facts.add(FIXED)
        if different:
            self._facts.add(CHANCE)
        if different == count:
            self._facts.add(EACH_TIME)
        return True

    def _look_for_seed(self) -> None:
        """Whether it matters what was drawn before the call, as it should where chance matters."""
        for number in range(SEEDS):
            rng = self._asked["rng"] + number
            if not alike(*(self._try_afresh(rng=rng, drawn_before=ahead) for ahead in (0, 5))):
                return
        self._facts.add(SEEDED)

    def _look_at_weights(self) -> None:
        """Whether the weights are asked in each call."""
        self._make()
        weights = self._weights()
        if not weights:
            return
        answer = self._first[0]
        before = [weight.detach().clone() for weight in weights]
        other = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in weights:  # They may all be 0.
                weight.add_(torch.randn(weight.shape, generator=other) / 2)
        # To the last digit: beside -1e9, as some mask, no other number would be seen to change.
        # Ids may well stay the same with other weights.
        real = any(one.is_floating_point() for _, one in walk(answer))
        if real and alike(answer, self._try(), tolerance=0.0):
            self._facts.add(UNREAD)
        with torch.no_grad():
            for weight, value in zip(weights, before, strict=True):
                weight.copy_(value)
        self._note_unless(WEIGHTS, answer, self._try())

    def _look_at_rows(self) -> None:
        """Whether a row's answer depends on how many rows like it are beside it."""
        tensors = [tensor for _, tensor in walk(self._given)]
        first = next((tensor for tensor in tensors if tensor.ndim > 1), None)
        if first is None:
            return
        alone = self._try(**_rows(self._given, len(first), 1))
        # As many as tokens, too: a mask's size may be taken for the batch's.
        for count in {2, min(first.shape[1], 6)} - {1}:
            several = self._try(**_rows(self._given, len(first), count))
            # Without an answer of the reference's it is no question.
            if alone is _NoAnswer or not _alike_rows(alone, several, count):
                self._facts.add(ROWS)

    def _look_at_old_gradients(self) -> None:
        """Whether it matters what an earlier backward pass has left in the weights."""
        with_frozen = STALE_FROZEN not in self._expected
        if alike(self._first, self._after(1e12, with_frozen)):
            return
        for frozen, fact in ((False, STALE), (True, STALE_FROZEN)):
            if not alike(*(self._after(old, frozen) for old in (None, 1e12))):
                self._facts.add(fact)
                return

    def _after(self, old: float | None, with_frozen: bool) -> tuple[Any, list[torch.Tensor]]:
        """The answer, and the parameters after the call.

        Args:
            old: what stands in the gradients before the call.
            with_frozen: whether the modules get one more parameter, which wants no gradient.
        """
        self._make()
        weights = self._weights()
        frozen = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
        for module in self._modules if with_frozen else ():
            module.register_parameter("frozen_besides", frozen)
        for parameter in [*weights, frozen]:
            parameter.grad = None if old is None else torch.full_like(parameter, old)
        answer = _without("frozen_besides", self._try(old_grads=True))
        moved = [] if torch.equal(frozen, torch.ones(2, 2)) else [frozen.detach()]
        return answer, [weight.detach() for weight in weights] + moved

    def _weights(self) -> list[torch.Tensor]:
        """Parameters; of modules that a function is given also other tensors of numbers.

        A module of the student's own may compute something from such a tensor once and for all.
        """
        weights: list[torch.Tensor] = []
        for module in self._modules:
            weights += module.parameters()
            weights += module.buffers() if self._asked["op"] == "call" else ()
        return [weight for weight in weights if weight.is_floating_point()]

    @property
    def _modules(self) -> list[torch.nn.Module]:
        return list(self._executor.handles.values())

    @property
    def _has_mode(self) -> bool:
        return "training" in self._asked or bool(self._asked.get("modules"))

    def _other_mode(self) -> dict[str, Any]:
        """The other one of train and eval."""
        mode: dict[str, Any] = {}
        if "training" in self._asked:
            mode["training"] = not self._asked["training"]
        if self._asked.get("modules"):
            mode["modules"] = {name: not on for name, on in self._asked["modules"].items()}
        return mode

    def _note_unless(self, fact: str, answer: Any, other: Any) -> None:
        if not alike(answer, other):
            self._facts.add(fact)

    # How it is asked.

    def _afresh(self) -> Any:
        """The answer of modules made anew."""
        self._make()
        answer = self._ask()
        self._first = answer, [weight.detach().clone() for weight in self._weights()]
        return answer

    def _try_afresh(self, **changes: Any) -> Any:
        self._make()
        return self._try(**changes)

    def _try(self, **changes: Any) -> Any:
        """The answer, or that there is none."""
        try:
            return self._ask(**changes)
        except _NoAnswer:
            return _NoAnswer

    def _make(self) -> None:
        """Make the modules anew, with the parameters of the first time."""
        asked: int = self._asked.get("handle", 0)
        earlier = self._executor.handles.get(asked)
        self._executor.handles.clear()
        self._makes += 1
        for request in self._made:
            given = [self._executor.handles[int(one)] for one in request.get("modules", ())]
            for module in given:
                module.train(self._makes % 2 == 0)
            before = [_of_parameters(module) for module in given]
            outcome = self._carried_out({**request, **(self._elsewhere if self._states else {})})
            self._note_changed(outcome)
            self._look_at_parameters(given, before)
        if earlier and _memory(earlier) & _memory(self._executor.handles[asked]):
            self._facts.add(INSTANCES)
        for handle, module in self._executor.handles.items():
            embeddings = [m for m in module.modules() if isinstance(m, torch.nn.Embedding)]
            if any(embedding.padding_idx is not None for embedding in embeddings):
                self._facts.add(SPECIAL_ROW)
            if handle in self._states:
                if not alike(dict(module.state_dict()), self._states[handle]):
                    self._facts.add(UNSEEDED)
                with contextlib.suppress(RuntimeError):  # other names: told by the parameters
                    module.load_state_dict(self._states[handle])
            else:
                state = module.state_dict()
                self._states[handle] = {name: one.clone() for name, one in state.items()}

    def _put_back(self) -> None:
        """The weights of the first time, which a call that trains has changed."""
        for handle, module in self._executor.handles.items():
            with contextlib.suppress(RuntimeError):  # names that the call has added
                module.load_state_dict(self._states[handle])
            for parameter in module.parameters():
                parameter.grad = None

    def _ask(self, **changes: Any) -> Any:
        request = {**self._asked, **changes}
        if PARAMETERS in {*self._facts, *self._expected} and not changes.get("old_grads"):
            self._put_back()
        before = [_of_parameters(module) for module in self._modules]
        try:
            outcome = self._carried_out(request)
        except _NoAnswer as none:
            if "ValueError" in none.outcome.get("types", ()):  # a refusal
                self._look_at_modes(request)
            raise
        self._look_at_modes(request)
        self._note_changed(outcome)
        if not changes and EACH_TIME in self._expected and not self._executor.moved:
            self._facts.add(PUT_BACK)
        self._look_at_parameters(self._modules, before)
        # A copy: what it shares with the caller may be written over.
        return transform(outcome["value"], lambda tensor: tensor.detach().clone())

    def _note_changed(self, outcome: Outcome) -> None:
        for label in outcome["mutated"]:
            known = label in (TRAINING, REQUIRES_GRAD, GRAD)
            self._facts.add(label if known else CHANGES + label)

    def _look_at_parameters(
        self, modules: list[torch.nn.Module], before: list[dict[str, _Parameter]]
    ) -> None:
        """What has been done to parameters since they were so."""
        for old, module in zip(before, modules, strict=True):
            now = _of_parameters(module)
            if now.keys() != old.keys() or not all(
                _same_numbers(now[name].value, one.value) for name, one in old.items()
            ):
                self._facts.add(PARAMETERS)
            elif any(now[name].wants_grad != one.wants_grad for name, one in old.items()):
                self._facts.add(REQUIRES_GRAD)
            elif not all(alike(now[name].grad, one.grad) for name, one in old.items()):
                self._facts.add(GRAD)

    def _look_at_modes(self, request: Request) -> None:
        """Whether modules are in the mode in which they were asked, also after an error."""
        modes = {int(name): mode for name, mode in request.get("modules", {}).items()}
        if "training" in request:
            modes[request["handle"]] = request["training"]
        for handle, mode in modes.items():
            if not in_mode(self._executor.handles[handle], mode):
                self._facts.add(TRAINING)

    def _carried_out(self, request: Request) -> Outcome:
        outcome = self._executor.carry_out(request, watched=True)
        if self._executor.seeded:
            self._facts.add(SEEDED)
        if outcome["kind"] != "value":
            raise _NoAnswer(outcome)
        return outcome


def in_mode(module: torch.nn.Module, training: bool) -> bool:
    """Whether a module and all its parts are in train mode, or all in eval mode."""
    return all(part.training == training for part in module.modules())


def _memory(module: torch.nn.Module) -> set[int]:
    """Where the memory of its parameters begins. A constant table may be one for all instances."""
    return {one.untyped_storage().data_ptr() for one in module.parameters() if one.numel()}


class _Parameter(NamedTuple):
    """What a parameter was at one moment."""

    value: torch.Tensor
    wants_grad: bool
    grad: torch.Tensor | None


def _of_parameters(module: torch.nn.Module) -> dict[str, _Parameter]:
    return {
        name: _Parameter(
            one.detach().clone(),
            one.requires_grad,
            None if one.grad is None else one.grad.detach().clone(),
        )
        for name, one in module.named_parameters()
    }


def _without(name: str, answer: Any) -> Any:
    """An answer without what its dicts have under a name."""
    if isinstance(answer, dict):
        return {key: _without(name, one) for key, one in answer.items() if key != name}
    if isinstance(answer, (list, tuple)):
        return type(answer)(_without(name, one) for one in answer)
    return answer


def alike(left: Any, right: Any, *, tolerance: float = TOLERANCE) -> bool:
    """Equal up to rounding, through nested lists, tuples and dicts; others by their type."""
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        both = isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)
        return both and _same_numbers(left, right, tolerance)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(
            alike(one, other, tolerance=tolerance) for one, other in zip(left, right, strict=True)
        )
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(
            alike(left[key], right[key], tolerance=tolerance) for key in left
        )
    if isinstance(left, float) and isinstance(right, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or math.isclose(left, right, rel_tol=tolerance)
    if isinstance(left, (bool, int, str, bytes, type(None), type)):
        return bool(left == right)
    return type(left) is type(right)


def _same_numbers(left: torch.Tensor, right: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if torch.equal(left, right):
        return True
    if not left.is_floating_point():
        return False
    left, right = left.detach().double(), right.detach().double()
    finite = left[left.isfinite()].abs()
    limit = tolerance * max(float(finite.max()) if finite.numel() else 0.0, 0.1)
    near = ((left - right).abs() <= limit) | (left == right) | (left.isnan() & right.isnan())
    return bool(near.all())


# Other questions of the same kind. They need not be good ones: an error is an answer, too.


def _laid_out(value: Any) -> Any:
    """The same, its matrices column by column in memory."""
    return transform(value, lambda tensor: tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor)


def _flipped(value: Any) -> Any:
    """The same shapes, and the same values in another order."""
    if isinstance(value, torch.Tensor):
        sizes = [axis for axis, size in enumerate(value.shape) if size > 1]
        return value.detach().flip(sizes[-1:]) if sizes else value
    if isinstance(value, (list, tuple)):
        if all(isinstance(item, (int, float, str)) for item in value):
            return type(value)(reversed(value))
        return type(value)(map(_flipped, value))
    if isinstance(value, dict):
        return {key: _flipped(item) for key, item in value.items()}
    return value


def _longer(given: dict[str, Any]) -> dict[str, Any]:
    """Every axis twice as long that is as long as the first tensor's tokens."""
    tensors = [tensor for _, tensor in walk(given)]
    wide = next((tensor for tensor in tensors if tensor.ndim > 1), None)
    length = wide.shape[1] if wide is not None else next((len(t) for t in tensors if t.ndim), 0)
    first = 1 if wide is not None else 0

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        for axis in range(first, tensor.ndim):
            if tensor.shape[axis] == length:
                tensor = torch.cat([tensor, tensor], dim=axis)
        return tensor

    return {key: transform(value, twice) for key, value in given.items()}


def _rows(given: dict[str, Any], size: int, count: int) -> dict[str, Any]:
    """The first row so many times, in each tensor that has `size` rows."""

    def repeated(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0 or len(tensor) != size:
            return tensor
        return tensor[[0] * count]

    return {key: transform(value, repeated) for key, value in given.items()}


def _alike_rows(one: Any, several: Any, count: int) -> bool:
    """Whether an answer to so many rows is what the answer to one row is, in each row.

    One number for all, such as a loss, may be a mean of them or a sum.
    """
    if all(isinstance(n, float) or (torch.is_tensor(n) and not n.ndim) for n in (one, several)):
        return True
    if isinstance(one, torch.Tensor) and isinstance(several, torch.Tensor):
        if one.ndim and several.ndim and len(one) == 1 and len(several) == count:
            one = one[[0] * count]
        return _same_numbers(one, several)
    if isinstance(one, (list, tuple)) and isinstance(several, (list, tuple)):
        if len(one) == 1 and len(several) == count:
            one = [one[0]] * count
        return len(one) == len(several) and all(
            _alike_rows(left, right, count) for left, right in zip(one, several, strict=True)
        )
    if isinstance(one, dict) and isinstance(several, dict):
        return one.keys() == several.keys() and all(
            _alike_rows(one[key], several[key], count) for key in one
        )
    return alike(one, several)


def spoil(value: Any, parameters: set[int]) -> None:
    """Write over an answer, or over arguments, as a caller may.

    Args:
        parameters: where the memory of parameters begins, which no caller writes over.
    """
    if isinstance(value, torch.Tensor):
        if value.numel() and value.untyped_storage().data_ptr() not in parameters:
            # A tensor that is expanded, or made in inference mode, cannot be written to.
            with contextlib.suppress(RuntimeError), torch.no_grad():
                value.detach().fill_(1)
    elif isinstance(value, (list, tuple, dict)):
        for item in list(value.values()) if isinstance(value, dict) else value:
            spoil(item, parameters)
        if isinstance(value, (list, dict)):
            value.clear()
