"""Comparisons accept rounding, refuse wrong answers, and say what differs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from autograder.judging import expectations
from autograder.judging.grader_marks import Mistake
from autograder.judging.proxy import Observation
from autograder.sandbox.wire import Foreign


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_another_order_of_summation_is_accepted(dtype):
    torch.manual_seed(0)
    a, b = torch.randn(40, 60, dtype=dtype), torch.randn(60, 50, dtype=dtype)
    loops = torch.stack([(a[:, k, None] * b[k]) for k in range(60)]).sum(0)
    expectations.close(loops, a @ b)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e6])
def test_an_error_of_a_thousandth_is_refused_at_any_scale(scale):
    expected = torch.randn(5, generator=torch.Generator().manual_seed(1)) * scale
    wrong = expected.clone()
    wrong[expected.abs().argmax()] *= 1.001
    with pytest.raises(Mistake):
        expectations.close(wrong, expected)


def test_dtype_and_shape_are_named():
    with pytest.raises(Mistake, match="float32, but has float64"):
        expectations.close(torch.zeros(2, dtype=torch.float64), torch.zeros(2))
    with pytest.raises(Mistake, match=r"\(2,\), but has \(3,\)"):
        expectations.close(torch.zeros(3), torch.zeros(2))


def test_nan_and_infinity_must_coincide():
    expectations.close(torch.tensor([math.inf, 1.0]), torch.tensor([math.inf, 1.0]))
    with pytest.raises(Mistake, match="NaN"):
        expectations.close(torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0]))
    with pytest.raises(Mistake):
        expectations.close(torch.tensor([-math.inf]), torch.tensor([math.inf]))
    with pytest.raises(Mistake):
        expectations.close(torch.tensor([1e30]), torch.tensor([math.inf]))


def test_the_wrong_rows_are_named():
    wrong = torch.ones(4, 3)
    wrong[2, 1] = 5
    with pytest.raises(Mistake, match=r"row 2.*\[2, 1\] expected 1, got 5"):
        expectations.close(wrong, torch.ones(4, 3), "the weights")


def test_numbers_that_differ_are_shown_with_digits_that_do():
    with pytest.raises(Mistake, match=r"expected 100, got 100\.01"):
        expectations.close(torch.tensor([100.01]), torch.tensor([100.0]))


def test_an_object_that_claims_to_equal_everything_is_refused():
    class Same:
        def __eq__(self, other):
            return True

        __hash__ = None

    for compare in (expectations.equal, expectations.close):
        with pytest.raises(Mistake):
            compare(Same(), torch.ones(2))
    with pytest.raises(Mistake):
        expectations.equal(Same(), 3)


def test_true_is_not_one():
    with pytest.raises(Mistake):
        expectations.equal(True, 1)


def test_a_missing_gradient_is_named():
    seen = Observation(None, {"0": None})
    with pytest.raises(Mistake, match="cuts the graph"):
        expectations.gradients(seen, Observation(None, {"0": torch.ones(2)}))


def test_no_gradient_and_a_zero_gradient_are_the_same():
    expectations.gradients(Observation(None, {"0": None}), Observation(None, {"0": torch.zeros(2)}))


@pytest.mark.parametrize(
    ("trials", "probability", "false_alarm"),
    [(1200, 0.2, 5e-10), (280, 0.58, 2e-10), (648, 0.4, 1e-9), (50, 0.5, 1e-3), (30, 0.02, 1e-2)],
)
def test_a_rate_raises_a_false_alarm_no_more_often_than_stated(trials, probability, false_alarm):
    alarms = 0.0
    for count in range(trials + 1):
        try:
            expectations.rate(count, trials, probability, "the share", false_alarm=false_alarm)
        except Mistake:
            ways = math.comb(trials, count)
            alarms += float(
                Fraction(ways)
                * Fraction(probability) ** count
                * (1 - Fraction(probability)) ** (trials - count)
            )
    assert 0 < alarms <= false_alarm


def test_a_rate_of_what_is_certain_allows_no_exception():
    expectations.rate(10, 10, 1.0, "the share")
    with pytest.raises(Mistake):
        expectations.rate(9, 10, 1.0, "the share")
    with pytest.raises(Mistake):
        expectations.rate(1, 10, 0.0, "the share")


def test_a_rate_is_judged_by_its_stated_false_alarm():
    expectations.rate(5100, 10000, 0.5, "the share")
    with pytest.raises(Mistake):
        expectations.rate(6000, 10000, 0.5, "the share")


def test_decisions_that_are_shared_or_opposite_are_told_from_independent_ones():
    draw = torch.Generator().manual_seed(0)
    one, other = torch.rand(2, 4000, generator=draw) < 0.3
    expectations.independent(one, other, 0.3, "how often both agree")
    for wrong in (one, ~one):
        with pytest.raises(Mistake, match=r"both agree should be about 0\.58"):
            expectations.independent(one, wrong, 0.3, "how often both agree")


def test_an_argument_that_is_changed_in_several_places_is_told_once():
    said = expectations.changed_in_place(["0.a.weight", "0.b.weight", "mask"])
    assert said.startswith("your code changes its first argument, `mask` in place")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("the weights", "the weights are wrong"),
        ("the mask", "the mask is wrong"),
        ("the gradient of the scores", "the gradient of the scores is wrong"),
        ("the keys of block 1", "the keys of block 1 are wrong"),
        ("qkv_proj.bias", "qkv_proj.bias is wrong"),
    ],
)
def test_the_verb_agrees_with_what_is_wrong(what, words):
    with pytest.raises(Mistake, match=words):
        expectations.close(torch.ones(2, 2), torch.zeros(2, 2), what)


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        (Foreign("generator", "<generator>"), "should be a list of 2 values, not a generator."),
        ([1], "should be a list of 2 values, not of 1."),
    ],
)
def test_what_is_no_list_of_so_many_values_is_called_by_its_type_or_length(actual, said):
    with pytest.raises(Mistake, match=said):
        expectations.items(actual, 2, "the result", kind="list")
