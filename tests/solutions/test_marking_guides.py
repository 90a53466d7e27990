"""The marking guides: one for each written question, its points add up, and no student gets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from autograder.assignments import bundle, recorder
from autograder.common import paths
from autograder.units.assignment import Assignment, Question, load

FILE = paths.SOLUTIONS / "marking_guides.md"
QUESTIONS = [(unit, question) for unit in paths.units() for question in load(unit).questions]
EVERY_QUESTION = pytest.mark.parametrize(
    ("unit", "question"), QUESTIONS, ids=[question.name for _, question in QUESTIONS]
)
SHORT = 50  # Letters up to which two texts may agree by chance


def guides() -> dict[tuple[str, str], str]:
    """The guides' texts by unit and question, in the order of the file."""
    found = {}
    for part in re.split(r"^## ", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        unit, *questions = re.split(r"^### ", part, flags=re.MULTILINE)
        for text in questions:
            name, _, rest = text.removeprefix("`").partition("`")
            assert (unit.strip(), name) not in found
            found[unit.strip(), name] = rest
    return found


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of a guide's table whose head begins with `heading`."""
    (table,) = re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE)
    return [
        [cell.strip() for cell in row.strip().strip("|").split(" | ")] for row in table.splitlines()
    ]


def sentences(text: str) -> set[str]:
    """Sentences and cells of tables that are long enough to be told from others."""
    parts = re.split(r"(?<=[.;?!]) | \| |^\| | \|$", text, flags=re.MULTILINE)
    return {" ".join(part.split()) for part in parts if len(" ".join(part.split())) > SHORT}


def flat(data: bytes, name: str) -> str:
    """A file's text on one line; of a notebook what its cells say."""
    text = data.decode("utf-8", errors="ignore")
    if name.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return " ".join(text.split())


def test_every_written_question_has_a_guide_in_the_order_of_the_course() -> None:
    assert list(guides()) == [(unit, question.name) for unit, question in QUESTIONS]
    assert len(QUESTIONS) == 12


@EVERY_QUESTION
def test_a_guide_says_what_is_full_what_each_part_earns_and_what_goes_wrong(
    unit: str, question: Question
) -> None:
    text = guides()[unit, question.name]
    assert text.startswith(f": {question.title}\n")
    assert f"*Book: `{question.section}`.*" in text
    (answer,) = re.findall(r"^\*\*A full answer\.\*\* (.+)$", text, re.MULTILINE)
    assert 3 <= len(re.findall(r"[.?](?= [A-Z*«]|$)", answer)) <= 7
    assert re.search(r"\d", answer), "a number of the book"
    points = [float(row[-1]) for row in rows(text, "part")]
    assert sum(points) == question.points
    assert len(points) == 3
    slips = rows(text, "what goes wrong")
    assert len(slips) >= 3
    assert all(len(row) == 2 and all(row) for row in slips)


@EVERY_QUESTION
def test_the_model_answer_leads_to_the_guide(unit: str, question: Question) -> None:
    source = paths.solution(unit).read_text(encoding="utf-8")
    cell = source.partition(f'question="{question.name}"')[2].partition("### END SOLUTION")[0]
    assert "solutions/marking_guides.md" in cell
    assert "Marking:" not in cell  # Points by part stand in one place


def test_the_page_says_that_it_is_public() -> None:
    before = FILE.read_text(encoding="utf-8").partition("\n## ")[0]
    assert "This repository is public, and so is this page." in before


def test_no_notebook_and_no_page_of_the_book_holds_a_guides_text() -> None:
    secret = {sentence for text in guides().values() for sentence in sentences(text)}
    assert len(secret) > 100
    files = [*paths.EXERCISES.rglob("*.ipynb"), *paths.EXERCISES.rglob("*.py")]
    files += [path for path in paths.BOOK.rglob("*") if path.suffix in {".md", ".csv", ".py"}]
    assert len(files) > 100
    assert holding(secret, {file.as_posix(): file.read_bytes() for file in files}) == []


def holding(secret: set[str], files: dict[str, bytes]) -> list[str]:
    """The files, with a sentence each, that hold one of the sentences."""
    return [
        f"{name}: {sentence}"
        for name, data in files.items()
        if Path(name).suffix not in {".bin", ".safetensors"}
        for text in [flat(data, name)]
        for sentence in sorted(secret)
        if sentence in text
    ]


@pytest.mark.parametrize("unit", sorted({unit for unit, _ in QUESTIONS}))
def test_no_bundle_holds_a_guide_or_its_text(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Recorded answers are tensors, and take a while; another file stands in their place.
    monkeypatch.setattr(recorder, "record", lambda unit: None)
    monkeypatch.setattr(bundle, "FILE", "assignment.json")
    files = bundle.contents(unit)
    assert not [name for name in files if FILE.name in name]
    secret = {sentence for text in guides().values() for sentence in sentences(text)}
    assert holding(secret, files) == []
    assert Assignment.from_json(files[f"exercises/{unit}/assignment.json"].decode()).questions


def test_a_sentence_is_found_wherever_its_lines_break() -> None:
    (secret,) = sentences("The loss dives below 1 within 80 steps, and the model copies.")
    cell = {"source": ["The loss dives below 1\n", "within 80 steps, and the\n", "model copies."]}
    data = json.dumps({"cells": [cell]}).encode()
    assert holding({secret}, {"a.ipynb": data}) == [f"a.ipynb: {secret}"]
    assert holding({secret}, {"a.py": b"The loss dives."}) == []
