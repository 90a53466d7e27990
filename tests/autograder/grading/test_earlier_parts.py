"""One mistake costs once: what follows from an earlier exercise is judged with the course's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import nbformat
import pytest

from autograder.grading import earlier_parts
from autograder.grading.marker import Marker
from autograder.grading.repair import RepairedNotebook
from autograder.judging.results import FOR_A_LOOK, ExerciseResult, SubmissionResult, TestResult
from autograder.sandbox.limits import Limits
from autograder.units.assignment import load
from autograder.units.variants import reference_answers
from tests.autograder.unit_graders import cell_with

UNIT = "attention-self_attention"
FIRST = "scaled_dot_product_attention"
ASSIGNMENT = load(UNIT)
RIGHT = reference_answers(UNIT)
UNSCALED = RIGHT[FIRST].replace(" / math.sqrt(d_k)", "")
UNWRITTEN = f"def {FIRST}(*given, **named):\n    raise NotImplementedError"
ENDLESS = f"def {FIRST}(*given, **named):\n    while True:\n        pass"

Judge = Callable[..., SubmissionResult]


@pytest.fixture(scope="module")
def judge(solved) -> Iterator[Judge]:
    """Marks the right notebook with some answers changed."""
    with Marker(UNIT, limits=Limits(seconds_per_call=2.0)) as marker:

        def mark(own: str = "", **changes: str) -> SubmissionResult:
            notebook = solved(UNIT, **changes)
            if own:
                notebook.cells.append(nbformat.v4.new_code_cell(own))
            return marker.mark("ada", RepairedNotebook(notebook, []))

        yield mark


def lost(result: SubmissionResult) -> set[str]:
    return {name for name, one in result.exercises.items() if one.points < one.max_points}


@pytest.mark.sandbox
def test_an_early_mistake_costs_nothing_later_and_is_named_there(judge: Judge):
    result = judge(scaled_dot_product_attention=UNSCALED)
    assert lost(result) == {FIRST}
    assert result.exercises[FIRST].misconception == "attention_not_scaled"
    for name in ("SelfAttention", "MaskedSelfAttention"):
        later = result.exercises[name]
        assert later.passed
        assert later.message.startswith(f"This fails only with your {FIRST}.")
    assert not any(FOR_A_LOOK in note for note in result.notes)


@pytest.mark.sandbox
@pytest.mark.parametrize("answer", [UNWRITTEN, ENDLESS], ids=["unwritten", "endless"])
def test_what_needs_an_exercise_that_gives_no_answer_is_judged_too(judge: Judge, answer: str):
    assert lost(judge(scaled_dot_product_attention=answer)) == {FIRST}


@pytest.mark.sandbox
def test_an_own_mistake_still_costs_and_is_told(judge: Judge):
    own = cell_with(UNIT, "self_mask_ignored")
    alone = judge(SelfAttention=own)
    both = judge(scaled_dot_product_attention=UNSCALED, SelfAttention=own)
    assert lost(both) == {FIRST, "SelfAttention"}
    told = both.exercises["SelfAttention"]
    assert told.points == alone.exercises["SelfAttention"].points
    assert told.misconception == "self_mask_ignored"
    assert told.message.startswith(alone.exercises["SelfAttention"].message)
    assert "since yours is not right" in told.message


@pytest.mark.sandbox
def test_a_helper_in_the_wrong_answers_cell_is_still_there(judge: Judge):
    helping = f"{UNSCALED}\n\ndef project(layer, x):\n    return layer(x)\n"
    using = RIGHT["SelfAttention"].replace("self.q_proj(x)", "project(self.q_proj, x)", 1)
    assert using != RIGHT["SelfAttention"]
    assert lost(judge(scaled_dot_product_attention=helping, SelfAttention=using)) == {FIRST}


@pytest.mark.sandbox
def test_an_earlier_exercise_that_passes_all_its_tests_is_a_suspect(judge: Judge):
    # Right in every call that its tests make, and wrong when called from within a module.
    sly = (
        f"{RIGHT[FIRST]}\n\n_right = {FIRST}\n\n"
        f"def {FIRST}(*given, **named):\n"
        "    import sys\n"
        "    inside = sys._getframe(1).f_code.co_name == 'forward'\n"
        "    output, weights = _right(*given, **named)\n"
        "    return (output + 1 if inside else output), weights\n"
    )
    result = judge(scaled_dot_product_attention=sly)
    assert lost(result) == set()
    notes = [note for note in result.notes if FOR_A_LOOK in note]
    assert any(f"SelfAttention passes only with the course's own {FIRST}" in n for n in notes)


@pytest.mark.sandbox
def test_the_courses_answer_is_not_shown_to_who_reads_it_there(judge: Judge):
    telling = (
        "class SelfAttention(nn.Module):\n"
        "    def __init__(self, *given, **named):\n"
        f"        raise RuntimeError(repr({FIRST}.__code__.co_consts))\n"
    )
    own = f"def {FIRST}(*given, **named):\n    return 'my own answer'\n"
    result = judge(scaled_dot_product_attention=own, SelfAttention=telling)
    said = json.dumps(result.to_dict())
    assert "my own answer" in said
    assert " wide, but key is " in RIGHT[FIRST].replace("{d_k}", "")
    assert " wide, but key is " not in said


@pytest.mark.sandbox
def test_nothing_is_run_again_where_all_is_right(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(earlier_parts, "with_reference", None)
    assert lost(judge()) == set()


def test_an_exercise_is_never_judged_beside_its_own_replacement():
    model = load("transformer-model")
    test = TestResult("test", "A test.", False, 1.0, "failed")
    wrong = {
        exercise.name: ExerciseResult(exercise.name, 0.0, exercise.points, tests=[test])
        for exercise in model.exercises
    }
    planned = earlier_parts.rounds(model, wrong, [])
    judged = [name for one in planned for name in one.exercises]
    assert sorted(judged) == sorted(name for name in wrong if earlier_parts.used(model, name))
    for one in planned:
        assert one.replaced.isdisjoint(one.exercises)
    assert len(planned) < len(judged)


def test_what_a_students_answer_uses_counts_beside_what_the_references_does():
    name = "causal_mask"
    assert FIRST not in earlier_parts.used(ASSIGNMENT, name)
    assert FIRST in earlier_parts.used(ASSIGNMENT, name, [FIRST])
    assert "SelfAttention" not in earlier_parts.used(ASSIGNMENT, name, ["SelfAttention"])


@pytest.mark.sandbox
def test_a_list_of_the_courses_that_an_answer_changes_costs_nothing_later(solved):
    unit = "seq2seq-text"
    with Marker(unit) as marker:
        wrong = cell_with(unit, "vocabulary_extends_specials")
        notebook = solved(unit, build_vocabulary=wrong)
        result = marker.mark("ada", RepairedNotebook(notebook, []))
    assert lost(result) == {"build_vocabulary"}
    told = result.exercises["encode"].message
    assert told.startswith("This fails only with your build_vocabulary.")
