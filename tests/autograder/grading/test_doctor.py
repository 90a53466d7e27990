"""The doctor names what is missing and the command that brings it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from autograder import __main__ as command_line
from autograder.common import paths
from autograder.grading import doctor


def test_every_version_that_is_looked_at_is_pinned():
    pinned = doctor.pins()
    for names in doctor.PACKAGES.values():
        for name in names:
            assert name in pinned, name


def test_a_missing_package_comes_with_its_remedy():
    found = doctor._package(doctor.DO, "no-such-package-here", "1.0")
    assert not found.ok
    assert found.detail == "missing"
    assert "pip install" in found.remedy


def test_another_version_than_the_pinned_one_is_told():
    found = doctor._package(doctor.DO, "pytest", "0.1")
    assert not found.ok
    assert "instead of 0.1" in found.detail


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (list(paths.UNITS), f"all {len(paths.UNITS)}"),
        (["attention-scores", "bert-model"], "attention-scores, bert-model"),
        ([], "none"),
    ],
)
def test_the_units_that_are_here_are_told(monkeypatch, there, told):
    monkeypatch.setattr(doctor, "units", lambda: there)
    (found,) = (one for one in doctor.findings() if one.what == "units")
    assert (found.ok, found.detail) == (bool(there), told)


def test_without_bubblewrap_the_doctor_says_what_to_type(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = CliRunner().invoke(command_line._app(["doctor"]), ["doctor"])
    assert said.exit_code == 1
    assert "apt-get install" in said.output
    assert "bubblewrap" in said.output
