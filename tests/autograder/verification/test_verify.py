"""Graders are judged: strong ones pass, weak ones are found out, and entries go stale."""

from __future__ import annotations

import pytest

from autograder.judging.runner import Graders
from autograder.units import variants
from autograder.verification import verify

WEAK = """
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise

@exercise("mean")
def test_shape_only(student, reference, draw):
    x = draw.normal(2, 3)
    expectations.shape(student.mean(x), (2,), "the mean")

@exercise("centre")
def test_centre_shape(student, reference, draw):
    x = draw.normal(2, 3)
    expectations.shape(student.centre(x), (2, 3), "the result")
"""


@pytest.fixture
def judged(toy, monkeypatch):
    """Verify the toy unit with its own graders, or with others from a file."""

    def judge(graders=toy.graders):
        monkeypatch.setitem(verify._graders, "toy", graders)
        monkeypatch.setattr(verify, "source_of", lambda unit: toy.source)
        for name in ("misconceptions", "reference_namespace", "wrong_namespace"):
            monkeypatch.setattr(verify, name, getattr(variants, name))
        return verify.verify(["toy"])[0]

    return judge


def test_good_graders_reject_and_name_every_known_mistake(judged):
    verdict = judged()
    assert verdict.reference == verdict.points == 8
    assert (verdict.misconceptions, verdict.rejected, verdict.diagnosed) == (3, 3, 3)
    assert verdict.trivial == verdict.refused > 0
    assert verdict.killed >= 0.8 * verdict.mutants > 5


def test_graders_that_look_at_shapes_only_are_found_out(judged, toy):
    path = toy.path.with_name("test_weak_toy.py")
    path.write_text(WEAK)
    verdict = judged(Graders("toy", path=path, assignment=toy.assignment))
    # Not divides_by_rows: whether a row depends on how many there are is asked of every exercise.
    assert set(verdict.accepted) == {"sum_only", "adds"}
    assert "mean: x.sum(dim) / x.shape[dim] -> x.sum(dim) * x.shape[dim]" in verdict.survivors
    assert "mean: zeros in the right form, others right, earns 4" in verdict.gifts
    assert "centre: first input, others missing, earns 2" in verdict.gifts
    assert not verdict.sound


def test_a_promise_that_no_test_keeps_makes_graders_unsound(judged, toy, monkeypatch):
    text = '# %% [markdown]\n# Of each row. <!-- id: each-row -->\n# %% exercise="mean"'
    source = toy.source.replace('# %% exercise="mean"', text)
    monkeypatch.setattr(toy, "source", source)
    verdict = judged()
    assert "mean: each-row" in verdict.untested
    assert verdict.without_ids == ["centre", "Scale"]
    assert not verdict.sound


def test_a_listed_mutant_that_is_noticed_or_gone_is_reported(judged, monkeypatch):
    listed = {
        "mean: x.sum(dim) / x.shape[dim] -> x.sum(dim) * x.shape[dim]": "wrong reason",
        "mean: no such change": "gone",
    }
    monkeypatch.setattr(verify, "equivalents", lambda unit: listed)
    assert set(judged().stale) == set(listed)


def test_a_mistake_that_is_named_with_the_references_initial_values_only_is_listed(
    judged, monkeypatch
):
    started = variants.Misconception(
        "starts_at_zero",
        "Scale",
        "You start with zeros; start with ones.",
        "toy-scale",
        swap=[("torch.ones(width)", "torch.zeros(width)")],
    )
    forgets = variants.Misconception(
        "forgets_weight",
        "Scale",
        "You return x as it is.",
        "toy-scale",
        swap=[("x * self.weight", "x")],
    )
    known = {item.name: item for item in (started, forgets)}
    wrong = {
        name: variants.load_variant(variants.source_of("toy").replace(*item.swap[0]), name)
        for name, item in known.items()
    }
    monkeypatch.setattr(variants, "misconceptions", lambda unit: tuple(known.values()))
    monkeypatch.setattr(variants, "wrong_namespace", lambda unit, name: wrong[name])
    verdict = judged()
    assert "forgets_weight" not in verdict.as_initialised
    assert verdict.as_initialised == ["starts_at_zero"]
