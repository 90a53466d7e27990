"""What comes back from student code, whatever it is, is an answer and never a grader's failure."""

from __future__ import annotations

import pytest
import torch

from autograder.judging.grader_marks import Mistake
from autograder.judging.proxy import Proxy, StudentError


def handle(said):
    """A module whose worker says `said` whatever it is asked."""

    def execute(request):
        value = 1 if request["op"] == "create" else said
        return {"kind": "value", "value": value, "mutated": [], "grads": {}, "forbidden": []}

    return Proxy(execute).module("Block", d_model=4)


def test_a_module_is_described_by_its_worker():
    shapes = {"norm.weight": [4]}
    state = {"norm.weight": torch.ones(4)}
    module = handle({"parameters": shapes, "buffers": {}, "state": state})
    assert module.parameters() == shapes
    assert module.buffers() == {}
    assert module.state() is state
    assert module.step(torch.ones(1)) is state


@pytest.mark.parametrize(
    "said",
    [
        True,
        torch.ones(1),
        {},
        {"parameters": True, "buffers": [], "state": torch.ones(1)},
        {"parameters": {"a": 4}, "buffers": {"a": None}, "state": {"a": [4]}},
    ],
)
def test_a_description_of_another_form_is_a_mistake(said):
    module = handle(said)
    for ask in (module.parameters, module.buffers, module.state, module.step):
        with pytest.raises(Mistake, match="Your Block does not say what its"):
            ask()


def test_an_error_says_what_was_given():
    def execute(request):
        return {"kind": "error", "type": "KeyError", "message": "'a'", "where": "line 3: d['a']"}

    told = "Your merge raised KeyError: 'a' (line 3: d['a']); it was given "
    cases = [
        ((torch.ones(2, 3), None), {"eps": 0.5}, "float32 (2, 3), None, eps=0.5"),
        ((torch.tensor([4, 5]), list(range(99))), {}, "int64 [4, 5], a list of 99"),
        ((handle(1), "a" * 999), {}, "a module, a str of 999"),
    ]
    for args, kwargs, said in cases:
        with pytest.raises(StudentError) as caught:
            Proxy(execute).merge(*args, **kwargs)
        assert str(caught.value) == told + said
