"""A wrong module that is asked only where it can differ answers as the whole wrong module does."""

from __future__ import annotations

import ast

import pytest
import torch
from torch import nn

from autograder import departures, variants
from autograder.departures import Replays, Uncopied, changed_bodies, copied
from autograder.executor import Executor, walk
from autograder.memory import Memory
from autograder.proxy import Exchange
from tests.autograder.chapter_graders import graders_of

CELL = '''
def double(x, times=2):
    """Twice."""
    return times * x


class Layer(Base):
    """A layer."""

    scale = 1.0

    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def forward(self, x):
        return x * self.weight
'''


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("return times * x", "return times + x", {"double"}),
        ("self.weight = 1.0", "self.weight = 2.0", {"Layer.__init__"}),
        ("x * self.weight", "x", {"Layer.forward"}),
        ('"""A layer."""', '"""A layer. """', None),
        ("times=2", "times=3", None),
        ("scale = 1.0", "scale = 2.0", None),
        ("Layer(Base)", "Layer(Other)", None),
        ("def forward", "def run", None),
        ("    def forward", "    @cached\n    def forward", None),
        ("class Layer", "LIMIT = 3\n\n\nclass Layer", None),
        ("def double", "async def double", None),
    ],
)
def test_only_bodies_of_functions_are_exchanged(old, new, names):
    assert CELL.count(old) == 1
    found = changed_bodies(CELL, CELL.replace(old, new))
    assert (found and found[0]) == names


@pytest.mark.parametrize(
    "new",
    [
        "return times * x\n\n\ndef triple(x):\n    return 3 * x",
        "return times * x\n\n\ndouble = 3",
    ],
)
def test_a_body_that_does_not_end_where_it_did_is_not_taken_for_one(new):
    assert changed_bodies(CELL, CELL.replace("return times * x", new)) is None


@pytest.mark.parametrize("chapter", ["attention", "transformer"])
def test_a_function_read_alone_has_the_code_that_it_has_in_its_cell(chapter):
    def codes(tree):
        return {code.co_qualname: code for code in departures._inner(compile(tree, "<>", "exec"))}

    compared = 0
    for mistake in variants.misconceptions(chapter):
        old, new = variants.changed_cell(chapter, mistake)
        names, tree = changed_bodies(old, new) or ((), None)
        for name in names:
            alone, whole = codes(tree)[name], codes(ast.parse(new))[name]
            assert alone == whole
            assert alone.co_linetable == whole.co_linetable
            compared += 1
    assert compared > 300


def test_a_function_defined_twice_is_not_exchanged():
    twice = CELL + CELL
    assert changed_bodies(twice, twice.replace("times * x", "1 * x")) is None


def exactly(value):
    """An outcome in a form that can be compared bit by bit; of an error only what is looked at."""
    if value["kind"] == "error":
        return value["kind"], value["types"], value["message"]
    tensors = [(label, t.dtype, t.shape, t.tolist()) for label, t in walk(value)]
    return repr(tensors), sorted(value.get("mutated", [])), value["kind"]


CASES = [
    ("attention", "masked_softmax", "MultiHeadAttention"),  # inherited: deep inside
    ("attention", "MaskedSelfAttention", "MaskedSelfAttention"),  # a constructor among them
    ("attention", "separate_to_fused", "separate_to_fused"),
    ("transformer", "LayerNorm", "EncoderLayer"),
    ("transformer", "train_step", "train_step"),  # changes the modules that it is given
]


@pytest.mark.parametrize(("chapter", "made_in", "judged"), CASES)
def test_answers_are_those_of_the_whole_wrong_module(chapter, made_in, judged):
    graders = graders_of(chapter)
    right = variants.reference_namespace(chapter)
    talks = {
        item.name: [exchange.request for exchange in student]
        for item, student, _ in graders.transcripts(right, 3, judged)
    }
    mistakes = [item for item in variants.misconceptions(chapter) if item.exercise == made_in]
    assert talks
    assert mistakes
    memory, other = Memory(), 0
    for _ in range(2):  # asked, and remembered
        replays = Replays(chapter, 3, memory)
        for mistake in mistakes[::4]:
            for test, requests in list(talks.items())[:3]:
                transcript = [Exchange(request, {}) for request in requests]
                own = Executor(variants.wrong_namespace(chapter, mistake.name))
                expected = [exactly(own.execute({**one, "forbids": ()})) for one in requests]
                answers = list(map(exactly, replays.of(mistake.name)(test, transcript)))
                assert answers == expected, (mistake.name, test)
                other += expected != list(map(exactly, replays.of("")(test, transcript)))
    assert other  # some of them did depart


def test_functions_have_their_own_code_again_afterwards():
    base = departures.base_of("attention")
    before = base.namespace["masked_softmax"].__code__
    name = next(
        item.name
        for item in variants.misconceptions("attention")
        if item.exercise == "masked_softmax" and departures.other_code("attention", item.name)
    )
    request = {
        "op": "call", "name": "masked_softmax", "args": [torch.zeros(2, 3), "no mask"],
        "kwargs": {}, "grad": False,
    }  # fmt: skip
    answers = Replays("attention", 0, Memory()).of(name)("test", [Exchange(request, {})])
    assert [answer["kind"] for answer in answers] == ["error"]
    assert base.namespace["masked_softmax"].__code__ is before


def test_a_submission_that_asks_otherwise_gets_answers_of_its_own():
    chapter, name = "attention", "masked_self_zero_after"
    memory = Memory()

    def talk(width):
        create = {
            "op": "create", "handle": 1, "name": "MaskedSelfAttention", "kwargs": {}, "rng": width,
        }  # fmt: skip
        torch.manual_seed(width)
        shapes = Executor(variants.reference_namespace(chapter))
        signature = variants.reference_namespace(chapter)["MaskedSelfAttention"]
        create["kwargs"] = dict.fromkeys(_required(signature), width)
        assert shapes.execute(create)["kind"] == "value"
        invoke = {
            "op": "invoke", "handle": 1, "args": [torch.randn(2, 3, width)], "kwargs": {},
            "grad": True, "training": False,
        }  # fmt: skip
        return [create, invoke]

    for width in (4, 6, 4):
        requests = talk(width)
        own = Executor(variants.wrong_namespace(chapter, name))
        expected = [exactly(own.execute(request)) for request in requests]
        transcript = [Exchange(request, {}) for request in requests]
        replays = Replays(chapter, 0, memory)
        assert list(map(exactly, replays.of(name)("test", transcript))) == expected


def _required(made):
    import inspect

    parameters = inspect.signature(made).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(3, 3, dtype=torch.bool).tril(), persistent=False)
        self.last = [torch.zeros(2)]
        self.act = _square


def _square(x):
    return x * x


def test_a_copy_shares_nothing_and_keeps_what_is_tied():
    model = Model().eval()
    model.embed.weight.grad = torch.ones(5, 3)
    fresh = copied({1: model, 2: model.head})
    copy = fresh[1]
    assert type(copy) is Model
    assert not copy.training
    assert copy.act is _square
    assert copy.head.weight is copy.embed.weight
    assert fresh[2] is copy.head
    assert torch.equal(copy.embed.weight.grad, torch.ones(5, 3))
    assert list(copy.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        copy.embed.weight.zero_()
        copy.mask.zero_()
        copy.last[0] += 1
    copy.head.register_forward_pre_hook(print)
    assert model.embed.weight.abs().sum() > 0
    assert model.mask.any()
    assert not model.last[0].any()
    assert not model.head._forward_pre_hooks


def _closure(model):
    model.act = lambda x: model.head(x)


def _default(model):
    model.act = lambda x, head=model.head: head(x)


def _view(model):
    model.part = model.mask[:1]


def _result(model):
    model.last = [model.head(torch.ones(3))]


def _other(model):
    model.act = object()


@pytest.mark.parametrize("spoil", [_closure, _default, _view, _result, _other])
def test_what_could_be_shared_by_a_copy_is_not_copied(spoil):
    model = Model()
    spoil(model)
    with pytest.raises(Uncopied):
        copied({1: model})
