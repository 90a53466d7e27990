"""A call is made several times, and what its answer depends on, or leaves behind, is noticed."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from autograder.sandbox import side_effects
from autograder.sandbox.executor import Executor

X = torch.arange(1.0, 13.0).reshape(3, 4)


def facts(function, *args, expected=(), **options):
    """What is noticed about a call of a function."""
    asked = {"op": "call", "name": "f", "args": list(args), "kwargs": {}, "rng": 5, **options}
    request = {"op": "repeat", "made": [], "asked": asked, "expected": list(expected)}
    return Executor({"f": function}).execute(request)["value"]


def facts_of_module(cls, *args, expected=(), made_of=None, **options):
    """What is noticed about a call of a module; it is made without arguments, or of `made_of`."""
    create = {"op": "create", "name": "M", "kwargs": made_of or {}, "handle": 1, "rng": 3}
    asked = {"op": "invoke", "handle": 1, "args": list(args), "kwargs": {}, "rng": 5, **options}
    request = {"op": "repeat", "made": [create], "asked": asked, "expected": list(expected)}
    return Executor({"M": cls}).execute(request)["value"]


def facts_of_caller(function, *, training=False, expected=(), **options):
    """What is noticed about a function that is given a model."""
    create = {"op": "create", "name": "M", "kwargs": {}, "handle": 1, "rng": 3}
    asked = {"op": "call", "name": "f", "args": [{"__module__": 1}, X], "kwargs": {}, "rng": 5}
    asked |= {"modules": {"1": training}, **options}
    request = {"op": "repeat", "made": [create], "asked": asked, "expected": list(expected)}
    names = {"f": function, "M": lambda: nn.Linear(4, 2)}
    return Executor(names).execute(request)["value"]


class Keeps(nn.Module):
    """Gives the mask of the first call for ever."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = (x > 3).clone()
        return self.mask.clone()


class KeepsKeys(nn.Module):
    """Gives scores for the keys of an earlier call, unless keys of another shape come."""

    def __init__(self):
        super().__init__()
        self.keys = torch.zeros(0)

    def forward(self, query, key):
        if self.keys.shape != key.shape:
            self.keys = key.clone()
        return query @ self.keys.mT


class Counts(nn.Module):
    """Gives another answer each time."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def table():
    """Gives a part of a table that it keeps."""
    values = torch.arange(20.0)
    return lambda x: values[: x.shape[1]]


def a_changed_list(items):
    items.append(0)
    return len(items) - 1


def a_changed_dict(items):
    items.pop("a")
    return 1


def test_what_answers_the_same_and_leaves_no_trace_is_not_spoken_of():
    assert facts(torch.tanh, X) == []
    assert facts(torch.tanh, X, grad=True) == []
    assert facts_of_module(lambda: nn.Linear(4, 2), X, training=True) == []
    assert facts_of_caller(lambda model, x: model(x)) == []


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (lambda x: x.mul_(2), X),
        (lambda x: x.masked_fill_(x > 3, 0).sum(), X),
        (a_changed_list, [1, 2]),
        (a_changed_dict, {"a": 1}),
    ],
    ids=["tensor", "where a mask is", "list", "dict"],
)
def test_an_argument_changed_in_place(function, argument):
    assert "changes 0" in facts(function, argument)


@pytest.mark.parametrize(
    ("draw", "fact"),
    [
        (lambda x: x + random.random(), side_effects.UNSEEDED),
        (lambda x: x + float(np.random.default_rng().random()), side_effects.UNSEEDED),
        (lambda x: x + torch.rand(3, 4, generator=fresh()), side_effects.UNSEEDED),
        (lambda x: x + torch.rand(3, 4, generator=fresh(0)), side_effects.FIXED),
        (lambda x: x + float(np.random.default_rng(0).random()), side_effects.FIXED),
    ],
    ids=["Python's", "NumPy's", "a new generator", "a new generator with a seed", "NumPy's seeded"],
)
def test_numbers_that_torch_manual_seed_does_not_decide(draw, fact):
    as_it_should_be = facts(lambda x: x + torch.rand(3, 4), X)
    assert as_it_should_be == [side_effects.CHANCE, side_effects.EACH_TIME]
    assert fact in facts(draw, X, expected=as_it_should_be)


def test_pythons_generator_may_be_drawn_from_where_that_is_said():
    asked = {"op": "call", "name": "f", "args": [X], "kwargs": {}, "rng": 5}
    request = {"op": "repeat", "made": [], "asked": asked, "expected": [], "python_too": True}
    executor = Executor({"f": lambda x: x + random.random()})
    assert executor.execute(request)["value"] == [side_effects.CHANCE, side_effects.EACH_TIME]


def fresh(seed=None):
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    return generator


def test_a_generator_that_begins_anew():
    def begins_anew(x):
        torch.manual_seed(torch.initial_seed())
        return x + torch.rand(3, 4)

    drawn = [side_effects.CHANCE, side_effects.EACH_TIME]
    assert facts(begins_anew, X, expected=drawn) == [side_effects.SEEDED]


def test_a_seed_set_inside():
    def seeded(x):
        torch.manual_seed(0)
        return x + torch.rand(3, 4)

    assert side_effects.SEEDED in facts(seeded, X)


def test_chance_where_there_should_be_none():
    assert side_effects.CHANCE in facts(lambda x: nn.functional.dropout(x, 0.5), X)
    # One seed in two gives another answer.
    rarely = facts(lambda x: x + (torch.rand(()) < 0.5), X, rng=7)
    assert side_effects.CHANCE in rarely
    assert side_effects.EACH_TIME not in rarely


def test_what_acts_in_train_mode_only():
    class Drops(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.1, self.training)

    class Scales(nn.Module):
        def forward(self, x):
            return 2 * x if self.training else x

    for module in (Drops, Scales):
        assert side_effects.MODE in facts_of_module(module, X, training=False)
        assert side_effects.MODE in facts_of_module(module, X, training=True)


def test_another_answer_without_gradients():
    assert facts(lambda x: x * (1 + x.requires_grad), X, grad=True) == [side_effects.GRADIENT]


@pytest.mark.parametrize("module", [Keeps, Counts])
def test_what_is_kept_from_an_earlier_call(module):
    assert facts_of_module(module, X) == [side_effects.MEMORY]


def test_keys_that_are_kept_where_the_next_question_has_more_queries_only():
    query, key = torch.randn(2, 3, 5), torch.randn(2, 4, 5)
    assert facts_of_module(KeepsKeys, query, key) == [side_effects.MEMORY]


def test_an_answer_that_the_code_still_uses():
    assert facts(table(), X) == [side_effects.SHARED]


def test_an_argument_that_the_code_still_uses():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.seen = {}

        def forward(self, x):
            key = tuple(x.flatten().tolist())
            before = self.seen.get(key, x)
            self.seen[key] = x
            return 2 * before

    assert facts_of_module(Remembers, X) == [side_effects.KEPT]


def test_tensors_that_are_laid_out_otherwise():
    assert facts(lambda x: x.view(-1).sum(), X) == [side_effects.STRIDES]
    assert facts(lambda x: x * x.stride(0), X) == [side_effects.STRIDES]


def test_what_is_drawn_may_depend_on_the_layout():
    drawn = [side_effects.CHANCE, side_effects.EACH_TIME]
    assert facts(torch.rand_like, X) == drawn
    assert facts(lambda x: torch.rand_like(x).view(-1), X) == [*drawn, side_effects.STRIDES]


def test_an_embedding_with_a_row_that_learns_nothing():
    ids = torch.tensor([[0, 1], [2, 3]])
    assert facts_of_module(lambda: nn.Embedding(4, 2), ids) == []
    special = facts_of_module(lambda: nn.Embedding(4, 2, padding_idx=0), ids)
    assert special == [side_effects.SPECIAL_ROW]


def test_what_a_call_leaves_in_a_model_that_it_is_given():
    def steps(model, x):
        with torch.no_grad():
            model.weight.add_(1)
        return x

    def eval_mode(model, x):
        return model.eval()(x)

    def freezes(model, x):
        answer = model(x)
        model.weight.requires_grad_(False)
        return answer

    def backward(model, x):
        with torch.enable_grad():
            answer = model(x)
            answer.sum().backward()
        return answer.detach()

    assert side_effects.PARAMETERS in facts_of_caller(steps)
    assert facts_of_caller(eval_mode, training=True) == [side_effects.TRAINING]
    assert facts_of_caller(freezes) == [side_effects.REQUIRES_GRAD]
    assert facts_of_caller(backward) == [side_effects.GRAD]


def test_what_a_constructor_does_to_a_model_that_it_is_given():
    def facts_of(does):
        class Head(nn.Module):
            def __init__(self, body):
                super().__init__()
                self.body = body
                does(body)

            def forward(self, x):
                return self.body(x)

        body = {"op": "create", "name": "M", "kwargs": {}, "handle": 1, "rng": 3}
        given = {"kwargs": {"body": {"__module__": 1}}, "modules": {"1": False}}
        head = {"op": "create", "name": "Head", "handle": 2, "rng": 4, **given}
        asked = {"op": "invoke", "handle": 2, "args": [X], "kwargs": {}, "rng": 5}
        request = {"op": "repeat", "made": [body, head], "asked": asked, "expected": []}
        return Executor({"M": lambda: nn.Linear(4, 2), "Head": Head}).execute(request)["value"]

    assert facts_of(lambda body: None) == []
    assert facts_of(lambda body: body.train()) == [side_effects.TRAINING]
    assert facts_of(lambda body: body.eval()) == [side_effects.TRAINING]
    assert facts_of(lambda body: nn.init.zeros_(body.bias)) == [side_effects.PARAMETERS]


def test_a_mode_that_an_error_leaves_behind():
    def refuses(model, x):
        model.eval()
        if x.shape[1] > 4:
            raise ValueError("too long")
        model.train()
        return model(x)

    assert facts_of_caller(refuses, training=True) == [side_effects.TRAINING]


def test_gradients_from_before_the_call():
    def steps(model, x, forgets):
        with torch.enable_grad():
            for parameter in filter(forgets, model.parameters()):
                parameter.grad = None
            model(x).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        return 0

    def right(model, x):
        return steps(model, x, lambda parameter: True)

    def adds(model, x):
        return steps(model, x, lambda parameter: False)

    def moves_what_is_frozen(model, x):
        return steps(model, x, lambda parameter: parameter.requires_grad)

    expected = facts_of_caller(right, autograd=True)
    assert side_effects.STALE not in expected
    for wrong, fact in (
        (adds, side_effects.STALE),
        (moves_what_is_frozen, side_effects.STALE_FROZEN),
    ):
        found = facts_of_caller(wrong, autograd=True, expected=expected)
        assert {*found} - {*expected} == {fact}


def test_an_answer_to_weights_of_before():
    class Fuses(nn.Linear):
        def forward(self, x):
            if not hasattr(self, "fused"):
                self.fused = 2 * self.weight.detach()
            return x @ self.fused.T

    kept = {}

    def reads_once(model, x):
        return x @ kept.setdefault(id(model), model.weight.detach().clone()).T

    assert facts_of_module(lambda: Fuses(4, 2), X) == [side_effects.WEIGHTS]
    assert {side_effects.UNREAD, side_effects.WEIGHTS} & {*facts_of_caller(reads_once)}
    assert facts_of_caller(lambda model, x: x @ model.weight.T) == []


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x: x.mean(1, keepdim=True).squeeze(),
        lambda x: x - x.sum(),
        lambda x: x * (2 if len(x) == x.shape[1] else 1),
    ],
    ids=["squeeze", "a sum over rows", "told apart by sizes"],
)
def test_rows_that_depend_on_how_many_there_are(mixes):
    assert facts(mixes, X) == [side_effects.ROWS]
    assert facts(lambda x: [x.mean(1), x.mean()], X) == []


def test_a_generator_that_is_put_back():
    def puts_back(x):
        before = torch.get_rng_state()
        drawn = torch.rand(3, 4)
        torch.set_rng_state(before)
        return x + drawn

    drawn = [side_effects.CHANCE, side_effects.EACH_TIME]
    assert facts(lambda x: x + torch.rand(3, 4), X, expected=drawn) == []
    assert facts(puts_back, X, expected=drawn) == [side_effects.PUT_BACK]


def test_a_tensor_that_wanted_a_gradient():
    def forgets(x):
        answer = 2 * x
        if x.is_leaf:
            x.requires_grad_(False)
        return answer

    assert facts(forgets, X, grad=True) == [side_effects.REQUIRES_GRAD]


@pytest.mark.parametrize("expected", [[], [side_effects.GRADIENT]])
def test_a_tensor_that_is_cut_from_its_graph_in_place(expected):
    def cuts(x):
        return 2 * x.detach_()

    assert facts(torch.Tensor.detach, X, expected=expected) == []
    assert facts(cuts, X, expected=expected) == [side_effects.REQUIRES_GRAD]


def test_a_tensor_that_is_made_to_want_a_gradient():
    assert facts(lambda x: 2 * x.requires_grad_().detach(), X) == [side_effects.REQUIRES_GRAD]


def test_a_gradient_that_is_left_in_a_tensor_that_is_given():
    def backward(x):
        if x.requires_grad:
            with torch.enable_grad():
                x.square().sum().backward()
        return 2 * x.detach()

    assert facts(backward, X) == [side_effects.GRAD]


def test_a_mode_that_is_left_where_the_answer_depends_on_it():
    def leaves(model, x):
        answer = model(x) * (1 + model.training)
        model.eval()
        return answer

    for training in (False, True):
        found = facts_of_caller(leaves, training=training, expected=[side_effects.MODE])
        assert found == [side_effects.TRAINING]


def test_weights_that_instances_have_in_common_but_not_tables():
    common = nn.Parameter(torch.ones(4)), torch.ones(4)

    class Weight(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = common[0]

        def forward(self, x):
            return x * self.weight

    class Buffer(Weight):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.register_buffer("shift", common[1], persistent=False)

    assert facts_of_module(Weight, X) == [side_effects.INSTANCES]
    assert facts_of_module(Buffer, X) == []


def test_a_list_that_a_constructor_changes():
    class Sums(nn.Module):
        def __init__(self, widths):
            super().__init__()
            self.width = widths.pop()

        def forward(self, x):
            return x * self.width

    assert facts_of_module(Sums, X, made_of={"widths": [2, 3]}) == ["changes widths"]


def test_parameters_drawn_from_elsewhere():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(np.random.default_rng().random(4)).float())

        def forward(self, x):
            return x * self.weight

    assert facts_of_module(Own, X) == [side_effects.UNSEEDED]


def test_what_is_expected_is_not_looked_for():
    assert facts_of_module(Counts, X, expected=[side_effects.MEMORY]) == []


def test_an_error_is_the_outcome():
    def fails(x):
        raise ValueError("no")

    asked = {"op": "call", "name": "f", "args": [X], "kwargs": {}, "rng": 5}
    outcome = Executor({"f": fails}).execute(
        {"op": "repeat", "made": [], "asked": asked, "expected": []}
    )
    assert outcome["kind"] == "error"


def test_the_modules_of_a_conversation_stay_what_they_are():
    executor = Executor({"M": lambda: nn.Linear(4, 2)})
    create = {"op": "create", "name": "M", "kwargs": {}, "handle": 1, "rng": 3}
    executor.execute(create)
    before = executor.handles[1]
    asked = {"op": "invoke", "handle": 1, "args": [X], "kwargs": {}, "rng": 5}
    executor.execute({"op": "repeat", "made": [create], "asked": asked, "expected": []})
    assert executor.handles == {1: before}
