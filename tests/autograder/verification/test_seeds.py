"""The graders' own test has another seed each day, which a commit keeps and a person can set."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.common.errors import AssignmentError
from autograder.verification import seeds


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(seeds, "ROOT", tmp_path)
    monkeypatch.delenv(seeds.VARIABLE, raising=False)
    seeds.rotating.cache_clear()
    yield tmp_path
    seeds.rotating.cache_clear()


def commit(folder: Path, day: int) -> None:
    when = f"{day * seeds.DAY + 3600} +0000"
    own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], [*own, "commit", "-q", "--allow-empty", "-m", "x"]):
        environment = {"GIT_COMMITTER_DATE": when, "GIT_AUTHOR_DATE": when, "HOME": str(folder)}
        subprocess.run(["git", *command], cwd=folder, env=environment, check=True)


def test_it_is_the_day_of_the_last_commit(repository: Path):
    commit(repository, 20_000)
    assert seeds.rotating() == 20_000


def test_a_person_can_give_it_again(repository: Path, monkeypatch: pytest.MonkeyPatch):
    commit(repository, 20_000)
    monkeypatch.setenv(seeds.VARIABLE, "7")
    assert seeds.rotating() == 7


def test_what_is_no_number_is_refused_in_a_sentence(
    repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(seeds.VARIABLE, "seven")
    with pytest.raises(AssignmentError, match="AUTOGRADER_SEED is a whole number"):
        seeds.rotating()


def test_without_a_repository_there_is_one_too(repository: Path):
    assert seeds.rotating() == 0
