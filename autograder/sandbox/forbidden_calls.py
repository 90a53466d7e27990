"""Refuses the library functions that an exercise asks to be written, where they are carried out.

PyTorch's dispatcher is told to raise `ForbiddenCall` in place of an operator's kernels: every
alias, subclass, thread, script and compiled function ends there. What PyTorch has in Python alone,
as `clip_grad_norm_`, is replaced in the function itself, wherever it has been imported to.

In a student's notebook a `Refusal` is undone after each call. In the sandbox a process of its own
answers for the exercise, and `seal` leaves nothing in it with which its refusal could be undone.

This file is copied into the sandbox: it imports PyTorch and the standard library only.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

import torch

# The dispatcher's keys for tensors on the processor, of all layouts, with gradients and without.
KEYS = (
    *("CPU", "MkldnnCPU", "QuantizedCPU", "SparseCPU", "SparseCsrCPU", "NestedTensorCPU"),
    *("AutogradCPU", "AutogradNestedTensor", "AutogradOther"),
)


class Means(NamedTuple):
    """What carries a library function out.

    Attributes:
        operators: of PyTorch's dispatcher, in the namespace `aten` if no other is named.
        functions: of Python, for what is no operator and for decompositions of operators.
    """

    operators: str = ""
    functions: str = ""


# By the name under which a message calls it.
REFUSED = {
    "softmax": Means(
        "softmax _softmax special_softmax _safe_softmax _masked_softmax _sparse_softmax"
        " _nested_tensor_softmax_with_shape",
        "torch._refs.softmax torch._refs.special.softmax"
        " torch._decomp.decompositions._softmax torch._decomp.decompositions.safe_softmax",
    ),
    "log_softmax": Means(
        "log_softmax _log_softmax special_log_softmax _sparse_log_softmax",
        "torch._refs.log_softmax torch._refs.special.log_softmax"
        " torch._decomp.decompositions._log_softmax",
    ),
    "softmin": Means(
        "",
        "torch.nn.functional.softmin torch.masked.softmin torch._refs.nn.functional.softmin",
    ),
    "dropout": Means(
        "dropout dropout_ native_dropout _fused_dropout",
        "torch._refs.nn.functional.dropout torch._decomp.decompositions.dropout"
        " torch._decomp.decompositions.native_dropout",
    ),
    "alpha_dropout": Means(
        "alpha_dropout alpha_dropout_", "torch._refs.nn.functional.alpha_dropout"
    ),
    "feature_dropout": Means(
        "feature_dropout feature_dropout_",
        "torch.nn.functional.dropout1d torch.nn.functional.dropout2d torch.nn.functional.dropout3d",
    ),
    "feature_alpha_dropout": Means("feature_alpha_dropout feature_alpha_dropout_"),
    "scaled_dot_product_attention": Means(
        "scaled_dot_product_attention _scaled_dot_product_attention_math"
        " _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention"
        " _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"
        " _scaled_dot_product_fused_attention_overrideable",
        "torch._decomp.decompositions.scaled_dot_product_flash_attention_for_cpu",
    ),
    "multi_head_attention_forward": Means(
        "_native_multi_head_attention", "torch.nn.functional.multi_head_attention_forward"
    ),
    "MultiheadAttention": Means("", "torch.nn.MultiheadAttention.forward"),
    "TransformerEncoder": Means("", "torch.nn.TransformerEncoder.forward"),
    "TransformerEncoderLayer": Means(
        "_transformer_encoder_layer_fwd",
        "torch.nn.TransformerEncoderLayer.forward torch.nn.TransformerEncoderLayer._sa_block"
        " torch.nn.TransformerEncoderLayer._ff_block",
    ),
    "TransformerDecoderLayer": Means(
        "",
        "torch.nn.TransformerDecoderLayer.forward torch.nn.TransformerDecoderLayer._sa_block"
        " torch.nn.TransformerDecoderLayer._mha_block torch.nn.TransformerDecoderLayer._ff_block",
    ),
    "layer_norm": Means(
        "layer_norm native_layer_norm",
        "torch._refs.native_layer_norm torch._refs.nn.functional.layer_norm",
    ),
    "group_norm": Means(
        "group_norm native_group_norm",
        "torch._refs.native_group_norm torch._refs.nn.functional.group_norm",
    ),
    "batch_norm": Means(
        "batch_norm native_batch_norm _batch_norm_impl_index _batch_norm_no_update"
        " _native_batch_norm_legit _native_batch_norm_legit_no_training"
        " _native_batch_norm_legit_functional _batch_norm_with_update"
        " _batch_norm_with_update_functional",
        "torch._decomp.decompositions.native_batch_norm"
        " torch._decomp.decompositions.native_batch_norm_helper",
    ),
    "instance_norm": Means("instance_norm"),
    "rms_norm": Means("rms_norm _fused_rms_norm", "torch._decomp.decompositions._fused_rms_norm"),
    "cross_entropy": Means("cross_entropy_loss", "torch.nn.functional.linear_cross_entropy"),
    "nll_loss": Means(
        "nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward",
        "torch._refs.nn.functional.nll_loss torch._decomp.decompositions.nll_loss_forward"
        " torch._decomp.decompositions.nll_loss2d_forward",
    ),
    "gelu": Means(
        "gelu gelu_ _addmm_activation mkldnn::_linear_pointwise",
        "torch._refs.nn.functional.gelu",
    ),
    "RNN": Means(
        "rnn_tanh rnn_relu mkldnn_rnn_layer",
        "torch._decomp.decompositions.rnn_tanh_input torch._decomp.decompositions.rnn_tanh_data"
        " torch._decomp.decompositions.rnn_relu_input torch._decomp.decompositions.rnn_relu_data",
    ),
    "RNNCell": Means("rnn_tanh_cell rnn_relu_cell"),
    "GRU": Means(
        "gru",
        "torch._decomp.decompositions.gru_impl torch._decomp.decompositions.gru_impl_data",
    ),
    "GRUCell": Means(
        "gru_cell",
        "torch._decomp.decompositions.gru_cell",
    ),
    "LSTM": Means(
        "lstm",
        "torch._decomp.decompositions.lstm_impl torch._decomp.decompositions.lstm_data_impl",
    ),
    "LSTMCell": Means(
        "lstm_cell",
        "torch._decomp.decompositions.lstm_cell",
    ),
    "clip_grad_norm_": Means("", "torch.nn.utils.clip_grad.clip_grad_norm_"),
}
# Further names that exercises forbid, and what is refused for them.
ALSO = {
    "special_softmax": "softmax",
    "Dropout": "dropout",
    "dropout_": "dropout",
    "native_dropout": "dropout",
    "dropout1d": "feature_dropout",
    "dropout2d": "feature_dropout",
    "dropout3d": "feature_dropout",
    "LayerNorm": "layer_norm",
    "native_layer_norm": "layer_norm",
    "GroupNorm": "group_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "RMSNorm": "rms_norm",
    "CrossEntropyLoss": "cross_entropy",
    "cross_entropy_loss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "nll_loss_nd": "nll_loss",
    "nll_loss2d": "nll_loss",
    "GELU": "gelu",
}


class ForbiddenCall(RuntimeError):
    """A library function was called that the exercise asks to be written."""

    def __init__(self, name: str) -> None:
        super().__init__(f"torch's {name} is what this exercise asks you to write yourself")


def entry(name: str) -> str:
    """Under which name a forbidden function is refused.

    Raises:
        KeyError: nothing refuses it.
    """
    last = ALSO.get(name.split(".")[-1], name.split(".")[-1])
    if last not in REFUSED and f"aten::{last}" not in _operators():
        raise KeyError(name)
    return last


def is_refused(name: str) -> bool:
    """Whether it is known how to refuse a function, so that an exercise may forbid it."""
    try:
        entry(name)
    except KeyError:
        return False
    return True


def _means(name: str) -> Means:
    return REFUSED.get(name) or Means(f"{name} {name}_ _{name} special_{name}")


# ---------------------------------------------------------------------------------- operators


@functools.cache
def _operators() -> dict[str, list[str]]:
    """All overloads of each operator, by its name with its namespace."""
    found: dict[str, list[str]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        found.setdefault(name.split(".")[0], []).append(name)
    return found


@functools.cache
def overloads(name: str) -> tuple[str, ...]:
    """The operators, with namespace and overload, that carry out what is refused as `name`."""
    bases = (base if "::" in base else f"aten::{base}" for base in _means(name).operators.split())
    return tuple(one for base in bases for one in _operators().get(base, ()))


@functools.cache
def _kernels(name: str) -> tuple[tuple[str, str], ...]:
    """The operators of an entry, each with every key under which there is a kernel of it."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return tuple((one, key) for one in overloads(name) for key in KEYS if has_kernel(one, key))


@functools.cache
def operator(qualified: str) -> torch._ops.OpOverload:
    """What `torch.ops` has for an overload."""
    namespace, _, rest = qualified.partition("::")
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def call_anyhow(qualified: str) -> Any:
    """Call an operator with arguments of the right types and no sense, as one that refuses may be.

    Which of the dispatcher's keys answers depends on whether this is in `torch.inference_mode`.
    """
    simple = {"int": 0, "SymInt": 0, "float": 0.0, "bool": False, "str": "", "number": 0}
    given: list[Any] = []
    named: dict[str, Any] = {}
    for argument in operator(qualified)._schema.arguments:
        kind = str(argument.type)
        value: Any = simple.get(kind)
        if kind == "Tensor":
            value = torch.ones(2, 2, device="cpu")
        elif kind.startswith("List"):
            value = [torch.ones(2, 2, device="cpu")] if "Tensor" in kind else [0, 0]
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            given.append(value)
    return operator(qualified)(*given, **named)


# ---------------------------------------------------------------------------------- functions


@functools.cache
def functions(name: str) -> dict[str, types.FunctionType]:
    """The Python functions that carry it out, by where they stand; decorators taken off."""
    return {place: _function(place) for place in _means(name).functions.split()}


def _function(place: str) -> types.FunctionType:
    path, _, attribute = place.rpartition(".")
    try:
        held: Any = importlib.import_module(path)
    except ModuleNotFoundError:  # It is a class.
        module, _, name = path.rpartition(".")
        held = getattr(importlib.import_module(module), name)
    return inspect.unwrap(getattr(held, attribute))


# What stands in for a function: it is put into the function itself, whose names are not ours.
GUARD = """
def guard(*given, **named):
    from autograder.sandbox import forbidden_calls
    return forbidden_calls.carry_out({place!r}, given, named)
"""
# The functions that are guarded, as they were.
_originals: dict[str, types.FunctionType] = {}
_refusal: Refusal | None = None
# Of these operators a trace keeps nothing but the products and sums that they are made of.
TAKEN_APART = ("RNNCell", "GRUCell", "LSTMCell")
_against_traces = torch.library.Library("aten", "IMPL")


def guard(name: str) -> None:
    """Have the Python functions of an entry ask here before they do anything."""
    for place, function in functions(name).items():
        if place not in _originals:
            original = types.FunctionType(
                function.__code__, function.__globals__, function.__name__, function.__defaults__
            )
            original.__kwdefaults__ = function.__kwdefaults__
            _originals[place] = original
            made: dict[str, Any] = {}
            exec(GUARD.format(place=place), made)
            function.__code__ = made["guard"].__code__


def unguard(name: str) -> None:
    """Undo `guard`."""
    for place, function in functions(name).items():
        if place in _originals:
            function.__code__ = _originals.pop(place).__code__


def guard_everything() -> None:
    """Guard all functions for good, and look up what a refusal needs.

    To be called before any code of a student's runs: nothing that it defines, and no script that it
    makes of a library function, has the function as it was.
    """
    for name in REFUSED:
        guard(name)
    for name in TAKEN_APART:
        for qualified in overloads(name):
            _against_traces.impl(qualified.partition("::")[2], _refuse_trace, "Tracer")
    with Refusal(REFUSED) as refusal:
        refusal.unrefused()


def _refuse_trace(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("this can't be traced in a notebook that is graded")


def carry_out(place: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call the function at `place`, unless it is refused now."""
    if _refusal is not None:
        _refusal.check(place)
    # What was traced would be called without asking here.
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise RuntimeError(f"{place} can't be traced in a notebook that is graded")
    return _originals[place](*given, **named)


# ---------------------------------------------------------------------------------- refusal


class Refusal:
    """Within it the forbidden functions raise `ForbiddenCall`, and it notes each call.

    Args:
        names: as an exercise forbids them, such as "softmax" or "MultiheadAttention".

    Raises:
        KeyError: nothing refuses one of the names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.entries = tuple(dict.fromkeys(map(entry, names)))
        self._places = {place: name for name in self.entries for place in functions(name)}
        self._called: dict[str, None] = {}
        self._libraries: dict[str, Any] = {}
        self._guarded: list[str] = []
        self._sealed = False

    def __enter__(self) -> Refusal:
        global _refusal
        if self._sealed:
            return self
        _refusal = self
        for name in self.entries:
            if not functions(name).keys() <= _originals.keys():
                guard(name)
                self._guarded.append(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that kernels are overridden.
            for name in self.entries:
                refuse = functools.partial(self._refuse, name)
                for qualified, key in _kernels(name):
                    namespace, _, rest = qualified.partition("::")
                    self._library(namespace).impl(rest, key, refuse, False)
        return self

    def __exit__(self, *_: object) -> None:
        global _refusal
        if self._sealed:
            return
        while self._libraries:
            self._libraries.popitem()[1].reset()
        while self._guarded:
            unguard(self._guarded.pop())
        _refusal = None

    def _library(self, namespace: str) -> Any:
        # What `torch.library.Library` holds. That leaves traces from which it could be undone.
        if namespace not in self._libraries:
            library = torch._C._dispatch_library("IMPL", namespace, "", __file__, 0)
            self._libraries[namespace] = library
        return self._libraries[namespace]

    def _refuse(self, name: str, *_: Any, **__: Any) -> NoReturn:
        self._called[name] = None
        raise ForbiddenCall(name)

    def check(self, place: str) -> None:
        """Raise `ForbiddenCall` if the function at `place` is refused."""
        if place in self._places:
            self._refuse(self._places[place])

    def take(self) -> list[str]:
        """What was called since this was last asked."""
        called = list(self._called)
        self._called.clear()
        return called

    def seal(self) -> None:
        """Make it last as long as this process: nothing leads back to what it has replaced."""
        self._sealed = True
        for library in self._libraries.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # It would undo when it is freed.
        self._libraries.clear()
        for place in self._places:
            _originals.pop(place, None)

    def unrefused(self) -> list[str]:
        """Try all that is refused, and name what is not; nothing should ever be."""
        found = [name for name in self.entries if not all(map(_is_refused, self._attempts(name)))]
        self.take()
        return found

    def _attempts(self, name: str) -> Iterator[Callable[[], Any]]:
        for qualified, key in _kernels(name):
            if key in ("CPU", "AutogradCPU"):
                yield functools.partial(_call_under, key, qualified)
        yield from functions(name).values()


def _call_under(key: str, qualified: str) -> None:
    with torch.inference_mode(key == "CPU"):
        call_anyhow(qualified)


def _is_refused(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except ForbiddenCall:
        return True
    except Exception:
        return False
    return False
