"""Every exercise's last test repeats calls of its other tests, and says what is noticed."""

from __future__ import annotations

import re

import pytest

from autograder.common import paths
from autograder.judging import asked_again
from autograder.judging.recording import SEED, record
from autograder.sandbox import side_effects
from autograder.verification.verify import graders_of


def last(result):
    """The exercise's last test: outcome and message."""
    return result.tests[-1].outcome, result.tests[-1].message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return x - mean", "return torch.rand(()) + x - mean", "another seed"),
        ("return x - mean", "torch.manual_seed(0)\n    return x - mean", "sets a seed"),
        ("return x - mean", "import random\n    return random.random() + x - mean", "elsewhere"),
    ],
)
def test_what_is_noticed_is_said_of_the_exercise(toy, old, new, said):
    source = toy.source.replace(old, new)
    assert source != toy.source
    outcome, message = last(toy.run(source)["centre"])
    assert outcome == "failed"
    assert said in message
    assert "Your centre" in message


def test_it_is_not_told_of_right_work(toy):
    results = toy.run(toy.source)
    assert [last(result) for result in results.values()] == [("passed", "")] * 3


def test_an_input_changed_in_place_costs_once(toy):
    source = toy.source.replace(
        "return x - mean(x).unsqueeze(-1)", "x -= mean(x).unsqueeze(-1)\n    return x.clone()"
    )
    tests = toy.run(source)["centre"].tests
    assert [test.weight for test in tests if "in place" in test.message] == [1.0, 0.0]


def test_a_recording_asks_the_same(toy):
    source = toy.source.replace("return x - mean", "return torch.rand(()) + x - mean")
    recording = record("toy", toy.graders)
    alone = toy.run(source, seed=SEED)["centre"]
    recorded = toy.run(source, recording=recording)["centre"]
    assert last(recorded) == last(alone)


def test_every_fact_has_a_sentence():
    named = {name for name in vars(side_effects) if re.fullmatch("[A-Z_]+", name)}
    facts = {getattr(side_effects, name) for name in named}
    facts = {fact for fact in facts if isinstance(fact, str)}
    assert facts - set(asked_again.SAYS) == {side_effects.CHANGES, side_effects.EACH_TIME}
    for fact in asked_again.SAYS:
        assert "{" not in asked_again.sentence("f", fact)


@pytest.mark.parametrize("unit", paths.units())
def test_every_exercise_that_computes_has_something_to_ask(unit):
    graders = graders_of(unit)
    without = [
        one.name for one in graders.assignment.exercises if not graders.requests_again(one.name, 0)
    ]
    assert without == []
