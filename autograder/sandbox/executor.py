"""Carries out requests on one implementation: a student's, the reference, or a wrong one.

A request is a plain dict (call a function, create a module, invoke it, ...) and so is the
outcome. The same executor serves behind the wire in the sandbox, in the student's notebook,
and in the trusted process for the reference, the misconceptions and the mutants, so that all
of them are asked in exactly the same way.

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import linecache
import random
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from autograder.sandbox import side_effects
from autograder.sandbox.forbidden_calls import Refusal
from autograder.sandbox.nesting import SCALARS, transform, walk

Request = dict[str, Any]
Outcome = dict[str, Any]

MESSAGE_LIMIT = 500

# The key of a dict that stands for a module made by an earlier request, in a request's arguments.
MODULE = "__module__"
# The key of a dict that stands for a new random generator; its value is the seed.
GENERATOR = "__generator__"
# The key of a dict that stands for a record, an instance of a dataclass; its value is the name of
# the type, and the other keys are the fields.
RECORD = "__record__"
# How PyTorch's own generator is called among the things that a function has changed in place.
GLOBAL_GENERATOR = "torch.default_generator"
# What is said to have changed where a call has kept something for a backward pass.
GRAPH = "torch.autograd.graph"
# How many calls were counted follows.
CALLS = "calls "
# What is said of tensors in an answer: they lie in no memory that was given, or not in their order.
# The label follows.
COPIED, SCATTERED = "copied: ", "not contiguous: "
# The most that is taken out of a generator in an answer.
MOST_LISTED = 10_000


def clone_input(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same shape, strides and values that shares no memory with the original."""
    source = tensor.detach() if tensor.requires_grad else tensor
    if source.is_contiguous() and type(source) is torch.Tensor:
        return source.clone()
    source = source.detach()
    layout = zip(source.shape, source.stride(), strict=True)
    if any(step == 0 and size > 1 for size, step in layout):
        # An expanded tensor: copy what is stored, then expand again.
        stored = tuple(slice(0, 1) if step == 0 else slice(None) for step in source.stride())
        return source[stored].clone().expand(source.shape)
    copy = torch.empty_strided(
        source.shape, source.stride(), dtype=source.dtype, device=source.device
    )
    return copy.copy_(source)


def same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal in shape, dtype and every value, NaN equal to NaN."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if torch.equal(left, right):
        return True
    left, right = left.detach(), right.detach()
    same = left == right
    if left.is_floating_point():
        same = same | (left.isnan() & right.isnan())
    return bool(same.all())


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """An ordinary, detached copy: parameters and subclasses lose their type."""
    if type(tensor) is torch.Tensor and not tensor.requires_grad:
        return tensor.clone()
    detached = tensor.detach()
    if type(detached) is not torch.Tensor:
        detached = detached.as_subclass(torch.Tensor)
    return detached.clone()


def _changed(labels: list[str], given: list[Any], used: list[Any]) -> list[str]:
    """Labels of tensors among arguments, and of arguments, that a call has changed in place."""
    changed: list[str] = []
    added: list[str] = []
    others: list[str] = []
    for label, value, now in zip(labels, given, used, strict=True):
        if isinstance(value, torch.Tensor):
            if not same_tensor(value, now):
                changed.append(label)
        elif isinstance(value, (list, tuple, dict)):
            before, after = dict(walk(value, label)), dict(walk(now, label))
            # A key added to a dict, or taken from it, is a change like any other.
            different = [
                name
                for name, tensor in before.items()
                if name not in after or not same_tensor(tensor, after[name])
            ]
            further = [name for name in after if name not in before]
            if not _same_lists(value, now) and not different and not further:
                others.append(label)
            changed += different
            added += further
    return changed + added + others


def _same_lists(before: Any, after: Any) -> bool:
    """Equal but for tensors and modules, which are compared elsewhere or not at all."""
    if before is after:
        return True
    if isinstance(before, torch.Tensor) or isinstance(after, (torch.nn.Module, torch.Generator)):
        return True
    if isinstance(before, (list, tuple)):
        return (
            type(before) is type(after)
            and len(before) == len(after)
            and all(map(_same_lists, before, after))
        )
    if isinstance(before, dict):
        return (
            isinstance(after, dict)
            and before.keys() == after.keys()
            and all(_same_lists(value, after[key]) for key, value in before.items())
        )
    return bool(before == after)


def _with_modules(
    value: Any, handles: dict[int, torch.nn.Module], named: Callable[[str], Any]
) -> Any:
    """The same nesting with the module, generator or record wherever a dict stands for one.

    `named` gives the type of a record.
    """
    if isinstance(value, dict):
        if set(value) == {MODULE}:
            return handles[value[MODULE]]
        if set(value) == {GENERATOR}:
            return torch.Generator().manual_seed(value[GENERATOR])
        items = {key: _with_modules(item, handles, named) for key, item in value.items()}
        name = items.pop(RECORD, None)
        return items if name is None else named(name)(**items)
    if isinstance(value, (list, tuple)):
        return type(value)(_with_modules(item, handles, named) for item in value)
    return value


def without_records(value: Any) -> Any:
    """The same nesting with a dict wherever there is a record; see `RECORD`."""
    if type(value) in SCALARS or isinstance(value, torch.Tensor):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(without_records, value))
    if type(value) is dict:
        return {key: without_records(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value))
        return {
            RECORD: type(value).__name__,
            **{name: without_records(getattr(value, name)) for name in fields},
        }
    return value


def _listed(value: Any) -> Any:
    """The same nesting, with a list in place of what a dict holds as an iterator.

    Groups of parameters may be handed to an optimiser so: `{"params": (p for p in ...), ...}`.
    """
    if isinstance(value, (list, tuple)) and any(isinstance(item, dict) for item in value):
        items = map(_listed, value)
        return list(items) if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {
            key: list(itertools.islice(item, MOST_LISTED)) if isinstance(item, Iterator) else item
            for key, item in value.items()
        }
    return value


def _memory(value: Any) -> set[int]:
    """Where the tensors in `value` lie."""
    tensors = (tensor for _, tensor in walk(value) if tensor.layout is torch.strided)
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def _laid_out(value: Any, given: set[int]) -> Iterator[str]:
    """What `COPIED` and `SCATTERED` say of an answer, if the memory `given` was."""
    for label, tensor in walk(value):
        if tensor.layout is not torch.strided or not _memory(tensor) <= given:
            yield COPIED + label
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            yield SCATTERED + label


@contextlib.contextmanager
def _noting_graph(kept: list[bool]) -> Iterator[None]:
    """Within it `kept` gets an entry for each tensor that is kept for a backward pass."""

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(True)
        return tensor

    graph = torch.autograd.graph
    with torch.enable_grad(), graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


@contextlib.contextmanager
def _counting(modules: list[torch.nn.Module], method: str) -> Iterator[list[None]]:
    """An entry for each call of this method of one of the modules; none without a method."""
    calls: list[None] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(None)
            return function(*args, **kwargs)

        return call

    counting = [module for module in modules if method]
    for module in counting:
        vars(module)[method] = counted(getattr(module, method))
    try:
        yield calls
    finally:
        for module in counting:
            vars(module).pop(method, None)


class _NotAModule(Exception):
    pass


class _StateMismatch(Exception):
    pass


class Executor:
    """Runs requests against `namespace`, the names that an implementation defines.

    With `alone` nothing but requests draws random numbers in this process, so that the state of
    the generators need not be put back after each.

    Attributes:
        refusal: what the code may not call while it answers; None if it may call everything.
        seeded: whether the request that was watched last has set a seed.
        moved: whether it has drawn from PyTorch's own generator, or Python's, and left it there.
    """

    def __init__(self, namespace: dict[str, Any], *, alone: bool = False) -> None:
        self.namespace = namespace
        self.alone = alone
        self.refusal: Refusal | None = None
        self.seeded = False
        self.moved = False
        self.handles: dict[int, torch.nn.Module] = {}

    @contextlib.contextmanager
    def refusing(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Within it no request is answered with what a forbidden function gives.

        Yields what of it was undone, which in this process is nothing; see `session.Session`.
        """
        self.refusal = Refusal(names) if names else None
        try:
            yield []
        finally:
            self.refusal = None

    def execute(self, request: Request) -> Outcome:
        """Carry out one request. Whatever the implementation does becomes an outcome."""
        if self.refusal is None:
            return self.carry_out(request)
        with self.refusal:
            outcome = self.carry_out(request)
        called = self.refusal.take()
        return _value(forbidden=called) if called else outcome

    def carry_out(self, request: Request, *, watched: bool = False) -> Outcome:
        """`execute`, but that nothing is said of forbidden functions.

        Args:
            request: what is asked.
            watched: whether `seeded` and `moved` are to say what becomes of the generators.
        """
        states = None if self.alone else (random.getstate(), torch.get_rng_state())
        # The generator itself: torch.manual_seed also queues work for absent accelerators.
        torch.default_generator.manual_seed(request.get("rng", 0))
        random.seed(request.get("python_rng", request.get("rng", 0)))
        for _ in range(request.get("drawn_before", 0)):
            torch.rand(1), random.random()
        began = (torch.get_rng_state(), random.getstate()) if watched else None
        try:
            return getattr(self, f"_op_{request['op']}")(request)
        except NotImplementedError as error:
            return {"kind": "todo", "message": _text(error)[:MESSAGE_LIMIT]}
        except _MissingName as error:
            return {"kind": "missing", "message": str(error)}
        except MemoryError:
            return {"kind": "memory", "message": "the code asked for more memory than it may have"}
        except RecursionError as error:
            return self._error(error, request)
        except (Exception, SystemExit, GeneratorExit) as error:
            if "DefaultCPUAllocator" in _text(error):
                return {
                    "kind": "memory",
                    "message": "the code asked for more memory than it may have",
                }
            return self._error(error, request)
        finally:
            if began is not None:
                self.seeded = torch.default_generator.initial_seed() != request.get("rng", 0)
                self.moved = (
                    not torch.equal(began[0], torch.get_rng_state())
                    or began[1] != random.getstate()
                )
            if states is not None:
                random.setstate(states[0])
                torch.set_rng_state(states[1])

    # One method for each kind of request.

    def _op_call(self, request: Request) -> Outcome:
        return self._run(self._named(request["name"]), request, self._given_modules(request))

    def _op_create(self, request: Request) -> Outcome:
        cls = self._named(request["name"])
        asked = request.get("kwargs", {})
        kwargs = transform(asked, clone_input)
        if request.get("modules"):
            kwargs = _with_modules(kwargs, self.handles, self._named)
        given = [self.handles[int(handle)] for handle in request.get("modules", ())]
        modes = [one.training for one in given]
        module = cls(**kwargs)
        if not isinstance(module, torch.nn.Module):
            raise _NotAModule(f"{request['name']}(...) is not a torch.nn.Module")
        mutated = _changed([*asked], [*asked.values()], [*kwargs.values()])
        if not all(map(side_effects.in_mode, given, modes)):
            mutated.append(side_effects.TRAINING)
        if request.get("dtype"):
            module = module.to(getattr(torch, request["dtype"]))
        if request.get("state") is not None:
            _load_state(module, request["state"])
        module.eval()
        self.handles[request["handle"]] = module
        return {**_value(), "mutated": mutated}

    def _op_invoke(self, request: Request) -> Outcome:
        module = self.handles[request["handle"]]
        module.train(bool(request.get("training", False)))
        method = request.get("method", "forward")
        function = module if method == "forward" else getattr(module, method)
        parameters = self._given_modules(request)
        parameters.update(module.named_parameters())
        return self._run(function, request, parameters)

    def _op_inspect(self, request: Request) -> Outcome:
        """Names and shapes; or the values, which are asked for alone.

        How a module is initialised is mostly up to the student: answers that hold shapes only are
        the same however it was done.
        """
        module = self.handles[request["handle"]]
        if request.get("state"):
            state = {name: _plain(tensor) for name, tensor in module.state_dict().items()}
            return _value({"state": state})
        value = {
            "parameters": {name: list(p.shape) for name, p in module.named_parameters()},
            "buffers": {name: list(b.shape) for name, b in module.named_buffers()},
        }
        return _value(value)

    def _op_step(self, request: Request) -> Outcome:
        module = self.handles[request["handle"]]
        outcome = self._op_invoke({**request, "grad": True, "training": False})
        if outcome["kind"] != "value":
            return outcome
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                gradient = outcome["grads"].get(f"parameter {name}")
                if gradient is not None:
                    parameter.sub_(request["lr"] * gradient)
        return self._op_inspect({"handle": request["handle"], "state": True})

    def _op_repeat(self, request: Request) -> Outcome:
        kept, self.handles = self.handles, {}
        try:
            found = side_effects.found(self, request)
            return found if isinstance(found, dict) else _value(found)
        finally:
            self.handles = kept

    # What they share.

    def _named(self, name: str) -> Any:
        """What an implementation calls so, or a module that it has imported: `nn.Embedding`."""
        first, *rest = name.split(".")
        try:
            value = self.namespace[first]
        except KeyError:
            raise _MissingName(f"{first} is not defined") from None
        for part in rest:
            value = getattr(value, part)
        return value

    def _given_modules(self, request: Request) -> dict[str, torch.Tensor]:
        """Put the modules among the arguments in their mode; their parameters, by name."""
        parameters: dict[str, torch.Tensor] = {}
        for handle, training in request.get("modules", {}).items():
            module = self.handles[int(handle)]
            module.train(bool(training))
            parameters.update(module.named_parameters())
        return parameters

    def _run(
        self, function: Callable[..., Any], request: Request, parameters: dict[str, torch.Tensor]
    ) -> Outcome:
        with_grad = bool(request.get("grad"))
        leaves: list[torch.Tensor] = []

        def leaf_of(tensor: torch.Tensor) -> torch.Tensor:
            copy = clone_input(tensor)
            if not copy.is_floating_point():
                return copy
            leaf = copy.requires_grad_()
            leaves.append(leaf)
            if request.get("leaves"):
                return leaf
            # A view of a leaf may not be written to; the function gets a copy instead, so
            # that writing to an input is noticed below rather than refused by autograd.
            return _identity(leaf)

        args, kwargs = request.get("args", ()), request.get("kwargs", {})
        given = [*args, *kwargs.values()]
        fresh = leaf_of if with_grad else clone_input
        used = [value if type(value) in SCALARS else transform(value, fresh) for value in given]
        if request.get("modules") or request.get("generators") or request.get("records"):
            used = _with_modules(used, self.handles, self._named)
        # What an earlier step of training has left must stay.
        if not request.get("autograd") and not request.get("old_grads"):
            for parameter in parameters.values():
                parameter.grad = None
        chance = torch.get_rng_state() if request.get("still") else None
        first = len(args)  # of those with a name
        named = dict(zip(kwargs, used[first:], strict=True))
        wanted = with_grad or request.get("autograd")
        memory = _memory(used) if request.get("memory") else None
        kept: list[bool] = []
        recorded = contextlib.nullcontext() if wanted else torch.no_grad()
        watched = [self.handles[int(handle)] for handle in request.get("modules", ())]
        counted = _counting(watched, request.get("counted", ""))
        with _noting_graph(kept) if request.get("graph") else recorded, counted as calls:
            value = given_back = function(*used[:first], **named)
            if type(value) is not torch.Tensor:
                value = without_records(_listed(value))
        moved = chance is not None and not torch.equal(chance, torch.get_rng_state())

        # Arguments without a name are numbered.
        labels = [*map(str, range(first)), *kwargs]
        if request.get("records"):
            used = [without_records(value) for value in used]
        mutated = _changed(labels, given, used)
        mutated += [GLOBAL_GENERATOR] * moved
        mutated += [GRAPH] * bool(kept)
        if "counted" in request:
            mutated.append(f"{CALLS}{len(calls)}")
        if memory is not None:
            mutated += _laid_out(value, memory)
        grads: dict[str, torch.Tensor | None] = {}
        if any(leaf.grad is not None for leaf in leaves):
            mutated.append(side_effects.GRAD)
        # Nor has anything been cut off in place, as by `detach_`.
        if any(
            one.requires_grad != (with_grad and one.is_floating_point()) for _, one in walk(used)
        ):
            mutated.append(side_effects.REQUIRES_GRAD)
        elif with_grad:
            inputs = itertools.chain.from_iterable(map(walk, given, labels))
            floating = [label for label, tensor in inputs if tensor.is_floating_point()]
            labelled = dict(zip(floating, leaves, strict=True))
            for name, parameter in parameters.items():
                labelled[f"parameter {name}"] = parameter
            grads = _gradients(value, labelled, request.get("cotangent", 0))
        answer = transform(value, _plain)
        if request.get("spoil"):
            modules = self.handles.values()
            owned = {p.untyped_storage().data_ptr() for m in modules for p in m.parameters()}
            taken = [] if request["spoil"] == side_effects.SHARED else used
            side_effects.spoil([value, given_back, taken], owned)
        return {
            "kind": "value",
            "value": answer,
            "mutated": mutated,
            "grads": grads,
            "forbidden": [],
        }

    def _where(self, error: BaseException, name: str) -> str:
        """The line of what is called `name` that led to an error, and where it was raised.

        Only what runs in the implementation's own names is shown. Lines are counted in each cell
        from 1: that of another cell comes with the name of what stands there.
        """
        lines: list[tuple[types.CodeType, int]] = []
        frame = error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_globals is self.namespace:
                lines.append((frame.tb_frame.f_code, frame.tb_lineno))
            frame = frame.tb_next
        if not lines:
            return ""
        asked = [line for line in lines if owner_of(line[0]) == name]
        last = line_of(*lines[-1])
        if asked and asked[-1][0].co_filename == lines[-1][0].co_filename:
            return last
        owner = owner_of(lines[-1][0])
        last = f"{owner}, {last}" if owner.isidentifier() and owner != name else last
        return f"{line_of(*asked[-1])}; in {last}" if asked else last

    def _error(self, error: BaseException, request: Request) -> Outcome:
        module = self.handles.get(request.get("handle", 0))
        name = request["name"] if "name" in request else type(module).__name__
        where = self._where(error, name)
        names = [cls.__name__.lstrip("_") for cls in type(error).__mro__]
        return {
            "kind": "error",
            "type": names[0],
            "types": names[:-1],
            "message": _text(error)[:MESSAGE_LIMIT],
            "where": where[:MESSAGE_LIMIT],
        }


class _MissingName(Exception):
    pass


def _value(value: Any = None, forbidden: Sequence[str] = ()) -> Outcome:
    """The outcome of a request that has changed nothing."""
    return {
        "kind": "value",
        "value": value,
        "mutated": [],
        "grads": {},
        "forbidden": list(forbidden),
    }


def owner_of(code: types.CodeType) -> str:
    """The function or class in a cell that `code` belongs to."""
    return code.co_qualname.split(".")[0]


def line_of(code: types.CodeType, number: int) -> str:
    """A line of the file that `code` is in, to be shown: its number and its text."""
    text = linecache.getline(code.co_filename, number).strip()
    return f"line {number}" + (f": {text}" if text else "")


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception of the student's own whose __str__ fails
        return ""


def _identity(leaf: torch.Tensor) -> torch.Tensor:
    """A differentiable copy of `leaf` with the same strides."""
    if leaf.is_contiguous():
        return leaf.clone()
    if any(step == 0 for step in leaf.stride()):
        return leaf.as_strided(leaf.shape, leaf.stride())
    copy = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
    return copy.copy_(leaf)


def _gradients(
    value: Any, labelled: dict[str, torch.Tensor], seed: int
) -> dict[str, torch.Tensor | None]:
    """Gradients of sum(output * cotangent) for random cotangents that depend on `seed` alone."""
    generator = torch.Generator().manual_seed(seed)
    total: torch.Tensor | None = None
    for _, output in walk(value):
        if not output.is_floating_point():
            continue
        cotangent = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        if output.requires_grad:
            # Autograd could be given the cotangents instead, for which it first imports a system
            # of symbolic algebra: a third of a second, as long as all else in the process.
            term = (output * cotangent.to(output.dtype)).sum()
            total = term if total is None else total + term
    if total is None:
        return dict.fromkeys(labelled)
    asked = {name: leaf for name, leaf in labelled.items() if leaf.requires_grad}  # not frozen
    grads = torch.autograd.grad(total, list(asked.values()), allow_unused=True)
    found = {
        name: None if grad is None else _plain(grad.to_dense())  # of an embedding perhaps sparse
        for name, grad in zip(asked, grads, strict=True)
    }
    return dict.fromkeys(labelled) | found


def _load_state(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Strictly load `state`; a difference in names or shapes is said in words.

    Nobody has to name what is no parameter of its own: a buffer such as a mask keeps its value, and
    a second name of a parameter, such as that of a tied output matrix, follows the first.
    """
    own = module.state_dict()
    missing = [name for name in state if name not in own]
    further = [name for name in own if name not in state]
    values = _values_of_further(module, state, own) if further else {}
    extra = [name for name in further if name not in values]
    shapes = [
        f"{name} has shape {tuple(own[name].shape)} instead of {tuple(state[name].shape)}"
        for name in state
        if name in own and own[name].shape != state[name].shape
    ]
    complaints = []
    if missing:
        complaints.append("missing " + ", ".join(missing))
    if extra:
        complaints.append("not asked for: " + ", ".join(extra))
    complaints.extend(shapes)
    if complaints:
        raise _StateMismatch("its parameters differ from the exercise's: " + "; ".join(complaints))
    # What was made in inference mode can be written to in no other.
    with torch.inference_mode(any(tensor.is_inference() for tensor in own.values())):
        module.load_state_dict(transform({**state, **values}, clone_input), strict=True)


def _values_of_further(
    module: torch.nn.Module, state: dict[str, torch.Tensor], own: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What names that `state` has not are to hold; the names that may not be there are left out."""
    everything: dict[str, torch.Tensor] = {}
    everything |= module.named_parameters(remove_duplicate=False)
    everything |= module.named_buffers(remove_duplicate=False)
    named = {id(one): state[name] for name, one in everything.items() if name in state}
    values = dict(module.named_buffers())
    values |= {name: named[id(one)] for name, one in everything.items() if id(one) in named}
    return {name: value for name, value in values.items() if name in own and name not in state}
