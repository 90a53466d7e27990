"""How stored experiments are repeated from a terminal."""

from __future__ import annotations

import pytest

from toolkit.many_models import run_named

RUNS = {"short": lambda *part: [*part], "long": lambda *part: ["long", *part]}


def test_the_experiment_that_is_named_is_run_with_the_part_that_is_asked_for() -> None:
    assert run_named("Says.\n\nMore.", RUNS, ["short"]) == ("short", [])
    assert run_named("Says.", RUNS, ["short"], "variants") == ("short", [""])
    assert run_named("Says.", RUNS, ["long", "LSTM"], "variants") == ("long", ["long", "LSTM"])


@pytest.mark.parametrize("arguments", [["unknown"], ["short", "LSTM"], []])
def test_what_is_not_offered_is_refused_with_the_names(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_named("Says.", RUNS, arguments)
    assert "{short,long}" in capsys.readouterr().err
