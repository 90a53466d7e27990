"""Answers of the reference and of wrong modules, remembered from one submission to the next."""

from __future__ import annotations

import inspect

import pytest
import torch

from autograder.judging.memory import Memory, Replays
from autograder.judging.proxy import Exchange
from autograder.sandbox.executor import Executor, walk
from autograder.units import variants
from autograder.verification.verify import graders_of


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
                expected = [exactly(own.execute(one)) for one in requests]
                answers = list(map(exactly, replays.of(mistake.name)(test, transcript)))
                assert answers == expected, (mistake.name, test)
                other += expected != list(map(exactly, replays.of("")(test, transcript)))
    assert other  # some of them did depart


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
    parameters = inspect.signature(made).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]
