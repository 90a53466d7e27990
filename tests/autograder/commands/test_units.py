"""A command that takes a unit says what a chapter's are, and takes a chapter where it can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autograder.assignments import builder, recorder
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.demo import make_class
from autograder.units.assignment import load, require_unit, units_of
from autograder.verification import verify
from tests.autograder.helpers import status_of

SAID = (
    "attention is a chapter of 3 units; name one of them: "
    "attention-scores, attention-self_attention or attention-multi_head."
)
COMMANDS = {
    "grade": ["grade", "attention", "--submitted", "in"],
    "bundle": ["bundle", "attention"],
    "report": ["report", "attention"],
    "export": ["export", "moodle", "attention", "--out", "marks.csv"],
    "import": ["import", "moodle", "export.zip", "--assignment", "attention", "--to", "in"],
    "package for Gradescope": ["package", "gradescope", "attention"],
    "package for GitHub": ["package", "github", "attention"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_chapter_is_answered_with_its_units(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status_of(COMMANDS[command]) == 2
    assert capsys.readouterr().err == f"autograder: {SAID}\n"
    assert not any(tmp_path.iterdir())


def test_so_does_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = paths.EXERCISES / "attention-scores" / "attention-scores.ipynb"
    assert status_of(["check", str(path), "--unit", "attention"]) == 1
    assert capsys.readouterr().err == f"{SAID}\n"


def test_so_does_the_demonstration_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        make_class.main([str(tmp_path / "new"), "--unit", "attention"])
    assert end.value.code == 1
    assert SAID in capsys.readouterr().err


def test_a_chapter_stands_for_its_units() -> None:
    assert units_of(["gpt-model", "attention", "attention-scores"]) == [
        "gpt-model",
        "attention-scores",
        "attention-self_attention",
        "attention-multi_head",
    ]
    assert units_of(paths.CHAPTERS) == list(paths.UNITS)
    assert require_unit("gpt-model") == "gpt-model"
    for ask in (load, require_unit):
        with pytest.raises(AssignmentError, match="attention is a chapter of 3 units"):
            ask("attention")


def test_build_takes_a_chapter(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked: list[str] = []
    monkeypatch.setattr(builder, "build", lambda units, check=False: asked.extend(units) or [])
    monkeypatch.setattr(
        recorder,
        "record_all",
        lambda units: asked.extend(f"recorded {unit}" for unit in units) or [],
    )
    attention = units_of(["attention"])
    assert status_of(["build", "attention"]) == 0
    assert asked == [*attention, *(f"recorded {unit}" for unit in attention)]
    assert "attention-multi_head: nothing to do" in capsys.readouterr().out
    assert status_of(["build", "atention-scores"]) == 2
    assert "Did you mean attention-scores?" in capsys.readouterr().err


def test_verify_takes_a_chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    sound = {unit: verify.Verdict(unit, exercises=1) for unit in paths.UNITS}
    sound["bert-model"].promises = 12
    monkeypatch.setattr(verify, "verify", lambda units, **_: [sound[unit] for unit in units])
    file = tmp_path / "verify.json"
    assert status_of(["verify", "bert", "--json", str(file)]) == 0
    units = [f"bert-{name}" for name in paths.CHAPTERS["bert"]]
    assert [one["unit"] for one in json.loads(file.read_text())] == units
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "12 promises have ids."
    sound["bert-model"].untested = ["BertModel: pooled-first-token"]
    sound["bert-relatives"].without_ids = ["DistilBert"]
    assert status_of(["verify", "bert"]) == 1
    said = capsys.readouterr().out
    assert "bert-model: promise without a test: BertModel: pooled-first-token" in said
    assert "bert-relatives: text without ids of its promises: DistilBert" in said
    assert status_of(["verify", "brt"]) == 2
    assert "There is no assignment called brt here." in capsys.readouterr().err
