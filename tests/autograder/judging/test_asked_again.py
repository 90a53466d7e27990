"""Every exercise's last test repeats calls of its other tests, and says what is noticed."""

from __future__ import annotations

import re

import pytest

from autograder.common import paths
from autograder.judging import asked_again
from autograder.judging.recording import SEED, record
from autograder.judging.runner import Graders
from autograder.sandbox import side_effects
from autograder.sandbox.executor import Executor
from autograder.units.variants import load_variant, source_of
from autograder.verification.verify import graders_of


def last(result):
    """The exercise's last test: outcome and message."""
    return result.tests[-1].outcome, result.tests[-1].message


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("torch.manual_seed(0)\n        return x * self.weight", "sets a seed"),
        ("return x * self.weight * (1 + self.training)", "train mode"),
        (
            "self.asked = getattr(self, 'asked', 0) + 1\n"
            "        return x * self.weight * (1 + (self.asked > 2))",
            "asked before",
        ),
    ],
)
def test_what_is_noticed_is_said_of_the_exercise(toy, new, said):
    result = toy.run(toy.source.replace("return x * self.weight", new))["Scale"]
    assert [test.outcome for test in result.tests] == ["passed", "failed"]
    assert "your Scale" in result.message.replace("Your", "your")
    assert said in result.message


def test_it_waits_until_some_value_is_right(toy):
    source = toy.source.replace("return x * self.weight", "return 3 * x * self.weight.exp()")
    result = toy.run(source)["Scale"]
    assert last(result) == ("failed", "This counts once Scale gives right values.")
    assert result.message != last(result)[1]


def test_it_is_not_told_of_right_work(toy):
    results = toy.run(toy.source)
    assert [last(result) for result in results.values()] == [("passed", "")] * 3


TWO_TESTS = """
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise

@exercise("centre")
def test_values(student, reference, draw):
    x = draw.normal(3, 4)
    expectations.close(student.centre(x), reference.centre(x), "the result")

@exercise("centre")
def test_in_place(student, draw):
    expectations.unchanged(student.observe("centre", draw.normal(3, 4)), "centre")
"""


def test_an_input_changed_in_place_costs_once(toy):
    path = toy.path.with_name("test_two.py")
    path.write_text(TWO_TESTS)
    source = toy.source.replace(
        "return x - mean(x).unsqueeze(-1)", "x -= mean(x).unsqueeze(-1)\n    return x.clone()"
    )
    graders = Graders("toy", path=path, assignment=toy.assignment)
    result = graders.run(Executor(load_variant(source, "student")).execute)["centre"]
    assert [(test.outcome, test.weight) for test in result.tests] == [
        ("passed", 1.0),
        ("failed", 1.0),
        ("failed", 0.0),
    ]
    assert result.points == 1  # of 2


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


def wrong(unit, *swap):
    """The names of a unit's reference with one text of its source replaced."""
    source = source_of(unit)
    assert source.count(swap[0]) == 1
    return Executor(load_variant(source.replace(*swap), "wrong")).execute


@pytest.mark.parametrize(
    ("unit", "exercise", "swap"),
    [
        (
            "transformer-model",
            "EncoderDecoder",
            ("x = self.position(self.tgt_embed", "x = self.eval().position(self.tgt_embed"),
        ),
        (
            "bert-relatives",
            "update_memory",
            ("joined = hidden if", "hidden.detach_()\n    joined = hidden if"),
        ),
        (
            "bert-fine_tuning",
            "BiLSTMCRF",
            ("return self.crf.decode(self(", "self.eval()\n        return self.crf.decode(self("),
        ),
    ],
    ids=["mode, by one method of several", "graph, where no test asks for gradients", "decode"],
)
def test_what_a_call_leaves_behind_is_noticed(unit, exercise, swap):
    assert not graders_of(unit).passes_again(wrong(unit, *swap), exercise)


@pytest.mark.parametrize("unit", paths.units())
def test_every_exercise_that_computes_has_something_to_ask(unit):
    graders = graders_of(unit)
    without = [
        one.name for one in graders.assignment.exercises if not graders.requests_again(one.name, 0)
    ]
    assert without == []
