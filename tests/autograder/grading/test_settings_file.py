"""What is said to somebody whose settings are about a chapter, or about another unit's exercise."""

from __future__ import annotations

import pytest

from autograder.common.errors import ClassroomError
from autograder.grading import settings_file
from autograder.units.assignment import load

UNIT = "attention-scores"


def said(tmp_path, text: str) -> str:
    path = tmp_path / "grading.toml"
    path.write_text(text)
    with pytest.raises(ClassroomError) as refused:
        settings_file.read(path, load(UNIT))
    return str(refused.value).removeprefix(f"{path}: ")


def test_a_table_of_a_unit_is_for_that_unit(tmp_path):
    path = tmp_path / "grading.toml"
    path.write_text(
        f"attempts = 2\n[{UNIT}]\nattempts = 3\n[attention-self_attention]\nattempts = 4\n"
    )
    attempts = {
        unit: settings_file.read(path, load(unit)).attempts
        for unit in (UNIT, "attention-self_attention", "attention-multi_head")
    }
    assert list(attempts.values()) == [3, 4, 2]


@pytest.mark.parametrize("chapter", ["attention", "gpt"])
def test_a_table_of_a_chapter_is_answered_with_its_units(tmp_path, chapter):
    units = {
        "attention": "attention-scores, attention-self_attention or attention-multi_head",
        "gpt": "gpt-model, gpt-training, gpt-generation or gpt-transfer",
    }
    assert said(tmp_path, f"[{chapter}]\nattempts = 3\n") == (
        f"unknown setting {chapter}; did you mean {units[chapter]}?"
    )


def test_a_name_that_nobody_knows(tmp_path):
    assert said(tmp_path, "xyzzy = 1\n").endswith(
        ", limits, db_url, book, and [seq2seq-text] is the table of a unit."
    )
    assert said(tmp_path, "[atention_scores]\n").endswith("; did you mean attention-scores?")


@pytest.mark.parametrize("name", ["causal_mask", "why_scale"])
def test_an_exercise_or_question_of_the_chapters_other_unit(tmp_path, name):
    assert said(tmp_path, f"[{UNIT}]\nleave_out = ['{name}']\n") == (
        f'{UNIT}.leave_out: {UNIT} has no exercise "{name}"; it is one of '
        "attention-self_attention: write it below [attention-self_attention]."
    )
    said_of_points = said(tmp_path, f"[{UNIT}.points]\n{name} = 2\n")
    assert "write it below [attention-self_attention]" in said_of_points


def test_the_book_is_an_address_that_a_browser_follows(tmp_path):
    for address in ("javascript:alert(0)", "example.org", 'https://x/"onclick', ""):
        assert "is no address of a book" in said(tmp_path, f"book = '{address}'\n")


def test_what_belongs_to_one_unit(tmp_path):
    assert said(tmp_path, "leave_out = ['DotScore']\n").endswith(
        f"belongs to one unit; write it below [{UNIT}]."
    )
