"""Graders run through pytest, once collected, on any implementation."""

from __future__ import annotations

import contextlib

import pytest
import torch

from autograder.judging.recording import record
from autograder.judging.runner import Draw, Graders
from autograder.sandbox.executor import Executor
from autograder.units.variants import load_variant


def test_the_reference_earns_every_point(toy):
    results = toy.run(toy.source)
    assert {name: result.points for name, result in results.items()} == {
        "mean": 4,
        "centre": 2,
        "Scale": 2,
    }


def test_points_are_the_passed_share_by_weight(toy):
    result = toy.run(toy.source.replace("x.shape[dim]", "x.shape[-1]"))["mean"]
    assert [test.outcome for test in result.tests] == ["passed", "failed", "passed", "passed"]
    assert result.points == 2.4  # weights 1 + 1 + 1 of 1 + 2 + 1 + 1, of 4 points


def test_an_untouched_stub_is_todo_and_earns_nothing(toy):
    stub = toy.source.replace(
        "    if x.numel() == 0:", "    raise NotImplementedError('yours')\n    if x.numel() == 0:"
    )
    result = toy.run(stub)["mean"]
    assert {test.outcome for test in result.tests} == {"todo"}
    assert result.points == 0
    assert "not written" in result.message


def test_a_name_that_is_not_defined_is_todo(toy):
    results = toy.run("import torch\n")
    assert all(result.points == 0 for result in results.values())
    assert {test.outcome for result in results.values() for test in result.tests} == {"todo"}


def test_refusing_everything_earns_nothing(toy):
    result = toy.run("def mean(x, dim=-1):\n    raise ValueError('no')\n")["mean"]
    assert result.points == 0


SHAPE_FIRST = """
from autograder.judging import expectations
from autograder.judging.grader_marks import aspect, exercise

@aspect
@exercise("centre")
def test_centre_shape(student, draw):
    x = draw.normal(3, 4)
    expectations.shape(student.centre(x), (3, 4), "the result")

@exercise("centre")
def test_centre_values(student, reference, draw):
    x = draw.normal(3, 4)
    expectations.close(student.centre(x), reference.centre(x), "the result")
"""


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("x - mean(x).unsqueeze(-1)", 2),
        ("x + mean(x).unsqueeze(-1)", 1.33),  # a known mistake: 2 tests of 3
        ("x - 2 * mean(x).unsqueeze(-1)", 0),  # of which nobody knows what it is
        ("x", 0),
        ("x * float('nan')", 0),
        ("torch.randn_like(x)", 0),
    ],
)
def test_an_aspect_pays_beside_right_values_or_a_known_mistake(toy, answer, points, recorded):
    path = toy.path.with_name("test_shape.py")
    path.write_text(SHAPE_FIRST)
    graders = Graders("toy", path=path, assignment=toy.assignment)
    options = {"recording": record("toy", graders)} if recorded else {}
    source = toy.source.replace("x - mean(x).unsqueeze(-1)", answer)
    execute = Executor(load_variant(source, "student")).execute
    for diagnose in (True, False):
        result = graders.run(execute, exercises=["centre"], diagnose=diagnose, **options)["centre"]
        assert result.points == points
    if not points:
        assert {test.outcome for test in result.tests} == {"failed"}
        assert "right values" in result.tests[0].message
        assert result.message == result.tests[1].message


VALUES_AND_REFUSAL = """
from autograder.judging import expectations
from autograder.judging.grader_marks import exercise

@exercise("centre")
def test_centre_values(student, reference, draw):
    x = draw.normal(3, 4)
    expectations.close(student.centre(x), reference.centre(x), "the result")

@exercise("centre")
def test_centre_refuses(student, draw):
    expectations.raises("ValueError", lambda: student.centre(draw.normal(2, 0)), what="nothing")
"""


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("x + mean(x).unsqueeze(-1)", 1),  # a known mistake
        ("x - 2 * mean(x).unsqueeze(-1)", 0),
        ("mean(x).unsqueeze(-1) * 0 + torch.ones_like(x)", 0),  # one number, whatever it refuses
    ],
)
def test_a_refusal_pays_beside_right_values_or_a_known_mistake(toy, answer, points):
    path = toy.path.with_name("test_refusal.py")
    path.write_text(VALUES_AND_REFUSAL)
    graders = Graders("toy", path=path, assignment=toy.assignment)
    source = toy.source.replace("x - mean(x).unsqueeze(-1)", answer)
    execute = Executor(load_variant(source, "student")).execute
    result = graders.run(execute, exercises=["centre"], again=False)["centre"]
    assert result.points == points


def test_what_the_shell_asks_of_pytest_is_not_meant_for_graders(toy, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-v")  # an option of a plug-in that graders do without
    graders = Graders("toy", path=toy.path, assignment=toy.assignment)
    assert {item.exercise for item in graders.items} == {"mean", "centre", "Scale"}


def test_an_exception_is_reported_with_the_students_own_line(toy):
    source = "def mean(x, dim=-1):\n    return x.no_such_thing\n"
    result = toy.run(source)["mean"]
    assert "AttributeError" in result.message
    assert "line 2" in result.message


def test_a_wrong_type_is_said_in_words(toy):
    result = toy.run("def mean(x, dim=-1):\n    return [1.0, 2.0]\n")["mean"]
    assert "torch.Tensor" in result.message
    assert "list" in result.message


def test_an_input_changed_in_place_is_noticed(toy):
    source = toy.source.replace(
        "return x - mean(x).unsqueeze(-1)", "x -= mean(x).unsqueeze(-1)\n    return x.clone()"
    )
    result = toy.run(source)["centre"]
    assert result.points == 0
    assert "in place" in result.message


def test_parameters_of_another_name_are_said_in_words(toy):
    result = toy.run(toy.source.replace("self.weight", "self.scale"))["Scale"]
    assert "missing weight" in result.message
    assert "scale" in result.message


def test_a_cut_gradient_is_noticed(toy):
    result = toy.run(toy.source.replace("x * self.weight", "x * self.weight.detach()"))["Scale"]
    assert result.points == 0
    assert "weight" in result.message


@pytest.mark.parametrize(
    "call",
    [
        "torch.mean(x, dim)",
        "x.mean(dim)",
        "getattr(torch, 'me' + 'an')(x, dim)",
        "torch.ops.aten.mean.dim(x, [dim])",
        "operator.attrgetter('me' + 'an')(torch)(x, dim)",
    ],
)
def test_the_forbidden_function_earns_nothing_by_any_alias(toy, call):
    source = f"import operator\nimport torch\ndef mean(x, dim=-1):\n    return {call}\n"
    result = toy.run(source)["mean"]
    assert result.points == 0
    assert "mean" in result.message


def test_hidden_tests_can_be_left_out(toy):
    visible = Graders("toy", path=toy.path, assignment=toy.assignment, hidden=False)
    assert [item.name for item in visible.items if item.exercise == "mean"] == [
        "test_small",
        "test_empty",
        "test_mean_asked_again",
    ]


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others():
    assert torch.equal(Draw(1, "t").normal(4), Draw(1, "t").normal(4))
    assert not torch.equal(Draw(1, "t").normal(4), Draw(2, "t").normal(4))
    assert not torch.equal(Draw(1, "t").normal(4), Draw(1, "u").normal(4))


def test_masks_keep_and_lose_an_entry_in_every_row():
    for seed in range(50):
        mask = Draw(seed, "mask").mask(3, 4, 5)
        assert mask.any(-1).all()
        assert not mask.all(-1).any()


def test_grading_leaves_the_global_random_state_alone(toy):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    toy.run(toy.source)
    assert torch.equal(torch.rand(3), expected)


def test_a_grader_without_an_exercise_is_refused(toy):
    path = toy.path.with_name("test_unmarked.py")
    path.write_text("def test_nothing(student):\n    assert student\n")
    with pytest.raises(ValueError, match="names no exercise"):
        Graders("toy", path=path, assignment=toy.assignment)


def test_a_fault_of_the_grader_itself_is_raised_not_graded(toy):
    path = toy.path.with_name("test_faulty.py")
    path.write_text(
        "from autograder.judging.grader_marks import exercise\n"
        "@exercise('mean')\n"
        "def test_broken(student, draw):\n"
        "    undefined_name\n"
    )
    graders = Graders("toy", path=path, assignment=toy.assignment)
    with pytest.raises(NameError):
        graders.run(Executor({}).execute)


def test_code_that_catches_the_refusal_earns_nothing_either(toy):
    source = (
        "import torch\n"
        "def mean(x, dim=-1):\n"
        "    if x.numel() == 0: raise ValueError('empty')\n"
        "    try:\n"
        "        return torch.mean(x, dim)\n"
        "    except RuntimeError:\n"
        "        return x.sum(dim) / x.shape[dim]\n"
    )
    result = toy.run(source)["mean"]
    assert (result.points, result.misconception) == (0, "forbidden")
    assert result.message.startswith("Your mean calls torch's mean, which this exercise asks")


def test_what_could_be_undone_while_an_exercise_was_judged_costs_its_points(toy):
    @contextlib.contextmanager
    def refusing(names):
        undone = []
        yield undone
        undone += names[:1]

    results = toy.run(toy.source, refusing=refusing)
    assert (results["mean"].points, results["mean"].misconception) == (0, "forbidden")
    assert "torch's mean can't be called" in results["mean"].message
    assert results["Scale"].passed
