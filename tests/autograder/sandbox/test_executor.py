"""Requests are carried out on any namespace, and whatever happens becomes an outcome."""

from __future__ import annotations

import copy
import itertools
import random
import warnings

import pytest
import torch

from autograder.judging.proxy import Generator, Proxy, StudentError
from autograder.sandbox.executor import (
    COPIED,
    GLOBAL_GENERATOR,
    GRAPH,
    MOST_LISTED,
    SCATTERED,
    Executor,
    clone_input,
    same_tensor,
    walk,
)


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


def test_the_gradient_of_a_frozen_parameter_is_none():
    class Layer(torch.nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.bias.requires_grad_(False)

    executor = Executor({"Layer": Layer})
    executor.execute({"op": "create", "handle": 1, "name": "Layer", "kwargs": {}})
    asked = {"op": "invoke", "handle": 1, "args": [torch.randn(2)], "kwargs": {}, "grad": True}
    grads = executor.execute(asked)["grads"]
    assert grads["parameter bias"] is None
    assert grads["parameter weight"] is not None


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


def test_it_is_seen_whether_a_function_keeps_something_for_a_backward_pass():
    def quiet(model, x):
        torch.set_grad_enabled(False)
        return model(x).item()

    names = {"Scale": Scale, "loud": lambda model, x: model(x).item(), "quiet": quiet}
    proxy = Proxy(Executor(names).execute)
    module = proxy.module("Scale")
    with torch.enable_grad():
        assert proxy.recording("loud", module, torch.tensor(2.0)).mutated == [GRAPH]
        assert proxy.recording("quiet", module, torch.tensor(2.0)).mutated == []
        assert torch.is_grad_enabled()


def test_it_is_seen_where_the_tensors_of_an_answer_lie():
    def turned(state):
        return {"same": state["a"], "view": state["a"].T, "new": state["a"].T.contiguous()}

    seen = Proxy(Executor({"turned": turned}).execute).placing("turned", {"a": torch.ones(2, 3)})
    assert seen.mutated == [f"{SCATTERED}view", f"{COPIED}new"]


def test_calls_of_a_method_of_the_given_modules_are_counted_in_one_call():
    class Source(torch.nn.Module):
        def encode(self, x):
            return x + 1

    def twice(model, x):
        return model.encode(model.encode(x))

    proxy = Proxy(Executor({"Source": Source, "twice": twice}).execute)
    module = proxy.module("Source")
    for _ in range(2):
        assert proxy.calls("encode", "twice", module, torch.zeros(1)) == 2
    assert proxy.twice(module, torch.zeros(1)).item() == 2


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


class Watched(torch.nn.Module):
    """Says in which mode each of its parts is, and shares one of them."""

    def __init__(self, part=torch.nn.Identity):
        super().__init__()
        self.first = torch.nn.Linear(2, 2)
        self.parts = torch.nn.ModuleList([part(), torch.nn.Dropout(0.5)])
        self.nothing = None
        self.register_module("absent", None)
        self.register_parameter("none", None)
        self.last = self.first
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("table", torch.ones(2))
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, x):
        modes = {name: module.training for name, module in self.named_modules()}
        return self.last(self.first(x)) * self.scale, modes


class Frozen(torch.nn.Dropout):
    """Stays in eval mode whatever it is told."""

    def train(self, mode=True):
        return super().train(False)


class Childless(torch.nn.Sequential):
    """Keeps its parts to itself."""

    def __init__(self):
        super().__init__(torch.nn.Linear(1, 1))

    def children(self):
        return iter(())


class Stubborn(torch.nn.Module):
    """Has its mode as a property."""

    @property
    def training(self):
        return True

    @training.setter
    def training(self, mode):
        pass


class Listening(torch.nn.Module):
    """Multiplies by two whatever is assigned to it as a mode."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value if name != "training" else not value)


class Renaming(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def named_parameters(self, *args, **kwargs):
        return [("own", self.weight)]

    def named_modules(self, *args, **kwargs):
        return iter([("renamed", self)])


def instance():
    """A module whose own attribute stands before PyTorch's method."""
    module = torch.nn.Dropout()
    module.train = lambda mode=True: module
    return module


PARTS = [
    *(torch.nn.Identity, torch.nn.GRU, torch.nn.BatchNorm1d, Frozen, Childless, Stubborn),
    *(Listening, Renaming, instance),
]


def made(part):
    if part is torch.nn.GRU:
        return part(2, 2)
    return part(2) if part is torch.nn.BatchNorm1d else part()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_a_module_is_put_in_its_mode_and_its_parameters_are_named_as_by_pytorch(part, training):
    executor = Executor({"W": lambda: Watched(lambda: made(part))})
    assert executor.execute({"op": "create", "handle": 1, "name": "W"})["kind"] == "value"
    module = executor.handles[1]
    expected = Watched(lambda: made(part))
    expected.eval()
    modes = {name: one.training for name, one in expected.named_modules()}
    assert {name: one.training for name, one in module.named_modules()} == modes
    request = {"op": "invoke", "handle": 1, "args": [torch.ones(2)], "training": training}
    outcome = executor.execute({**request, "grad": True})
    expected.train(training)
    modes = {name: one.training for name, one in expected.named_modules()}
    assert outcome["value"][1] == modes
    names = [f"parameter {name}" for name, _ in expected.named_parameters()]
    assert list(outcome["grads"]) == ["0", *names]
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    executor.execute(request)
    unnamed = {parameter for parameter in module.parameters() if parameter.grad is not None}
    assert unnamed.isdisjoint(parameter for _, parameter in module.named_parameters())


def test_a_module_is_asked_itself_for_eval_mode():
    class Loud(torch.nn.Module):
        def eval(self):
            self.asked = True
            return super().eval()

    executor = Executor({"L": Loud})
    executor.execute({"op": "create", "handle": 1, "name": "L"})
    assert executor.handles[1].asked


@pytest.mark.parametrize("state", [None, {}])
def test_a_module_inside_itself_or_never_set_up_is_an_error(state):
    class Endless(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.again = self

    class Bare(torch.nn.Module):
        def __init__(self):
            self.training = True

    executor = Executor({"E": Endless, "B": Bare})
    create = {"op": "create", "handle": 1, "state": state}
    assert executor.execute({**create, "name": "E"})["type"] == "RecursionError"
    outcome = executor.execute({**create, "name": "B"})
    assert outcome["type"] == "AttributeError"
    assert "'Bare' object has no attribute" in outcome["message"]


class Tenfold(torch.nn.Module):
    """Becomes ten times as large when it is converted."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def _apply(self, fn, recurse=True):
        return super()._apply(lambda tensor: fn(10 * tensor.detach()), recurse)


class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("waves", torch.ones(1, dtype=torch.complex64))


@pytest.mark.parametrize("part", [*PARTS, Tenfold, Waves], ids=lambda part: part.__name__)
def test_a_module_is_converted_as_pytorch_converts_it(part):
    torch.manual_seed(1)
    given = Watched(lambda: made(part))
    executor = Executor({"give": lambda: copy.deepcopy(given)})
    if part is instance:
        executor = Executor({"give": lambda: given})  # its `train` knows one module only
    expected = copy.deepcopy(given)
    create = {"op": "create", "handle": 1, "name": "give", "dtype": "float64"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert executor.execute(create)["kind"] == "value"
        expected.to(torch.float64)
    module = executor.handles[1]
    assert module.last is module.first
    state = module.state_dict()
    assert list(state) == list(expected.state_dict())
    for name, value in expected.state_dict().items():
        assert state[name].dtype == value.dtype, name
        assert same_tensor(state[name], value), name
    assert module.passing.dtype == torch.float64
    assert module.count.dtype == torch.int64
    assert all(isinstance(one, torch.nn.Parameter) for one in module.parameters())


@pytest.mark.parametrize("part", [torch.nn.Identity, Frozen], ids=lambda part: part.__name__)
def test_a_state_says_nothing_of_what_is_not_kept(part):
    executor = Executor({"W": lambda: Watched(part)})
    state = {name: torch.full_like(value, 2) for name, value in Watched().state_dict().items()}
    create = {"op": "create", "handle": 1, "name": "W", "state": state}
    assert executor.execute(create)["kind"] == "value"
    module = executor.handles[1]
    assert all((value == 2).all() for value in module.state_dict().values())
    assert module.passing.tolist() == [1, 1]
    outcome = executor.execute({**create, "state": {**state, "passing": torch.ones(2)}})
    assert outcome["message"].endswith("missing passing")


def test_parameters_made_in_inference_mode_can_be_loaded():
    def make():
        with torch.inference_mode():
            return torch.nn.Linear(1, 1)

    executor = Executor({"make": make})
    state = {"weight": torch.full((1, 1), 2.0), "bias": torch.ones(1)}
    create = {"op": "create", "handle": 1, "name": "make", "state": state}
    assert executor.execute(create)["kind"] == "value"
    assert executor.handles[1].weight.item() == 2


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_call_leaves_gradients_switched_as_they_were(enabled, fails):
    def f():
        seen.append(torch.is_grad_enabled())
        torch.set_grad_enabled(not enabled)
        if fails:
            raise ValueError

    seen = []
    with torch.set_grad_enabled(enabled):
        assert call(f)["kind"] == ("error" if fails else "value")
        assert torch.is_grad_enabled() == enabled
    assert seen == [False]


def test_gradients_are_refused_where_the_function_has_switched_them_off():
    def f(x):
        y = 2 * x
        torch.set_grad_enabled(False)
        return y

    with torch.enable_grad():
        outcome = call(f, torch.ones(2), grad=True)
    assert outcome["type"] == "RuntimeError"
    assert "does not require grad" in outcome["message"]


class Sub(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x.softmax(-1) @ w, x.softmax(-1)),
        lambda x, w: {"out": x @ w, "again": [x @ w, 7, None], "ids": torch.ones(2).long()},
        lambda x, w: (x, w.t(), (x @ w)[:, 0], x.double().sum()),
        lambda x, w: (torch.where(x > 0, x, x * torch.inf), w.expand(2, *w.shape)),
        lambda x, w: (x @ w).as_subclass(Sub),
    ],
    ids=["weights returned too", "nested", "views and types", "infinite", "subclass"],
)
def test_gradients_are_those_of_one_weighted_sum_to_the_last_bit(function):
    x, w = torch.randn(3, 4), torch.randn(4, 2)
    outcome = call(function, x, w, grad=True, cotangent=11)
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    generator = torch.Generator().manual_seed(11)
    total = 0
    for _, output in walk(function(*(leaf.clone() for leaf in leaves))):
        if output.is_floating_point():
            weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            total = total + (output * weights.to(output.dtype)).sum()
    for label, grad in zip("01", torch.autograd.grad(total, leaves), strict=True):
        assert type(outcome["grads"][label]) is torch.Tensor
        assert same_tensor(outcome["grads"][label], grad.as_subclass(torch.Tensor))
        assert outcome["grads"][label].stride() == grad.stride()


def test_changes_are_listed_in_the_order_of_the_arguments_and_lists_after_tensors():
    def f(numbers, first, pair, *, last, names):
        numbers.append(1)
        last["a"].add_(1)
        last["new"] = torch.zeros(1)
        pair[1].add_(1)
        first.add_(1)
        names["x"] = "z"

    request = {"op": "call", "name": "f", "args": [[0], torch.ones(1), (2, torch.ones(1))]}
    request["kwargs"] = {"last": {"a": torch.ones(1), "b": 3}, "names": {"x": "y"}}
    outcome = Executor({"f": f}).execute(request)
    assert outcome["mutated"] == ["1", "2.1", "last.a", "last.new", "0", "names"]
