"""Recorded answers: made when they are missing or stale, left alone otherwise."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autograder.assignments import builder, recorded, recorder
from autograder.common import paths
from autograder.common.errors import AssignmentError
from autograder.judging import recording
from autograder.judging.diagnosis import same_value
from autograder.judging.runner import Graders
from autograder.sandbox.wire import WireError
from autograder.units.variants import misconceptions
from tests.autograder.helpers import status_of

UNIT = "attention-scores"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the unit's recorded answers go, in exercises of the test's own; nothing is there."""
    folder = tmp_path / "exercises" / UNIT
    ignored = shutil.ignore_patterns(recorded.FILE)
    shutil.copytree(paths.EXERCISES / UNIT, folder, ignore=ignored)
    monkeypatch.setattr(paths, "EXERCISES", folder.parent)
    return folder / recorded.FILE


def test_they_are_made_once_and_then_left_alone(file: Path) -> None:
    assert recorder.record(UNIT) == file
    before = file.stat()
    assert recorder.record(UNIT) is None
    after = file.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".")] == []


def test_they_are_made_anew_when_what_they_are_made_from_changes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.record(UNIT)
    graders = paths.graders(UNIT)
    read = Path.read_bytes

    def edited(path: Path) -> bytes:
        return read(path) + (b"\n# edited" if path == graders else b"")

    with monkeypatch.context() as context:
        context.setattr(Path, "read_bytes", edited)
        assert recorder.record(UNIT) == file
        assert recorder.record(UNIT) is None
    assert recorder.record(UNIT) == file
    monkeypatch.setattr(recorder.platform, "machine", lambda: "another")
    assert recorder.record(UNIT) == file


@pytest.mark.parametrize("content", [b"", b"\x00damaged", None])
def test_what_cannot_be_read_is_made_anew(file: Path, content: bytes | None) -> None:
    recorder.record(UNIT)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(WireError):
        recorded.read(file)
    assert recorder.record(UNIT) == file
    assert recorded.read(file).data["tests"]


def test_another_unit_does_not_make_them_stale(file: Path) -> None:
    stamp = recorder.made_from(UNIT)
    other = recorder.made_from("attention-multi_head")
    assert stamp != other
    dependencies = recorder.dependencies(UNIT, machinery=recorder.MACHINERY)
    assert paths.solution(UNIT) in dependencies
    assert paths.graders(UNIT) in dependencies
    assert paths.solution("attention-multi_head") not in dependencies
    assert paths.SOLUTIONS / "attention" / "__init__.py" not in dependencies


@pytest.mark.parametrize("unit", builder.sources())
def test_they_hold_every_visible_test_and_every_mistake(unit: str) -> None:
    recorder.record(unit)
    data = recorded.read(paths.EXERCISES / unit / recorded.FILE).data
    graders = Graders(unit, hidden=False)
    assert list(data["tests"]) == [item.name for item in graders.items]
    mistakes = misconceptions(unit)
    for test, answers in data["tests"].items():
        own = [item.name for item in mistakes if item.exercise == answers["exercise"]]
        assert sorted(answers["answers"]) == sorted(["", *own]), test
    assert {name: says[0] for name, says in data["says"].items()} == {
        item.name: item.says for item in mistakes
    }


def test_they_are_what_the_reference_and_the_mistakes_answer(file: Path) -> None:
    recorder.record(UNIT)
    kept = recorded.read(file).data["tests"]
    now = recording.record(UNIT, Graders(UNIT, hidden=False)).data["tests"]
    assert kept.keys() == now.keys()
    for test, answers in now.items():
        for name, outcomes in {"reference": answers["reference"], **answers["answers"]}.items():
            earlier = kept[test]["reference" if name == "reference" else "answers"]
            earlier = earlier if name == "reference" else earlier[name]
            for one, other in zip(earlier, outcomes, strict=True):
                assert one.keys() == other.keys()
                assert same_value(one.get("value"), other.get("value")), (test, name)


def test_several_units_are_recorded_at_once(file: Path) -> None:
    other = "positional_encoding-tokens"
    shutil.copytree(paths.ROOT / "exercises" / other, file.parent.with_name(other))
    second = file.parent.with_name(other) / recorded.FILE
    second.unlink(missing_ok=True)
    assert list(recorder.record_all([UNIT, other])) == [file, second]
    assert list(recorder.record_all([UNIT, other])) == []
    assert list(recorder.record_all([])) == []


def test_a_unit_without_graders_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "graders", lambda unit, root=paths.ROOT: paths.ROOT / "none.py")
    with pytest.raises(AssignmentError, match=r"attention-scores has no graders; write none\.py"):
        recorder.record(UNIT)


def test_a_reference_that_fails_is_one_sentence(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("the reference fails test_dot_score_values: wrong")

    monkeypatch.setattr(recording, "record", fails)
    with pytest.raises(AssignmentError, match="cannot be recorded: the reference fails test_dot"):
        recorder.record(UNIT)
    assert not file.exists()


def test_the_check_of_what_is_committed_does_not_ask_for_them(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["build", "--check", UNIT]) == 0
    assert "up to date" in capsys.readouterr().out
    assert not file.exists()
