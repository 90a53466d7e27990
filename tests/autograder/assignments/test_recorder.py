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

UNIT, OTHER = "positional_encoding-tokens", "seq2seq-text"  # They are made soonest.


def exercises(folder: Path, unit: str = UNIT) -> Path:
    """Where the unit's recorded answers go, in exercises of the test's own; nothing is there."""
    ignored = shutil.ignore_patterns(recorded.FILE)
    shutil.copytree(paths.ROOT / "exercises" / unit, folder / unit, ignore=ignored)
    return folder / unit / recorded.FILE


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they go, and nothing is there."""
    monkeypatch.setattr(paths, "EXERCISES", tmp_path / "exercises")
    return exercises(paths.EXERCISES)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they have been made, once for all tests."""
    path = exercises(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as context:
        context.setattr(paths, "EXERCISES", path.parent.parent)
        assert recorder.record(UNIT) == path
    return path


@pytest.fixture
def kept(file: Path, ready: Path) -> Path:
    """Where they go, and have been made."""
    return Path(shutil.copy(ready, file))


def test_they_are_made_once_and_then_left_alone(kept: Path) -> None:
    before = kept.stat()
    assert recorder.record(UNIT) is None
    after = kept.stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_nothing_else_is_left_where_they_are_made(ready: Path) -> None:
    assert [path.name for path in ready.parent.iterdir() if path.name.startswith(".")] == []


def test_they_are_made_anew_when_what_they_are_made_from_changes(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graders = paths.graders(UNIT)
    read = Path.read_bytes

    def edited(path: Path) -> bytes:
        return read(path) + (b"\n# edited" if path == graders else b"")

    with monkeypatch.context() as context:
        context.setattr(Path, "read_bytes", edited)
        assert recorder.record(UNIT) == kept
        assert recorder.record(UNIT) is None
    assert recorder.record(UNIT) == kept
    monkeypatch.setattr(recorder.platform, "machine", lambda: "another")
    assert recorder.record(UNIT) == kept


@pytest.mark.parametrize("content", [b"", b"\x00damaged", None])
def test_what_cannot_be_read_is_made_anew(kept: Path, content: bytes | None) -> None:
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(WireError):
        recorded.read(kept)
    assert recorder.record(UNIT) == kept
    assert recorded.read(kept).data["tests"]


def test_another_unit_does_not_make_them_stale(file: Path) -> None:
    unit = "attention-scores"
    stamp = recorder.made_from(unit)
    other = recorder.made_from("attention-multi_head")
    assert stamp != other
    dependencies = recorder.dependencies(unit, machinery=recorder.MACHINERY)
    assert paths.solution(unit) in dependencies
    assert paths.graders(unit) in dependencies
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


def test_they_are_what_the_reference_and_the_mistakes_answer() -> None:
    unit = "attention-scores"  # It has modules, gradients and chance.
    recorder.record(unit)
    kept = recorded.read(paths.EXERCISES / unit / recorded.FILE).data["tests"]
    now = recording.record(unit, Graders(unit, hidden=False)).data["tests"]
    assert kept.keys() == now.keys()
    for test, answers in now.items():
        for name, outcomes in {"reference": answers["reference"], **answers["answers"]}.items():
            earlier = kept[test]["reference" if name == "reference" else "answers"]
            earlier = earlier if name == "reference" else earlier[name]
            for one, other in zip(earlier, outcomes, strict=True):
                assert one.keys() == other.keys()
                assert same_value(one.get("value"), other.get("value")), (test, name)


def test_several_units_are_recorded_at_once(file: Path) -> None:
    second = exercises(paths.EXERCISES, OTHER)
    assert list(recorder.record_all([UNIT, OTHER])) == [file, second]
    assert list(recorder.record_all([UNIT, OTHER])) == []
    assert list(recorder.record_all([])) == []


def test_a_unit_without_graders_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "graders", lambda unit, root=paths.ROOT: paths.ROOT / "none.py")
    with pytest.raises(AssignmentError, match=rf"{UNIT} has no graders; write none\.py"):
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
