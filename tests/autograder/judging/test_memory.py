"""Answers of the reference and of wrong modules, remembered from one submission to the next."""

from __future__ import annotations

import inspect

import pytest
import torch

from autograder.judging.memory import Memory, Replays
from autograder.judging.proxy import Exchange
from autograder.sandbox.executor import Executor
from autograder.sandbox.nesting import walk
from autograder.units import variants
from autograder.verification.verify import graders_of


def exactly(value):
    """An outcome in a form that can be compared bit by bit; of an error only what is looked at."""
    if value["kind"] == "error":
        return value["kind"], value["types"], value["message"]
    tensors = [(label, t.dtype, t.shape, t.tolist()) for label, t in walk(value)]
    return repr(tensors), sorted(value.get("mutated", [])), value["kind"]


CASES = [
    ("gpt-model", "causal_mask", "GPT"),  # inherited: deep inside
    ("attention-scores", "masked_softmax", "AttentionDecoderStep"),
    ("attention-self_attention", "MaskedSelfAttention", "MaskedSelfAttention"),  # a constructor
    ("attention-multi_head", "separate_to_fused", "separate_to_fused"),
    ("transformer-parts", "LayerNorm", "SublayerConnection"),
    ("transformer-training", "train_step", "train_step"),  # changes the modules that it is given
]


@pytest.mark.parametrize(("unit", "made_in", "judged"), CASES)
def test_answers_are_those_of_the_whole_wrong_module(unit, made_in, judged):
    graders = graders_of(unit)
    right = variants.reference_namespace(unit)
    talks = {
        item.name: [exchange.request for exchange in student]
        for item, student, _ in graders.transcripts(right, 3, judged)
    }
    mistakes = [item for item in variants.misconceptions(unit) if item.exercise == made_in]
    assert talks
    assert mistakes
    memory, other = Memory(), 0
    for _ in range(2):  # asked, and remembered
        replays = Replays(unit, 3, memory)
        for mistake in mistakes[::4]:
            for test, requests in list(talks.items())[:3]:
                transcript = [Exchange(request, {}) for request in requests]
                own = Executor(variants.wrong_namespace(unit, mistake.name))
                expected = [exactly(own.execute(one)) for one in requests]
                answers = list(map(exactly, replays.of(mistake.name)(test, transcript)))
                assert answers == expected, (mistake.name, test)
                other += expected != list(map(exactly, replays.of("")(test, transcript)))
    assert other  # some of them did depart


def test_a_submission_that_asks_otherwise_gets_answers_of_its_own():
    unit, name = "attention-self_attention", "masked_self_zero_after"
    memory = Memory()

    def talk(width):
        create = {
            "op": "create", "handle": 1, "name": "MaskedSelfAttention", "kwargs": {}, "rng": width,
        }  # fmt: skip
        torch.manual_seed(width)
        shapes = Executor(variants.reference_namespace(unit))
        signature = variants.reference_namespace(unit)["MaskedSelfAttention"]
        create["kwargs"] = dict.fromkeys(_required(signature), width)
        assert shapes.execute(create)["kind"] == "value"
        invoke = {
            "op": "invoke", "handle": 1, "args": [torch.randn(2, 3, width)], "kwargs": {},
            "grad": True, "training": False,
        }  # fmt: skip
        return [create, invoke]

    for width in (4, 6, 4):
        requests = talk(width)
        own = Executor(variants.wrong_namespace(unit, name))
        expected = [exactly(own.execute(request)) for request in requests]
        transcript = [Exchange(request, {}) for request in requests]
        replays = Replays(unit, 0, memory)
        assert list(map(exactly, replays.of(name)("test", transcript))) == expected


def _required(made):
    parameters = inspect.signature(made).parameters.values()
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def test_what_is_wrong_on_purpose_warns_nobody(monkeypatch, recwarn):
    def mean(x):
        return x.std(0)  # of a single row

    monkeypatch.setattr(variants, "wrong_namespace", lambda unit, name: {"mean": mean})
    request = {"op": "call", "name": "mean", "args": [torch.ones(1, 2)], "kwargs": {}}
    answers = Replays("attention-scores", 3, Memory()).of("std")("test", [Exchange(request, {})])
    assert [answer["kind"] for answer in answers] == ["value"]
    assert [str(one.message) for one in recwarn] == []
    Executor({"mean": mean}).execute(request)
    assert len(recwarn) == 1
