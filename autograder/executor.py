"""Carries out requests on one implementation: a student's, the reference, or a wrong one.

A request is a plain dict (call a function, create a module, invoke it, ...) and so is the
outcome. The same executor serves behind the wire in the sandbox, in the student's notebook,
and in the trusted process for the reference, the misconceptions and the mutants, so that all
of them are asked in exactly the same way.

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Request = dict[str, Any]
Outcome = dict[str, Any]

MESSAGE_LIMIT = 500

# A module's forward ends in these functions, so that forbidding the module means watching them.
MODULE_FUNCTIONS = {
    "MultiheadAttention": ("multi_head_attention_forward", "_native_multi_head_attention"),
    "Dropout": ("dropout", "dropout_"),
    "Softmax": ("softmax",),
    "LogSoftmax": ("log_softmax",),
    "LayerNorm": ("layer_norm",),
    "GELU": ("gelu",),
    "RNN": ("rnn_tanh", "rnn_relu"),
    "RNNCell": ("rnn_tanh_cell", "rnn_relu_cell"),
    "GRU": ("gru",),
    "GRUCell": ("gru_cell",),
    "LSTM": ("lstm",),
    "LSTMCell": ("lstm_cell",),
}

# The key of a dict that stands for a module made by an earlier request, in a request's arguments.
MODULE = "__module__"
# The key of a dict that stands for a new random generator; its value is the seed.
GENERATOR = "__generator__"
# How PyTorch's own generator is called among the things that a function has changed in place.
GLOBAL_GENERATOR = "torch.default_generator"
# The most that is taken out of a generator in an answer.
MOST_LISTED = 10_000


# The types of torch's compiled functions and methods.
BUILT_IN = frozenset(
    [types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType]
)


@functools.lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """One name for the aliases of a function: `special_softmax`, `_softmax` and `softmax.int`."""
    return name.split(".")[0].removeprefix("special").strip("_")


def watched_functions(forbids: list[str] | tuple[str, ...]) -> frozenset[str]:
    """The names of torch functions to watch for: `nn.MultiheadAttention` becomes its functions."""
    watched: set[str] = set()
    for entry in forbids:
        name = entry.split(".")[-1]
        watched.update(MODULE_FUNCTIONS.get(name, (name,)))
    return frozenset(canonical(name) for name in watched)


class _Watch(TorchFunctionMode):
    """Notes which of the watched torch functions run, by whatever alias they were reached."""

    def __init__(self, watched: frozenset[str]) -> None:
        super().__init__()
        self.watched = watched
        self.seen: list[str] = []
        self.harmless: set[Callable[..., Any]] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        # Every torch call of the exercise comes this way; most are known to be harmless.
        if type(func) not in BUILT_IN or func not in self.harmless:
            self._judge(func)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _judge(self, func: Callable[..., Any]) -> None:
        name = canonical(getattr(func, "__name__", ""))
        if name not in self.watched:
            # Only what compares by identity may be remembered: an object of the student's own
            # could call itself equal to the function that is watched for.
            if type(func) in BUILT_IN:
                self.harmless.add(func)
        elif name not in self.seen:
            self.seen.append(name)


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


def walk(value: Any, label: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor inside nested lists, tuples and dicts, with a label such as `0` or `mask`."""
    if isinstance(value, torch.Tensor):
        yield label, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, f"{label}.{index}" if label else str(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, f"{label}.{key}" if label else str(key))


def _tensors(arguments: list[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Every tensor among arguments, by the label of its argument and its place in there."""
    found: dict[str, torch.Tensor] = {}
    for label, value in arguments:
        if isinstance(value, torch.Tensor):
            found[label] = value
        elif isinstance(value, (list, tuple, dict)):
            found.update(walk(value, label))
    return found


def _arguments(args: list[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Arguments by label: those without a name are numbered."""
    return [*((str(i), value) for i, value in enumerate(args)), *kwargs.items()]


def transform(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same nesting of lists, tuples and dicts with `change` applied to every tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list):
        return [transform(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple(transform(item, change) for item in value)
    if isinstance(value, dict):
        return {key: transform(item, change) for key, item in value.items()}
    return value


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


def _changed_lists(given: list[tuple[str, Any]], inputs: list[tuple[str, Any]]) -> Iterator[str]:
    """Labels of arguments in which something else than a tensor was changed in place."""
    for (label, before), (_, after) in zip(given, inputs, strict=True):
        if isinstance(before, (list, dict, tuple)) and not _same_lists(before, after):
            yield label


def _same_lists(before: Any, after: Any) -> bool:
    """Equal but for tensors and modules, which are compared elsewhere or not at all."""
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
    return before is after or bool(before == after)


def _with_modules(value: Any, handles: dict[int, torch.nn.Module]) -> Any:
    """The same nesting with the module or generator itself wherever a dict stands for one."""
    if isinstance(value, dict):
        if set(value) == {MODULE}:
            return handles[value[MODULE]]
        if set(value) == {GENERATOR}:
            return torch.Generator().manual_seed(value[GENERATOR])
        return {key: _with_modules(item, handles) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_modules(item, handles) for item in value)
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


class _NotAModule(Exception):
    pass


_AS_IT_IS = contextlib.nullcontext()


class _StateMismatch(Exception):
    pass


class Executor:
    """Runs requests against `namespace`, the names that an implementation defines.

    With `alone` nothing but requests draws random numbers in this process, so that the state of
    the generators need not be put back after each.
    """

    def __init__(self, namespace: dict[str, Any], *, alone: bool = False) -> None:
        self.namespace = namespace
        self.watching = True  # False for code of which `innocent` knows that it is harmless
        self.alone = alone
        self.handles: dict[int, torch.nn.Module] = {}

    def execute(self, request: Request) -> Outcome:
        """Carry out one request. Whatever the implementation does becomes an outcome."""
        states = None if self.alone else (random.getstate(), torch.get_rng_state())
        try:
            # The generator itself: torch.manual_seed also queues work for absent accelerators.
            torch.default_generator.manual_seed(request.get("rng", 0))
            random.seed(request.get("rng", 0))
            return getattr(self, f"_op_{request['op']}")(request)
        except NotImplementedError as error:
            return {"kind": "todo", "message": _text(error)[:MESSAGE_LIMIT]}
        except _MissingName as error:
            return {"kind": "missing", "message": str(error)}
        except MemoryError:
            return {"kind": "memory", "message": "the code asked for more memory than it may have"}
        except RecursionError as error:
            return self._error(error)
        except (Exception, SystemExit, GeneratorExit) as error:
            if "DefaultCPUAllocator" in _text(error):
                return {
                    "kind": "memory",
                    "message": "the code asked for more memory than it may have",
                }
            return self._error(error)
        finally:
            if states is not None:
                random.setstate(states[0])
                torch.set_rng_state(states[1])

    # One method for each kind of request.

    def _op_call(self, request: Request) -> Outcome:
        return self._run(self._named(request["name"]), request, self._given_modules(request))

    def _op_create(self, request: Request) -> Outcome:
        cls = self._named(request["name"])
        kwargs = transform(request.get("kwargs", {}), clone_input)
        if request.get("modules"):
            kwargs = _with_modules(kwargs, self.handles)
        module = cls(**kwargs)
        if not isinstance(module, torch.nn.Module):
            raise _NotAModule(f"{request['name']}(...) is not a torch.nn.Module")
        if request.get("dtype"):
            module = module.to(getattr(torch, request["dtype"]))
        if request.get("state") is not None:
            _load_state(module, request["state"])
        module.eval()
        self.handles[request["handle"]] = module
        return {"kind": "value", "value": None, "mutated": [], "grads": {}, "forbidden": []}

    def _op_invoke(self, request: Request) -> Outcome:
        module = self.handles[request["handle"]]
        module.train(bool(request.get("training", False)))
        method = request.get("method", "forward")
        function = module if method == "forward" else getattr(module, method)
        parameters = self._given_modules(request)
        parameters.update(module.named_parameters())
        return self._run(function, request, parameters)

    def _op_inspect(self, request: Request) -> Outcome:
        module = self.handles[request["handle"]]
        value = {
            "parameters": {name: list(p.shape) for name, p in module.named_parameters()},
            "buffers": {name: list(b.shape) for name, b in module.named_buffers()},
            "state": {name: _plain(tensor) for name, tensor in module.state_dict().items()},
        }
        return {"kind": "value", "value": value, "mutated": [], "grads": {}, "forbidden": []}

    def _op_step(self, request: Request) -> Outcome:
        module = self.handles[request["handle"]]
        outcome = self._op_invoke({**request, "grad": True, "training": False})
        if outcome["kind"] != "value":
            return outcome
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                gradient = outcome["grads"].get(f"parameter {name}")
                if gradient is not None:
                    parameter -= request["lr"] * gradient
        return self._op_inspect(request)

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

        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            copy = clone_input(tensor)
            if with_grad and copy.is_floating_point():
                leaf = copy.requires_grad_()
                leaves.append(leaf)
                # A view of a leaf may not be written to; the function gets a copy instead, so
                # that writing to an input is noticed below rather than refused by autograd.
                return _identity(leaf)
            return copy

        given = _arguments(request.get("args", []), request.get("kwargs", {}))
        args = [transform(value, fresh) for value in request.get("args", ())]
        kwargs = {key: transform(value, fresh) for key, value in request.get("kwargs", {}).items()}
        if request.get("modules") or request.get("generators"):
            args, kwargs = _with_modules((args, kwargs), self.handles)
        if not request.get("autograd"):  # what an earlier step of training has left must stay
            for parameter in parameters.values():
                parameter.grad = None
        forbids = request.get("forbids") if self.watching else None
        watch = _Watch(watched_functions(tuple(forbids))) if forbids else None
        chance = torch.get_rng_state() if request.get("still") else None
        with (
            watch or _AS_IT_IS,
            _AS_IT_IS if with_grad or request.get("autograd") else torch.no_grad(),
        ):
            value = _listed(function(*args, **kwargs))
        moved = chance is not None and not torch.equal(chance, torch.get_rng_state())

        inputs = _arguments(args, kwargs)
        before, after = _tensors(given), _tensors(inputs)
        # A key added to a dict, or taken from it, is a change like any other.
        mutated = [
            label
            for label in (before if before.keys() == after.keys() else {**before, **after})
            if label not in before
            or label not in after
            or not same_tensor(before[label], after[label])
        ]
        named = {label.split(".")[0] for label in mutated}
        mutated += [label for label in _changed_lists(given, inputs) if label not in named]
        mutated += [GLOBAL_GENERATOR] * moved
        grads: dict[str, torch.Tensor | None] = {}
        if with_grad:
            floating = [label for label, tensor in before.items() if tensor.is_floating_point()]
            labelled = dict(zip(floating, leaves, strict=True))
            for name, parameter in parameters.items():
                labelled[f"parameter {name}"] = parameter
            grads = _gradients(value, labelled, request.get("cotangent", 0))
        return {
            "kind": "value",
            "value": transform(value, _plain),
            "mutated": mutated,
            "grads": grads,
            "forbidden": list(watch.seen) if watch else [],
        }

    def _error(self, error: BaseException) -> Outcome:
        where = ""
        frame = error.__traceback__
        while frame is not None:
            # The last frame that runs in the implementation's own names is the line to show.
            if frame.tb_frame.f_globals is self.namespace:
                code = frame.tb_frame.f_code
                text = linecache.getline(code.co_filename, frame.tb_lineno).strip()
                where = f"line {frame.tb_lineno}" + (f": {text}" if text else "")
            frame = frame.tb_next
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
            term = (output * cotangent.to(output.dtype)).sum()
            total = term if total is None else total + term
    if total is None:
        return dict.fromkeys(labelled)
    grads = torch.autograd.grad(total, list(labelled.values()), allow_unused=True)
    return {
        name: None if grad is None else _plain(grad)
        for name, grad in zip(labelled, grads, strict=True)
    }


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
    if all(map(_is_loaded_plainly, module.modules())):
        with torch.no_grad():
            for name, value in state.items():
                own[name].copy_(value)
    else:
        module.load_state_dict(transform({**state, **values}, clone_input), strict=True)


def _values_of_further(
    module: torch.nn.Module, state: dict[str, torch.Tensor], own: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What names that `state` has not are to hold; the names that may not be there are left out."""
    everything = dict(module.named_parameters(remove_duplicate=False))
    everything |= module.named_buffers(remove_duplicate=False)
    named = {id(one): state[name] for name, one in everything.items() if name in state}
    values = dict(module.named_buffers())
    values |= {name: named[id(one)] for name, one in everything.items() if id(one) in named}
    return {name: value for name, value in values.items() if name in own and name not in state}


_LOADING = ("state_dict", "_save_to_state_dict", "load_state_dict", "_load_from_state_dict")
_HOOKS = (
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


def _is_loaded_plainly(module: torch.nn.Module) -> bool:
    """Whether PyTorch would only copy values into a module's own parameters and buffers."""
    kind, own = type(module), vars(module)
    return not any(
        getattr(kind, name) is not getattr(torch.nn.Module, name) or name in own
        for name in _LOADING
    ) and not any(own.get(name) for name in _HOOKS)
