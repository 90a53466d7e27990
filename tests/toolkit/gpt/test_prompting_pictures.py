"""The pictures of the page on prompting."""

from __future__ import annotations

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

from tests.toolkit.drawings import words
from toolkit.gpt import prompting_experiments as experiments
from toolkit.gpt import prompting_pictures as pictures


def test_the_tree_says_the_probabilities_of_its_table() -> None:
    rows = pictures.table().softmax(-1)
    assert rows[5, [6, 7, 8]].tolist() == pytest.approx([0.30, 0.25, 0.45])
    assert (rows[5, 7] * rows[7, 8]).item() == pytest.approx(0.225)
    assert {"0.30", "0.25", "0.45", "0.90"} <= set(words(pictures.tree()))
    plt.close("all")


def test_a_name_is_scored_after_each_prompt() -> None:
    shipped = SimpleNamespace(
        tokenizer=SimpleNamespace(encode=lambda text: [len(text)]), model=None
    )

    def scores(
        model: object, prompt: list[int], answers: list[list[int]], per_token: bool
    ) -> torch.Tensor:
        assert not per_token
        return torch.tensor([0.5 if a[0] + 3 == prompt[-1] else 0.1 for a in answers]).log()

    found = pictures.copied(shipped, scores, "ab {}.", ["x", "yy"])
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.1], [0.1, 0.5]]))
    assert "0.50" in words(pictures.copied_map(found, ["x", "yy"]))
    plt.close("all")


def test_the_stored_shares_are_drawn_a_dot_a_seed() -> None:
    results = {
        (count, name, n): torch.linspace(0.1, 0.5, experiments.SEEDS)
        for count in experiments.COUNTS
        for name in ("new", "renamed", "shuffled", "new, shown", "seen, not shown")
        for n in experiments.EXAMPLES
    }
    lines = pictures.by_mappings(results).axes[0].get_lines()
    assert lines[0].get_ydata() == pytest.approx([30] * len(experiments.COUNTS))
    dots = [
        line for line in pictures.by_examples(results).axes[0].get_lines()
        if len(line.get_xdata()) == experiments.SEEDS and line.get_marker() == "o"
    ]  # fmt: skip
    assert len(dots) == 3 * len(experiments.EXAMPLES)
    plt.close("all")
