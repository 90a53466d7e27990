"""Requests are carried out on any namespace, and whatever happens becomes an outcome."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from autograder.executor import (
    GLOBAL_GENERATOR,
    MOST_LISTED,
    Executor,
    clone_input,
    same_tensor,
)
from autograder.proxy import Generator, Proxy, StudentError


def call(function, *args, **options):
    request = {"op": "call", "name": "f", "args": list(args), "kwargs": {}, **options}
    return Executor({"f": function}).execute(request)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(1, 4).expand(3, 4),
        torch.randn(6, 4)[::2],
        torch.randn(12).as_strided((3, 1, 4), (4, 99, 1)),
        torch.randn(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.randn(2, 3)),
        torch.randn(()),
        torch.empty(0, 3),
    ],
    ids=[
        *["contiguous", "transposed", "expanded", "strided", "unusual", "leaf", "parameter"],
        *["scalar", "empty"],
    ],
)
def test_a_cloned_input_has_the_same_layout_and_no_shared_memory(tensor):
    copy = clone_input(tensor)
    assert type(copy) is torch.Tensor
    assert not copy.requires_grad
    assert same_tensor(copy, tensor)
    if tensor.numel() and 0 not in tensor.stride():
        assert copy.stride() == tensor.stride()
    if tensor.numel():
        assert copy.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("grad", [False, True])
def test_inputs_changed_in_place_are_named_and_the_originals_kept(grad):
    x, y = torch.zeros(2), torch.zeros(2)
    outcome = call(lambda a, b: b.add_(1), x, y, grad=grad)
    assert outcome["mutated"] == ["1"]
    assert y.tolist() == [0, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.append(4),
        lambda a: a[1].sort(),
        lambda a: a[1].__setitem__(0, 7),
        lambda a: a.clear(),
    ],
    ids=["longer", "sorted inside", "another number", "emptied"],
)
def test_lists_changed_in_place_are_named_too(change):
    given = [1, [3, 2]]
    assert call(lambda kept, a: change(a), [5, [6]], given)["mutated"] == ["1"]
    assert given == [1, [3, 2]]
    assert call(lambda kept, a: [*a, 4], [5, [6]], given)["mutated"] == []


def test_gradients_are_those_of_autograd():
    x = torch.randn(3, dtype=torch.float64)
    outcome = call(lambda a: a**3, x, grad=True, cotangent=7)
    cotangent = torch.randn(3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    assert torch.allclose(outcome["grads"]["0"], 3 * x**2 * cotangent)


def test_gradients_reach_transposed_and_expanded_inputs():
    for x in (torch.randn(3, 2).t(), torch.randn(1, 3).expand(2, 3)):
        outcome = call(lambda a: a * 2, x, grad=True)
        assert outcome["kind"] == "value"
        assert outcome["grads"]["0"].shape == x.shape


def test_no_gradient_at_all_is_none():
    assert call(lambda a: a.detach(), torch.randn(2), grad=True)["grads"] == {"0": None}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NotImplementedError("yours"), "todo"),
        (ValueError("bad"), "error"),
        (SystemExit(0), "error"),
        (RecursionError(), "error"),
        (MemoryError(), "memory"),
    ],
)
def test_what_is_raised_becomes_an_outcome(error, kind):
    def f():
        raise error

    assert call(f)["kind"] == kind


def test_the_names_of_an_exceptions_bases_are_kept():
    class Own(ValueError):
        pass

    def f():
        raise Own("x")

    assert call(f)["types"][:2] == ["Own", "ValueError"]


def test_an_exception_whose_text_fails_is_still_an_outcome():
    class Hostile(Exception):
        def __str__(self):
            raise RuntimeError

    def f():
        raise Hostile

    assert call(f)["type"] == "Hostile"


def test_a_call_leaves_no_trace_in_the_random_state():
    torch.manual_seed(3)
    random.seed(3)
    expected = (torch.rand(1).item(), random.random())
    torch.manual_seed(3)
    random.seed(3)
    call(lambda: (torch.rand(5), random.random()), rng=1)
    assert (torch.rand(1).item(), random.random()) == expected


def test_the_same_request_draws_the_same_numbers():
    first, second = (call(lambda: torch.rand(3), rng=9)["value"] for _ in range(2))
    assert torch.equal(first, second)


def test_parameters_and_subclasses_come_back_as_plain_tensors():
    value = call(lambda: torch.nn.Parameter(torch.ones(1)))["value"]
    assert type(value) is torch.Tensor
    assert not value.requires_grad


def test_state_is_loaded_strictly_and_differences_are_said():
    request = {
        "op": "create",
        "handle": 1,
        "name": "L",
        "kwargs": {"in_features": 2, "out_features": 3},
        "state": {"weight": torch.zeros(2, 2), "extra": torch.zeros(1)},
    }
    outcome = Executor({"L": torch.nn.Linear}).execute(request)
    assert outcome["type"] == "StateMismatch"
    for words in ("missing extra", "not asked for: bias", "(3, 2) instead of (2, 2)"):
        assert words in outcome["message"]


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.again = self.layer


class Peculiar(Plain):
    """Takes its values from the state in a way of its own."""

    def _load_from_state_dict(self, state, prefix, *rest):
        super()._load_from_state_dict({k: 2 * v for k, v in state.items()}, prefix, *rest)


class Hooked(Plain):
    def __init__(self):
        super().__init__()
        self.layer.register_load_state_dict_pre_hook(
            lambda module, state, prefix, *_: state[f"{prefix}bias"].mul_(3)
        )


@pytest.mark.parametrize("kind", [Plain, Peculiar, Hooked])
def test_state_is_loaded_as_pytorch_loads_it(kind):
    state = {
        "layer.weight": torch.tensor([[1.0, 2.0]]),
        "layer.bias": torch.ones(1),
        "count": torch.tensor(7),
        "again.weight": torch.tensor([[5.0, 6.0]]),
        "again.bias": torch.ones(1),
    }
    given = {name: value.clone() for name, value in state.items()}
    expected = kind()
    expected.load_state_dict({name: value.clone() for name, value in state.items()})
    executor = Executor({"K": kind})
    assert executor.execute({"op": "create", "handle": 1, "name": "K", "state": state})["kind"]
    for name, value in expected.state_dict().items():
        assert torch.equal(executor.handles[1].state_dict()[name], value), name
        assert torch.equal(state[name], given[name]), name
    assert all(parameter.requires_grad for parameter in executor.handles[1].parameters())


def test_a_class_that_is_no_module_is_said():
    outcome = Executor({"C": dict}).execute({"op": "create", "handle": 1, "name": "C"})
    assert outcome["type"] == "NotAModule"


def test_a_step_of_gradient_descent_moves_the_parameters_against_the_gradient():
    executor = Executor({"L": torch.nn.Linear})
    state = {"weight": torch.ones(1, 2)}
    kwargs = {"in_features": 2, "out_features": 1, "bias": False}
    create = {"op": "create", "handle": 1, "name": "L", "kwargs": kwargs, "state": state}
    assert executor.execute(create)["kind"] == "value"
    invoke = {"handle": 1, "args": [torch.ones(1, 2)], "kwargs": {}, "rng": 4}
    gradient = executor.execute({"op": "invoke", "grad": True, **invoke})["grads"]
    moved = executor.execute({"op": "step", "lr": 0.5, **invoke})["value"]["state"]["weight"]
    assert torch.allclose(moved, state["weight"] - 0.5 * gradient["parameter weight"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.softmax(x, -1),
        lambda x: x.softmax(-1),
        lambda x: torch.nn.Softmax(-1)(x),
        lambda x: torch.special.softmax(x, -1),
        lambda x: torch._C._nn.__class__ and torch.softmax(x, -1),
    ],
)
def test_a_watched_function_is_seen_by_any_alias(function):
    outcome = call(function, torch.randn(2, 3), forbids=["softmax"])
    assert outcome["forbidden"] == ["softmax"]


def test_a_forbidden_module_is_watched_through_its_function():
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(1, 3, 4)
    outcome = call(lambda a: attention(a, a, a)[0], x, forbids=["nn.MultiheadAttention"])
    assert outcome["forbidden"]


def test_keys_added_to_a_given_dict_or_taken_from_it_are_changes():
    def f(state):
        state["new"] = torch.ones(1)
        del state["old"]

    assert sorted(call(f, {"old": torch.zeros(1)})["mutated"]) == ["0.new", "0.old"]


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return x * self.factor * (2 if self.training else 1)


@pytest.mark.parametrize(("training", "expected"), [(False, 3.0), (True, 6.0)])
def test_a_module_made_earlier_can_be_an_argument(training, expected):
    proxy = Proxy(Executor({"Scale": Scale, "apply": lambda model, x: model(x)}).execute)
    module = proxy.module("Scale")
    seen = proxy.observe("apply", module.train() if training else module, x=torch.ones(()))
    assert seen.value.item() == expected
    assert set(seen.grads) == {"x", "parameter factor"}
    assert seen.mutated == []


class Twice(torch.nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x, last=None):
        x = self.part(self.part(x))
        return x if last is None else last(x)


def test_a_module_may_be_made_from_modules_by_a_function_and_be_given_one_when_called():
    names = {"Scale": Scale, "twice": lambda part: Twice(part)}
    proxy = Proxy(Executor(names).execute)
    first, last = proxy.module("Scale"), proxy.module("Scale")
    twice = proxy.module("twice", part=first)
    assert twice.parameters() == {"part.factor": []}
    seen = twice.observe(torch.ones(()), last=last.train())
    assert seen.value.item() == 54.0  # 3 * 3, and 6 in training mode
    assert seen.grads["parameter part.factor"].item() != 0
    assert seen.grads["parameter factor"].item() != 0


def test_what_is_asked_aside_reaches_the_same_modules_and_leaves_no_trace():
    proxy = Proxy(Executor({"Scale": Scale}).execute, rng=5)
    module = proxy.module("Scale")
    asked = len(proxy.transcript)
    aside = proxy.aside()
    other, same = aside.module("Scale"), module.train().through(aside)
    assert same(torch.ones(())).item() == 3.0  # in eval mode
    other.step(torch.ones(()))
    assert same.state() == module.state() != other.state()
    assert len(proxy.transcript) == asked + 1  # the state of `module`


def test_a_method_of_a_module_is_observed_with_gradients():
    proxy = Proxy(Executor({"Scale": Scale}).execute)
    module = proxy.module("Scale")
    seen = module.observe_method("forward", torch.ones(()))
    assert seen.value.item() == module.method("forward", torch.ones(())).item() == 3.0
    assert seen.grads["parameter factor"].item() != 0
    assert module.observe_method("forward", torch.ones(()), grad=False).grads == {}


def test_a_function_can_train_a_module_where_gradients_are_recorded():
    def descend(model, x):
        model(x).backward()
        with torch.no_grad():
            model.factor -= model.factor.grad
        return model.factor.item()

    proxy = Proxy(Executor({"Scale": Scale, "descend": descend}).execute)
    module = proxy.module("Scale")
    assert proxy.training("descend", module, torch.tensor(2.0)) == 1.0
    assert module.state()["factor"].item() == 1.0
    with pytest.raises(StudentError):
        proxy._call("descend", module, torch.tensor(2.0))


def test_gradients_left_by_one_step_of_training_are_there_at_the_next():
    def descend(model, x):
        model(x).backward()
        return float(model.factor.grad)

    proxy = Proxy(Executor({"Scale": Scale, "descend": descend}).execute)
    module = proxy.module("Scale")
    assert proxy.training("descend", module, torch.tensor(2.0)) == 2.0
    assert proxy.training("descend", module, torch.tensor(2.0)) == 4.0


def test_a_module_of_torch_that_the_namespace_has_imported_can_be_made():
    executor = Executor({"nn": torch.nn, "width": lambda table: table.embedding_dim})
    student = Proxy(executor.execute)
    table = student.module("nn.Embedding", num_embeddings=5, embedding_dim=3)
    assert dict(table.parameters()) == {"weight": [5, 3]}
    assert student.width(table) == 3
    with pytest.raises(StudentError, match="Embeding"):
        student.module("nn.Embeding", num_embeddings=5, embedding_dim=3)


def test_a_generator_with_a_seed_may_be_an_argument():
    def draw(count, generator=None):
        return torch.rand(count, generator=generator)

    proxy = Proxy(Executor({"draw": draw}).execute)
    first, again, other = (
        proxy.drawing("draw", 3, generator=Generator(seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(first.value, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(first.value, again.value)
    assert not torch.equal(first.value, other.value)
    assert first.mutated == []


def test_it_is_seen_whether_the_global_generator_moves():
    def draw(put_back):
        state = torch.get_rng_state()
        value = torch.rand(2)
        if put_back:
            torch.set_rng_state(state)
        return value

    proxy = Proxy(Executor({"draw": draw}).execute)
    assert proxy.drawing("draw", False).mutated == [GLOBAL_GENERATOR]
    assert proxy.drawing("draw", True).mutated == []
    assert proxy.observe("draw", False, grad=False).mutated == []


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ([{"params": (n for n in (1, 2))}, {"params": filter(None, [0, 3])}], [[1, 2], [3]]),
        (({"params": [1]}, {"params": ()}), [[1], ()]),
    ],
)
def test_what_a_dict_holds_as_an_iterator_becomes_a_list(answer, value):
    outcome = call(lambda: answer)
    assert type(outcome["value"]) is type(answer)
    assert [group["params"] for group in outcome["value"]] == value


def test_an_iterator_without_end_does_not_hang():
    assert len(call(lambda: {"params": itertools.count()})["value"]["params"]) == MOST_LISTED


class Tied(torch.nn.Module):
    """A table that is also the output matrix, and a mask that is kept as a buffer."""

    def __init__(self, further=False):
        super().__init__()
        self.token = torch.nn.Embedding(3, 2)
        self.head = torch.nn.Linear(2, 3, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("mask", torch.ones(2, 2).tril())
        if further:
            self.gain = torch.nn.Parameter(torch.ones(2))

    def forward(self, ids):
        return self.head(self.mask @ self.token(ids))


@pytest.mark.parametrize("hooked", [False, True])
def test_a_second_name_of_a_parameter_and_a_buffer_need_not_be_named(hooked):
    class Maybe(Tied):
        if hooked:

            def _load_from_state_dict(self, *args):
                super()._load_from_state_dict(*args)

    student = Proxy(Executor({"Maybe": Maybe}).execute)
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    module = student.module("Maybe", state={"token.weight": table})
    assert torch.equal(
        module(torch.tensor([0, 2])), torch.tril(torch.ones(2, 2)) @ table[[0, 2]] @ table.T
    )
    with pytest.raises(StudentError, match=r"missing table\.weight; not asked for: token\.weight"):
        student.module("Maybe", state={"table.weight": table})
    with pytest.raises(StudentError, match="not asked for: gain"):
        student.module("Maybe", state={"token.weight": table}, further=True)
