"""The stored experiment on today's models: equal sizes, and rows that can be read."""

from __future__ import annotations

from pathlib import Path

import torch

from toolkit.gpt import modern_experiments as experiment
from toolkit.many_models import write_rows


def test_contestants_have_the_size_that_was_counted_and_it_is_the_same() -> None:
    for name, recipe in experiment.CONTESTANTS.items():
        size = sum(p.numel() for p in experiment.Model(recipe).parameters())
        assert size == recipe.size(recipe.d_ff)
        assert recipe.free or abs(size / experiment.TARGET - 1) < 0.002, name


def test_a_run_has_a_row_for_each_learning_rate_and_seed(tmp_path: Path) -> None:
    stream = torch.randint(1024, (400,), generator=torch.Generator().manual_seed(0))
    text = experiment.Text(stream, stream[:200], stream[200:])
    rows = experiment.run("all", text, steps=2, lrs=(1e-3, 1e-2))
    assert len(rows) == 2 * experiment.SEARCHED + experiment.SEEDS - experiment.SEARCHED
    found = experiment.read(write_rows(tmp_path / "rows.csv", rows))["all"]
    assert len(found.test) == experiment.SEEDS
    assert found.lr in (1e-3, 1e-2)


def test_no_stored_learning_rate_was_best_at_an_end() -> None:
    found = experiment.read()
    assert list(found) == list(experiment.CONTESTANTS)
    for one in found.values():
        assert len(one.test) == experiment.SEEDS
        assert experiment.LRS[0] < one.lr < experiment.LRS[-1]
