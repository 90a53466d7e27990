"""The pictures of the page on training one's own GPT."""

from __future__ import annotations

import math
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from toolkit.gpt import train_yours_pictures as pictures


def test_even_frequencies_have_the_logarithm_of_their_number() -> None:
    loss, most = pictures.frequencies(torch.arange(8).repeat(3))
    assert loss == pytest.approx(math.log(8))
    assert len(most) == 5
    assert most[0][1] == pytest.approx(1 / 8)


def test_a_part_can_be_exchanged_in_the_training() -> None:
    parts = SimpleNamespace(
        GPT=lambda *_, **__: nn.Linear(2, 2), init_weights=lambda model: model,
        train=lambda *_, **__: [1.0],
    )  # fmt: skip
    stream = torch.arange(70)
    assert pictures.learn(parts, stream, 1)[1] == [1.0]
    assert pictures.learn(parts, stream, 1, train=lambda *_, **__: [2.0])[1] == [2.0]


def test_losses_are_drawn_with_their_levels() -> None:
    figure = pictures.live_losses({"a": [6.0] * 8, "b": [5.0] * 8}, {"frequency": 5.4})
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines[:2]] == ["a", "b"]
    assert list(lines[2].get_ydata()) == [5.4, 5.4]
    plt.close(figure)


def test_what_looks_ahead_moves_the_past() -> None:
    class Model(nn.Module):
        def __init__(self, ahead: bool) -> None:
            super().__init__()
            self.token, self.ahead = nn.Embedding(9, 4), ahead

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.token(ids)
            return x + x.mean(1, keepdim=True) if self.ahead else x

    ids = torch.tensor([[1, 2, 3]])
    assert pictures.moved(Model(ahead=False), ids)[:-1].tolist() == [0, 0]
    assert (pictures.moved(Model(ahead=True), ids) > 0).all()


def test_a_first_line_is_escaped() -> None:
    assert "<b>a &lt; b</b>&lt;c" in pictures.goes_on("a < b", "<c")
