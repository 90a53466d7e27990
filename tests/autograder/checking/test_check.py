"""What `check` tells a student, in the notebook and on the command line."""

from __future__ import annotations

import functools
import json
import linecache
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from autograder.assignments import builder, recorded, recorder, stock
from autograder.checking import check
from autograder.checking.check import Judge, checks_for
from autograder.checking.notebook import check_notebook, unit_of
from autograder.checking.notebook import run_cell as run_numbered_cell
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.sandbox import wire
from autograder.sandbox.timelimit import TimeLimit
from autograder.sandbox.wire import WireError
from autograder.units import variants
from autograder.units.assignment import load, units_of
from autograder.units.sections import sections

UNIT = "attention-self_attention"
SELF_ATTENTION = load(UNIT)
NAMES = SELF_ATTENTION.names
UNITS = units_of(["attention"])
ALL = [(unit, name) for unit in UNITS for name in load(unit).names]


@functools.cache
def solutions_of(unit: str) -> dict[str, str]:
    """The reference's cells by exercise, as the instructor's notebook holds them."""
    notebook, _ = builder.instructor(paths.solution(unit))
    return {
        cell.metadata.nbgrader.grade_id: cell.source
        for cell in notebook.cells
        if "nbgrader" in cell.metadata
    }


@pytest.fixture(scope="module")
def solutions() -> dict[str, str]:
    return solutions_of(UNIT)


def run_cell(namespace: dict[str, Any], source: str, name: str = "<cell 1>") -> None:
    """Execute a cell as IPython does: its lines stay known, for messages."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Gives the names of a unit's notebook in which everything is right."""

    def make(unit: str) -> dict[str, Any]:
        monkeypatch.syspath_prepend(str(paths.EXERCISES / unit))
        monkeypatch.delitem(sys.modules, "given", raising=False)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        for name in ("setup", *load(unit).names):
            run_cell(namespace, solutions_of(unit)[name], f"<right {name}>")
        monkeypatch.delitem(sys.modules, "given", raising=False)
        namespace["check"] = checks_for(unit)
        return namespace

    return make


@pytest.fixture
def notebook(opened: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The notebook on self-attention."""
    return opened(UNIT)


@pytest.fixture
def scores(opened: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The notebook on scores and weights."""
    return opened("attention-scores")


@pytest.fixture
def heads(opened: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The notebook on several heads."""
    judge_of("attention-multi_head")
    return opened("attention-multi_head")


def said(namespace: dict[str, Any], capsys: pytest.CaptureFixture[str], name: str = "") -> str:
    """What `check(name)` prints where there is no notebook."""
    capsys.readouterr()
    exec(f"result = check({name!r})" if name else "result = check()", namespace)
    assert namespace["result"] is None
    out = capsys.readouterr()
    assert out.err == ""
    assert "Traceback" not in out.out
    return out.out


@functools.cache
def judge_of(unit: str) -> Judge:
    recorder.record(unit)
    return Judge(unit)


@pytest.fixture(scope="module", autouse=True)
def judge() -> Judge:
    return judge_of(UNIT)


def test_recorded_answers_are_used_not_the_reference(judge: Judge) -> None:
    assert judge.recording is not None


def test_damaged_recorded_answers_are_noticed(tmp_path: Path, judge: Judge) -> None:
    original = (paths.EXERCISES / UNIT / recorded.FILE).read_bytes()
    path = tmp_path / recorded.FILE
    path.write_bytes(original[: len(original) // 2])
    with pytest.raises(WireError):
        recorded.read(path)
    path.write_bytes(wire.encode({"something": "else"}))
    with pytest.raises(WireError, match="no file of recorded answers"):
        recorded.read(path)
    data = wire.decode(original)
    part = data["parts"]["causal_mask"]
    part[len(part) // 2] ^= 255
    path.write_bytes(wire.encode(data))
    damaged = recorded.read(path)
    tests = {owner: name for name, owner in data["exercises"].items()}
    assert damaged.data["tests"][tests["padding_mask"]]["answers"]
    with pytest.raises(WireError):
        damaged.data["tests"][tests["causal_mask"]]


def test_recorded_answers_to_other_questions_are_not_used(notebook: dict[str, Any]) -> None:
    judge = Judge(UNIT)
    assert judge.recording is not None
    for entry in judge.recording.data["tests"].values():
        entry["asked"] = ["another question"]
    assert judge.card("causal_mask", notebook).status == "passed"
    assert judge.recording is None


@pytest.mark.parametrize(("unit", "name"), ALL)
def test_right_code_passes(opened: Callable[[str], dict[str, Any]], unit: str, name: str) -> None:
    card = judge_of(unit).card(name, opened(unit))
    assert card.status == "passed", card
    assert card.points == card.max_points == load(unit).exercise(name).points
    assert card.tests


@pytest.mark.parametrize(("unit", "name"), ALL)
def test_an_untouched_stub_is_todo_for_every_test(unit: str, name: str) -> None:
    judge, exercise = judge_of(unit), load(unit).exercise(name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(namespace, "import math\nimport torch\nfrom torch import Tensor, nn\n")
    run_cell(namespace, exercise.stub)
    result, *_ = judge.judge(exercise, namespace)
    assert {test.outcome for test in result.tests} == {"todo"}
    assert result.points == 0
    card = judge.card(name, namespace)
    assert card.status == "todo"
    assert "not written yet" in card.headline
    assert card.tests == []


def test_a_known_mistake_is_the_first_line_with_what_to_reread(
    notebook: dict[str, Any], solutions: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = solutions["scaled_dot_product_attention"].replace("math.sqrt(d_k)", "d_k")
    assert wrong != solutions["scaled_dot_product_attention"]
    run_cell(notebook, wrong)
    text = said(notebook, capsys, "scaled_dot_product_attention")
    first, *rest = text.splitlines()
    assert first.startswith("✗ ")
    assert "√d_k" in first
    assert "1.43 of 5 points on the visible tests" in rest[0]  # refusals are right
    assert rest[1].startswith("  Reread ")
    assert "Smallest failing case: scaled_dot_product_attention(" in text
    assert "expected" in text


@pytest.mark.slow
def test_known_mistakes_are_named_in_the_notebook_too() -> None:
    named = lost = count = 0
    for unit in UNITS:
        for mistake in variants.misconceptions(unit):
            namespace = dict(variants.wrong_namespace(unit, mistake.name))
            card = judge_of(unit).card(mistake.exercise, namespace)
            assert card.status in ("passed", "failed"), mistake.name
            count += 1
            lost += card.status == "failed"
            named += mistake.says in card.headline  # perhaps beside another that fits
    # Some show in hidden tests only, and a few differ from another mistake on other inputs only.
    assert lost >= 0.9 * count
    assert named >= 0.95 * lost


def test_an_unknown_mistake_says_what_differs(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(
        scores,
        "def context_vector(weights, values):\n"
        "    if weights.shape[-1] != values.shape[-2]:\n"
        "        raise ValueError('one weight for each value')\n"
        "    return weights @ values + 7\n",
    )
    text = said(scores, capsys, "context_vector")
    assert re.match(r"✗ The .+ wrong everywhere .+ expected .+, got ", text), text
    assert "Smallest failing case: context_vector(" in text


def test_a_failing_case_of_few_numbers_is_shown_with_them(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(notebook, "def causal_mask(length):\n    return torch.ones(length, length).bool()\n")
    text = said(notebook, capsys, "causal_mask")
    assert re.search(r"Smallest failing case: causal_mask\(\d+\)", text)


def test_tests_that_pass_are_listed_with_those_that_fail(
    opened: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    heads, notebook = opened("attention-multi_head"), opened(UNIT)
    run_cell(
        heads,
        "def merge_heads(x):\n    B, H, T, Dh = x.shape\n    return x.reshape(B, T, H * Dh)\n",
    )
    text = said(heads, capsys, "merge_heads")
    assert "✗" in text.splitlines()[0]
    run_cell(
        notebook,
        "def padding_mask(lengths, max_length=None):\n"
        "    T = int(lengths.max()) if max_length is None else max_length\n"
        "    return (torch.arange(T) < lengths[:, None])[:, None]\n",
    )
    text = said(notebook, capsys, "padding_mask")
    marks = [line.strip()[0] for line in text.splitlines() if line.startswith(("  ✓", "  ✗"))]
    assert marks[0] == "✗"
    assert marks[-1] == "✓"


def test_the_students_own_line_is_shown_when_the_code_raises(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(
        scores,
        "def context_vector(weights, values):\n    total = wieghts @ values\n    return total\n",
    )
    text = said(scores, capsys, "context_vector")
    assert "NameError" in text.splitlines()[0]
    assert "line 2: total = wieghts @ values" in text.splitlines()[0]
    assert "autograder/" not in text


def test_a_line_of_another_exercises_cell_comes_with_that_exercises_name(
    scores: dict[str, Any], solutions: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    step = solutions_of("attention-scores")["AttentionDecoderStep"]
    asked = "context_vector(attn_weights, annotations)"
    assert asked in step
    run_cell(scores, step.replace(asked, asked[:-1] + "[:, 1:])"), "<cell 2>")
    text = said(scores, capsys, "AttentionDecoderStep")
    own = r"line \d+: context = context_vector\(.+"
    assert re.search(rf"\({own}; in context_vector, line \d+: raise ValueError", text), text
    run_cell(scores, "def twice(x):\n    return x.doubled\n", "<cell 3>")
    run_cell(scores, "def context_vector(weights, values):\n    return twice(values)\n", "<cell 4>")
    text = said(scores, capsys, "context_vector")
    assert "(line 2: return twice(values); in twice, line 2: return x.doubled)" in text


def test_where_one_slip_makes_many_tests_fail_only_the_first_has_a_cross(
    notebook: dict[str, Any], solutions: dict[str, str]
) -> None:
    name = "scaled_dot_product_attention"

    def marks(right: str, wrong: str) -> list[tuple[str, str]]:
        assert right in solutions[name]
        run_cell(notebook, solutions[name].replace(right, wrong))
        card = judge_of(UNIT).card(name, notebook)
        assert card.status == "failed"
        return [(test.outcome, test.message) for test in card.tests]

    for right, wrong in [
        (" / math.sqrt(d_k)", ""),
        (" / math.sqrt(d_k)", " / (d_k + 1)"),  # of which nobody knows what it is
        ("masked_softmax(scores, mask)", "masked_softmax(scores, mask, dim=-2)"),
        ("key.transpose(-2, -1)", "key.T"),
    ]:
        found = marks(right, wrong)
        assert [outcome for outcome, _ in found].count("failed") == 1, wrong
        assert any(message.startswith(check.FOLLOWS) for _, message in found), wrong
    # Two slips of different kinds have a cross each.
    wrong = solutions[name].replace("if key.shape[-1] != d_k:", "if False:")
    run_cell(notebook, wrong.replace(" / math.sqrt(d_k)", " / (d_k + 1)"))
    crosses = [
        test for test in judge_of(UNIT).card(name, notebook).tests if test.outcome == "failed"
    ]
    assert ["should raise" in test.message for test in crosses] == [False, True]


def test_what_a_known_mistake_does_not_explain_keeps_its_cross_and_its_message(
    notebook: dict[str, Any], solutions: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    name = "scaled_dot_product_attention"
    unscaled = solutions[name].replace(" / math.sqrt(d_k)", "")
    run_cell(notebook, unscaled.replace("if key.shape[-1] != d_k:", "if False:"))
    text = said(notebook, capsys, name)
    assert "not scaled" in text.splitlines()[0]
    crosses = [line for line in text.splitlines() if line.startswith("  ✗")]
    assert len(crosses) == 2
    refused = "A query of width 4 with a key of width 5 should raise ValueError, but ended in "
    assert f"{crosses[1]}\n      {refused}" in text


def test_the_smallest_case_is_one_whose_values_are_wrong(
    heads: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    right = solutions_of("attention-multi_head")["MultiHeadAttention"]
    assert "mask.unsqueeze(1)" in right
    run_cell(heads, right.replace("mask.unsqueeze(1)", "mask.unsqueeze(0)"))
    lines = said(heads, capsys, "MultiHeadAttention").splitlines()
    case = next(n for n, line in enumerate(lines) if "Smallest failing case" in line)
    assert "The attn_weights are wrong in " in lines[case + 1]


def test_the_smallest_case_is_not_one_of_a_test_that_is_put_off(
    opened: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    unit = "positional_encoding-tokens"
    judge_of(unit)
    tokens = opened(unit)
    right = solutions_of(unit)["TokenEmbedding"]
    run_cell(tokens, right.replace("if vocab_size < 1 or", "if vocab_size in (0, 5) or"))
    assert "case: TokenEmbedding(vocab_size=5, d_model=8)" in said(tokens, capsys, "TokenEmbedding")


def test_a_dtype_that_numbers_do_not_show_is_named(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    right = solutions_of("attention-scores")["masked_softmax"]
    run_cell(scores, right.replace("numerator / denominator", "(numerator / denominator).float()"))
    text = said(scores, capsys, "masked_softmax")
    assert re.search(r"case: masked_softmax\(tensor\(\[\[.+\]\], dtype=float64\)\)", text), text


def test_values_made_from_the_query_are_not_called_keys_and_values(
    heads: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    right = solutions_of("attention-multi_head")["MultiHeadAttention"]
    for name, source in [("value", "self.v_proj(value)"), ("key", "self.k_proj(key)")]:
        assert source in right
        run_cell(heads, right.replace(source, source.replace(f"({name})", "(query)")))
        first = said(heads, capsys, "MultiHeadAttention").splitlines()[0]
        assert first.startswith(f"✗ Your {name}s are made from `query`"), first


def test_a_mean_over_the_keys_is_told_from_the_sum(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    right = solutions_of("attention-scores")["context_vector"]
    mean = "(attn_weights.unsqueeze(-1) * values.unsqueeze(1)).mean(2)"
    run_cell(scores, right.replace("attn_weights @ values", mean))
    first = said(scores, capsys, "context_vector").splitlines()[0]
    assert ".mean" in first
    assert "sum to 1" not in first  # they need not


def test_a_call_of_what_was_to_be_written_earns_nothing(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(
        scores,
        "def masked_softmax(scores, mask=None, dim=-1):\n"
        "    if mask is not None:\n"
        "        scores = scores.masked_fill(~mask, float('-inf'))\n"
        "    return torch.softmax(scores, dim)\n",
    )
    text = said(scores, capsys, "masked_softmax")
    assert text.startswith("✗")
    assert "which this exercise asks you to write yourself" in text
    assert "0 of 4 points" in text


@pytest.mark.parametrize(
    ("unit", "name", "said_instead"),
    [
        (
            "attention-self_attention",
            "SelfAttention",
            "use your own scaled_dot_product_attention.",
        ),
        (
            "attention-multi_head",
            "PerHeadAttention",
            "use the scaled_dot_product_attention that this unit gives you (given.py).",
        ),
    ],
)
def test_who_calls_torchs_function_is_told_which_one_may_be_called(
    opened: Callable[[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    unit: str,
    name: str,
    said_instead: str,
) -> None:
    namespace = opened(unit)
    right = solutions_of(unit)[name]
    own = "scaled_dot_product_attention("
    run_cell(namespace, right.replace(own, f"torch.nn.functional.{own}"))
    text = said(namespace, capsys, name)
    assert said_instead in " ".join(text.split())
    assert "write yourself" not in text


def test_a_softmax_tried_elsewhere_costs_nothing(scores: dict[str, Any]) -> None:
    scores["In"] = ["", "torch.softmax(torch.ones(3), 0)"]
    run_cell(scores, "def compare(x):\n    return torch.softmax(x, 0)\n")
    assert judge_of("attention-scores").card("masked_softmax", scores).status == "passed"


def test_an_earlier_version_of_a_cell_does_not_count(scores: dict[str, Any]) -> None:
    scores["In"] = ["", "def masked_softmax(s, mask=None, dim=-1):\n    return s.softmax(dim)"]
    run_cell(scores, scores["In"][1], "<cell 1>")
    assert judge_of("attention-scores").card("masked_softmax", scores).status == "failed"
    run_cell(scores, solutions_of("attention-scores")["masked_softmax"], "<cell 2>")
    assert judge_of("attention-scores").card("masked_softmax", scores).status == "passed"


def test_an_exercise_that_calls_a_wrong_one_points_to_it(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(scores, "def masked_softmax(scores, mask=None, dim=-1):\n    return scores * 0.3\n")
    text = said(scores, capsys, "AttentionDecoderStep")
    assert "It calls your `masked_softmax`, which does not pass its own check yet" in text


def test_an_exercise_that_calls_an_unwritten_one_names_it(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(scores, load("attention-scores").exercise("masked_softmax").stub)
    text = said(scores, capsys, "AttentionDecoderStep")
    assert text.startswith(
        "○ `AttentionDecoderStep` calls `masked_softmax`, which is not written yet"
    )


def test_a_name_that_is_not_defined_asks_to_run_its_cell(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    del notebook["causal_mask"]
    text = said(notebook, capsys, "causal_mask")
    assert text.startswith("○ `causal_mask` is not defined yet: run the cell that defines it")


def test_a_misspelt_name_gets_a_suggestion(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(scores, capsys, "mask_softmax")
    assert text == "! There is no exercise called mask_softmax. Did you mean masked_softmax?\n"
    assert "The exercises are DotScore, " in said(scores, capsys, "zzz")


def test_the_function_itself_may_be_named(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    exec("check(causal_mask)", notebook)
    assert capsys.readouterr().out.startswith("✓ `causal_mask` passes")


def test_without_a_name_all_exercises_are_shown(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(notebook, SELF_ATTENTION.exercise("causal_mask").stub)
    text = said(notebook, capsys)
    lines = text.splitlines()
    assert len(lines) == len(NAMES) + 1
    assert [line.split()[1] for line in lines[1:]] == list(NAMES)
    assert "✓ padding_mask" in text
    assert "○ causal_mask" in text


def test_what_the_code_prints_while_judged_is_not_shown(
    scores: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(
        scores,
        "import sys, warnings\n"
        "def context_vector(weights, values):\n"
        "    print('debug'); print('debug', file=sys.stderr); warnings.warn('debug')\n"
        "    if weights.shape[-1] != values.shape[-2]:\n"
        "        raise ValueError('Tk')\n"
        "    return weights @ values\n",
    )
    text = said(scores, capsys, "context_vector")
    assert text.startswith("✓")
    assert "debug" not in text


def test_an_interrupted_check_says_so_and_the_next_one_works(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run_cell(notebook, "def causal_mask(length):\n    raise KeyboardInterrupt\n")
    assert said(notebook, capsys, "causal_mask").startswith("! You stopped the check")
    assert said(notebook, capsys, "padding_mask").startswith("✓")


def test_an_assignment_that_is_not_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    namespace: dict[str, Any] = {"check": checks_for("nothing")}
    assert said(namespace, capsys, "x").startswith("! There is no assignment called nothing here")


def test_checking_leaves_the_notebooks_random_numbers_alone(scores: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    judge_of("attention-scores").card("attention_dropout", scores)
    assert torch.equal(torch.rand(2), expected)


# Points for stock nbgrader.


def test_stock_points_don_t_count_an_earlier_mistake_again(notebook: dict[str, Any]) -> None:
    def points(name: str) -> float:
        exec(f"got = points({UNIT!r}, {name!r})", notebook)
        return float(notebook["got"])

    notebook["points"] = stock.points
    run_cell(notebook, WRONG_CAUSAL)
    assert points("causal_mask") < SELF_ATTENTION.exercise("causal_mask").points
    assert points("MaskedSelfAttention") == SELF_ATTENTION.exercise("MaskedSelfAttention").points
    assert notebook["causal_mask"](2).all(), "the notebook's own is back in its place"


def test_stock_points_are_floats_and_count_hidden_tests(
    notebook: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    notebook["points"] = stock.points
    exec("got = points('attention-self_attention', 'causal_mask')", notebook)
    assert notebook["got"] == 1.0
    assert type(notebook["got"]) is float
    run_cell(notebook, SELF_ATTENTION.exercise("causal_mask").stub)
    exec("got = points('attention-self_attention', 'causal_mask')", notebook)
    assert notebook["got"] == 0.0
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "")
    hidden = [item for item in stock._graders(UNIT).items if item.hidden]
    assert hidden


# Notebooks.


def write_notebook(path: Path, sources: dict[str, str], changes: dict[str, str]) -> Path:
    """The student's notebook with the given cells filled in."""
    text = (paths.EXERCISES / UNIT / f"{UNIT}.ipynb").read_text(encoding="utf-8")
    data = nbformat.reads(text, as_version=4)
    for cell in data.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in NAMES:
            cell.source = changes.get(name, sources[name])
    path.write_text(nbformat.writes(data), encoding="utf-8")
    return path


WRONG_CAUSAL = "def causal_mask(length):\n    return torch.ones(length, length).bool()\n"


def test_a_right_notebook_passes(tmp_path: Path, solutions: dict[str, str]) -> None:
    path = write_notebook(tmp_path / f"{UNIT}.ipynb", solutions, {})
    report = check_notebook(path)
    assert report.passed
    assert report.troubles == ()
    assert [card.name for card in report.cards] == list(NAMES)


def test_ungraded_cells_are_not_run(tmp_path: Path, solutions: dict[str, str]) -> None:
    path = write_notebook(tmp_path / f"{UNIT}.ipynb", solutions, {})
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[-1].source.startswith("%%ungraded\n")
    notebook.cells[-1].source = f"%%ungraded\ndel {NAMES[0]}\n1 / 0"
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    report = check_notebook(path, NAMES[:1])
    assert report.passed
    assert report.troubles == ()


def test_a_cell_that_fails_is_reported_and_the_others_count(
    tmp_path: Path, solutions: dict[str, str]
) -> None:
    changes = {
        "causal_mask": WRONG_CAUSAL + "\n1 / 0",
        "padding_mask": "def padding_mask(lengths, max_length=None)\n    return lengths",
        "scaled_dot_product_attention": "%matplotlib inline\n"
        + solutions["scaled_dot_product_attention"],
    }
    path = write_notebook(tmp_path / f"{UNIT}.ipynb", solutions, changes)
    report = check_notebook(path, list(changes))
    assert not report.passed
    assert [card.status for card in report.cards] == ["failed", "todo", "passed"]
    assert any("line 4: 1 / 0 raised ZeroDivisionError" in line for line in report.troubles)
    assert any("line 1: expected ':'" in line for line in report.troubles)
    assert report.cards[1].headline.startswith("The cell of `padding_mask` did not run. Code cell")


BROKEN = {
    "cut": ('{"cells": [', "not a readable notebook"),
    "empty": ("", "not a readable notebook"),
    "a list": ("[]", "holds no cells"),
    "old": ('{"worksheets": []}', "holds no cells"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_notebook_is_one_sentence(tmp_path: Path, kind: str) -> None:
    text, expected = BROKEN[kind]
    path = tmp_path / f"{UNIT}.ipynb"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AssignmentError, match=expected) as caught:
        check_notebook(path)
    assert "\n" not in str(caught.value)


def test_a_missing_notebook_and_a_nameless_one_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(AssignmentError, match="There is no notebook at"):
        check_notebook(tmp_path / "nothing.ipynb")
    path = tmp_path / "homework.ipynb"
    path.write_text('{"cells": [{"cell_type": "code", "source": 3}, 7]}', encoding="utf-8")
    with pytest.raises(AssignmentError, match="add --unit seq2seq-text"):
        check_notebook(path)
    with pytest.raises(AssignmentError, match="Did you mean causal_mask"):
        check_notebook(path, ["causal_msk"], unit=UNIT)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autograder", "check", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
        check=False,
    )


def test_the_exit_status_says_whether_all_pass(tmp_path: Path, solutions: dict[str, str]) -> None:
    path = write_notebook(tmp_path / "a.ipynb", solutions, {"causal_mask": WRONG_CAUSAL})
    good = command(path, "--exercise", "padding_mask")
    assert (good.returncode, good.stderr) == (0, "")
    bad = command(path, "--exercise", "causal_mask", "--exercise", "padding_mask")
    assert bad.returncode == 1
    assert "causal_mask" in bad.stdout
    assert "Traceback" not in bad.stdout + bad.stderr
    path.write_text("{", encoding="utf-8")
    broken = command(path)
    assert broken.returncode == 1
    assert broken.stderr.count("\n") == 1


# What a unit is given.

MISSING = (
    "given.py is missing or another unit's: put the one that came with this notebook beside it "
    "and restart the kernel."
)


def test_without_given_parts_beside_it_a_notebook_gets_the_courses(
    tmp_path: Path, solutions: dict[str, str]
) -> None:
    path = write_notebook(tmp_path / "mine.ipynb", solutions, {})
    for beside in (None, "causal_mask = None\n"):
        if beside:
            (tmp_path / "given.py").write_text(beside, encoding="utf-8")  # another unit's
        report = check_notebook(path, ["scaled_dot_product_attention"])
        assert report.passed
        assert report.troubles == ()


def test_in_the_terminal_a_missing_given_file_is_one_sentence(
    tmp_path: Path, solutions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "given", raising=False)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "exercises" not in place])
    with TimeLimit({}) as limit:
        said = run_numbered_cell([solutions["setup"]], 1, {}, limit)
    assert said == MISSING


@pytest.mark.slow
def test_in_jupyter_the_given_file_beside_the_notebook_is_used_and_asked_for(
    tmp_path: Path, solutions: dict[str, str]
) -> None:
    """The student's notebook works where it is released, and says so where given.py is not."""
    path = write_notebook(tmp_path / f"{UNIT}.ipynb", solutions, {})
    book = nbformat.read(path, as_version=4)
    client = functools.partial(
        NotebookClient,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    )
    with pytest.raises(CellExecutionError) as stopped:
        client(book).execute()
    assert (stopped.value.ename, stopped.value.evalue) == ("ImportError", MISSING)
    shutil.copy(paths.given(UNIT), tmp_path)
    book = client(nbformat.read(path, as_version=4)).execute()
    shown = [
        output["data"]["text/plain"]
        for cell in book.cells
        if cell.get("source", "").startswith("check(")
        for output in cell.outputs
    ]
    assert len(shown) == len(NAMES)
    assert all(text.startswith("✓") for text in shown)


# Recorded answers.


@pytest.mark.parametrize("reference", [True, False])
def test_without_recorded_answers_a_sentence_says_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reference: bool,
) -> None:
    ignored = shutil.ignore_patterns(recorded.FILE)
    shutil.copytree(paths.EXERCISES / UNIT, tmp_path / UNIT, ignore=ignored)
    monkeypatch.setattr(paths, "EXERCISES", tmp_path)
    monkeypatch.setattr(check, "_has_reference", lambda unit: reference)
    expected = (
        f"make them with python -m autograder build {UNIT}."
        if reference
        else "unpack the course's zip again, or ask for a new one."
    )
    text = said({"check": checks_for(UNIT)}, capsys, "causal_mask")
    assert text == (f"! The recorded answers for {UNIT} (recorded.bin) are missing; {expected}\n")
    (tmp_path / UNIT / recorded.FILE).write_bytes(b"damaged")
    if reference:  # Somebody at work on the course has it to ask.
        assert Judge(UNIT).recording is None
    else:
        with pytest.raises(AssignmentError, match="are damaged; unpack the course's zip again"):
            Judge(UNIT)


# Which unit it is.


@pytest.mark.parametrize(
    ("name", "code", "unit"),
    [
        ("x.ipynb", 'check = checks_for("gpt-model")', "gpt-model"),
        ("gpt-model.ipynb", "check = checks_for( 'bert-fine_tuning' )", "bert-fine_tuning"),
        ("Gpt-model (1).ipynb", "", "gpt-model"),
        ("gpt-model.ipynb", 'check = checks_for("gpt")', "gpt-model"),
    ],
)
def test_the_unit_is_what_the_notebook_or_its_name_says(name: str, code: str, unit: str) -> None:
    assert unit_of(Path(name), ["import torch", code]) == unit


def test_a_notebook_of_a_whole_chapter_is_told_its_units(tmp_path: Path) -> None:
    with pytest.raises(AssignmentError, match="gpt is a chapter of 4 units; name one of them: "):
        unit_of(Path("gpt.ipynb"), ['check = checks_for("gpt")'])
    path = write_notebook(tmp_path / "x.ipynb", solutions_of(UNIT), {})
    asked = command(path, "--unit", "gpt")
    assert asked.returncode == 1
    assert asked.stderr.startswith("gpt is a chapter of 4 units; name one of them: gpt-model, ")
    assert asked.stderr.count("\n") == 1


def test_what_to_reread_names_the_chapter_and_links_to_it() -> None:
    assignment = replace(SELF_ATTENTION, pages={"att-causal": "attention/masks"})
    online = replace(assignment, book="https://example.org/")
    words, link = check.section(online, "att-causal")
    assert words == f"“{assignment.sections['att-causal']}” in the chapter “Attention”"
    assert link == "https://example.org/attention/masks.html#att-causal"
    unknown = check.section(online, "att-nowhere")
    assert unknown == (
        "section att-nowhere",
        "https://example.org/attention/index.html#att-nowhere",
    )


def test_what_to_reread_is_linked_to_its_source_in_a_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(paths.EXERCISES / UNIT)
    anchor = next(iter(sections("attention")))
    _, link = check.section(SELF_ATTENTION, anchor)
    page, _, found = link.partition("#")
    assert found == anchor
    assert f"({anchor})=" in Path(page).read_text(encoding="utf-8")


@pytest.mark.slow
def test_in_jupyter_the_card_is_displayed_and_stock_points_are_the_result(
    tmp_path: Path,
) -> None:
    instructor, _ = builder.instructor(paths.solution(UNIT))
    for cell in instructor.cells:
        if cell.metadata.get("nbgrader", {}).get("grade_id") == "causal_mask":
            cell.source = WRONG_CAUSAL
    shutil.copy(paths.given(UNIT), tmp_path)
    NotebookClient(
        instructor, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    seen = {}
    for cell in instructor.cells:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if not grade_id.startswith("check_"):
            continue
        shown, result = cell.outputs
        assert shown.output_type == "display_data"
        assert "tbh-card" in shown.data["text/html"]
        assert shown.data["text/plain"]
        assert result.output_type == "execute_result"
        seen[grade_id.removeprefix("check_")] = float(result.data["text/plain"])
    assert list(seen) == list(NAMES)
    lost = {name for name in NAMES if seen[name] < SELF_ATTENTION.exercise(name).points}
    assert "causal_mask" in lost
    assert lost <= {"causal_mask", "MaskedSelfAttention", "decoder_mask"}


def test_names_used_looks_into_methods_and_nested_functions() -> None:
    namespace: dict[str, Any] = {}
    exec(
        "def f(x):\n    return [g(y) for y in x]\nclass C:\n    def m(self): return h()", namespace
    )
    assert "g" in check.names_used(namespace["f"])
    assert "h" in check.names_used(namespace["C"])


def test_names_reached_are_those_of_the_notebook_however_far_away() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "from json import dumps\n"
        "def deep(x): return dumps(x)\ndef middle(x): return deep(x)\n"
        "class Top:\n    def forward(self, x): return middle(x)\ndef other(x): return x",
        namespace,
    )
    assert check.names_reached("Top", namespace) == {"Top", "middle", "deep"}


def test_importing_the_package_loads_neither_torch_nor_pytest_nor_nbgrader() -> None:
    code = (
        "import json, sys; import autograder; autograder.checks_for('attention-scores'); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=paths.ROOT, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert not loaded & {"torch", "pytest", "nbgrader", "IPython", "numpy", "rich", "typer"}
