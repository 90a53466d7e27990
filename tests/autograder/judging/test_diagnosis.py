"""The mistake is named when, and only when, a known wrong module answers alike."""

from __future__ import annotations

import dataclasses
import random

import pytest

from autograder.judging.diagnosis import Candidate, Evidence, diagnose, fitting, same_outcome
from autograder.judging.proxy import Exchange
from autograder.units import variants
from tests.autograder.conftest import MISCONCEPTIONS


def test_a_known_mistake_is_named_in_another_style(toy):
    source = "def mean(x, dim=-1):\n    return x.sum(dim).div(len(x))\n"
    result = toy.run(source)["mean"]
    assert result.misconception == "divides_by_rows"
    assert result.message == "You divide by the number of rows."
    assert result.section == "toy-mean"


def test_an_unknown_mistake_is_not_given_a_name(toy):
    source = "def mean(x, dim=-1):\n    return x.sum(dim) / x.shape[dim] + 0.1\n"
    result = toy.run(source)["mean"]
    assert result.misconception is None
    assert "expected" in result.message


def test_a_candidate_that_contradicts_a_passed_test_is_ruled_out(toy):
    # Wrong only along the last axis, and there as "sum_only" is; right along the first.
    source = (
        "def mean(x, dim=-1):\n"
        "    if x.numel() == 0: raise ValueError('empty')\n"
        "    return x.sum(dim) if dim == -1 else x.sum(dim) / x.shape[dim]\n"
    )
    assert toy.run(source)["mean"].misconception is None


def test_a_mistake_inherited_from_an_earlier_exercise_is_traced_to_it(toy):
    source = toy.source.replace(" / x.shape[dim]", "")
    results = toy.run(source)
    assert results["mean"].misconception == "sum_only"
    assert results["centre"].misconception == "sum_only"
    assert results["centre"].message.startswith("This follows from your mean")


def test_code_that_only_raises_is_not_given_a_name(toy):
    result = toy.run("def mean(x, dim=-1):\n    raise KeyError('x')\n")["mean"]
    assert result.misconception is None
    assert "KeyError" in result.message


def test_an_error_for_another_reason_does_not_speak_for_a_mistake():
    def outcome(kind, **facts):
        return {"kind": kind, "mutated": [], "grads": {}, "forbidden": [], **facts}

    def error(message):
        return outcome("error", type="RuntimeError", types=["RuntimeError"], message=message)

    def named(own, other):
        seen = [Exchange({"op": "call"}, own)]
        evidence = Evidence("test", True, None, True, (), False, lambda: seen)
        candidate = Candidate("swapped", lambda test, transcript: [other])
        return diagnose(
            [evidence], lambda test, transcript: [outcome("value", value=1)], [candidate]
        )

    sizes = error("The size of tensor a (2) must match the size of tensor b (3)")
    assert named(sizes, sizes) == ("swapped", True)
    assert named(error("a mask has too many dimensions"), sizes) == (None, False)


def test_all_mistakes_that_fit_are_said_but_those_whose_errors_read_otherwise():
    def error(message):
        types = ["ValueError", "Exception"]
        return {"kind": "error", "type": types[0], "types": types, "message": message}

    def value(number):
        return {"kind": "value", "value": number, "mutated": [], "grads": {}, "forbidden": []}

    own = [value(2), error("5 keys, but 4 values")]
    talk = [Exchange({"op": "call"}, answer) for answer in own]
    evidence = [Evidence("test", True, None, True, (), False, lambda: talk)]

    def names(**candidates):
        known = [
            Candidate(name, lambda test, transcript, answers=answers: answers)
            for name, answers in candidates.items()
        ]
        right = [value(1), value(1)]
        found, first = diagnose(evidence, lambda test, transcript: right, known)
        assert first
        return fitting(evidence, lambda test, transcript: right, known, found).names

    other = [value(2), error("a mask does not fit")]
    assert names(keys=other, values=own, no=[value(3), own[1]]) == ["values"]
    assert names(keys=own, values=own) == ["keys", "values"]
    assert names(keys=other, values=other) == ["keys", "values"]


def test_two_mistakes_between_which_no_test_decides_are_both_said(toy, monkeypatch):
    twin = dataclasses.replace(MISCONCEPTIONS[1], name="twin", says="You leave the division out.")
    wrong = variants.wrong_namespace("toy", "sum_only")
    monkeypatch.setattr(variants, "misconceptions", lambda unit: (MISCONCEPTIONS[1], twin))
    monkeypatch.setattr(variants, "wrong_namespace", lambda unit, name: wrong)
    result = toy.run(toy.source.replace(" / x.shape[dim]", ""))["mean"]
    assert result.misconception == "sum_only"
    assert result.message == "Either: You forget to divide. Or: You leave the division out."


def test_calling_the_forbidden_function_is_its_own_diagnosis(toy):
    result = toy.run("def mean(x, dim=-1):\n    return x.mean(dim)\n")["mean"]
    assert result.misconception == "forbidden"


def test_a_lesser_mistake_does_not_hide_the_first_failure(toy):
    # Values are wrong in a way nobody knows; that they are also summed elsewhere comes second.
    source = (
        "def mean(x, dim=-1):\n"
        "    if x.numel() == 0: raise ValueError('empty')\n"
        "    return x.sum(dim) / x.shape[dim] + 7 if dim == -1 else x.sum(dim)\n"
    )
    result = toy.run(source)["mean"]
    assert result.misconception == "sum_only"
    assert result.message.startswith("the mean is wrong")
    assert result.message.endswith("Besides: You forget to divide.")


def test_modules_with_other_wrong_parameters_are_not_confused():
    def mismatch(message):
        types = ["StateMismatch", "Exception"]
        return {"kind": "error", "type": types[0], "types": types, "message": message}

    assert same_outcome(mismatch("missing a"), mismatch("missing a"))
    assert not same_outcome(mismatch("missing a"), mismatch("not asked for: b"))


def evidence_of(answers, failed):
    """Tests with one exchange each, in which a student gave these answers.

    Their paths are those of the answers, as where a test's answers decide how it ends.
    """

    def value(number):
        return {"kind": "value", "value": number, "mutated": [], "grads": {}, "forbidden": []}

    return [
        Evidence(
            str(place),
            failed=place < failed,
            hint=None,
            answered=True,
            forbidden=(),
            timed_out=False,
            recall=lambda answer=answer: [Exchange({"op": "call"}, value(answer))],
        )
        for place, answer in enumerate(answers)
    ], value


@pytest.mark.parametrize("seed", range(200))
def test_the_first_of_those_that_explain_most_is_found_with_few_questions(seed):
    chance = random.Random(seed)
    tests = chance.randint(1, 5)
    failed = chance.randint(1, tests)
    student = [chance.randint(1, 2) for _ in range(tests)]
    evidence, value = evidence_of(student, failed)
    right = [chance.randint(0, 2) if place < failed else student[place] for place in range(tests)]
    known = [[chance.randint(1, 2) for _ in range(tests)] for _ in range(chance.randint(0, 12))]
    asked = []

    def candidate(place, answers):
        def replay(test, transcript):
            asked.append((place, test))
            return [value(answers[int(test)])]

        return Candidate(str(place), replay)

    found = diagnose(
        evidence,
        lambda test, transcript: [value(right[int(test)])],
        [candidate(place, answers) for place, answers in enumerate(known)],
    )

    best = chosen(student, failed, right, known)
    assert found == best
    assert len(asked) == len(set(asked))  # nobody is asked twice
    if (
        best[0] is not None
        and student[:failed] == known[int(best[0])][:failed]
        and all(student[i] != right[i] for i in range(failed))
    ):
        later = [test for place, test in asked if place > int(best[0])]
        assert not later


@pytest.mark.parametrize(("right", "named"), [(5, "mistake"), (7, None)])
def test_a_test_passed_with_another_answer_than_the_references_rules_nobody_out(right, named):
    # The student and the mistake draw other numbers, as with another function for dropout.
    evidence, value = evidence_of([1, 7], failed=1)
    candidate = Candidate("mistake", lambda test, transcript: [value([1, 6][int(test)])])
    found, _ = diagnose(
        evidence, lambda test, transcript: [value([0, right][int(test)])], [candidate]
    )
    assert found == named


def chosen(student, failed, right, known):
    """Who explains most of the failed tests and contradicts no other; of equals the first."""
    best, most = (None, False), 0
    for place, answers in enumerate(known):
        explains = [student[i] == answers[i] != right[i] for i in range(failed)]
        if sum(explains) > most and student[failed:] == answers[failed:]:
            best, most = (str(place), explains[0]), sum(explains)
    return best
