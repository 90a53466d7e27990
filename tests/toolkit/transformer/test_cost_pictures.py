"""Counts, reach and stored seconds of the page on costs."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from toolkit.transformer import cost_pictures as pictures

matplotlib.use("Agg")


def test_attention_and_gru_count_the_same_where_length_is_width() -> None:
    for d in (2, 64, 512):
        assert pictures.attention_count(d, d) == pictures.gru_count(d, d)
        assert pictures.attention_count(d - 1, d) < pictures.gru_count(d - 1, d)
    assert "1.6%" in pictures.cost_page(50, 512)


def test_reach_of_stacks() -> None:
    def farthest(network: str, layers: int) -> int:
        return 32 - int(pictures.reach(network, layers, 33).int().argmax())

    assert [farthest("convolution", layers) for layers in (1, 2, 5)] == [2, 4, 10]
    assert [farthest("dilated", layers) for layers in (1, 2, 3, 4)] == [2, 6, 14, 30]
    assert farthest("recurrent", 1) == farthest("self-attention", 1) == 32
    assert "<b>6</b>" in pictures.reach_page("dilated", 2)


def test_reach_is_where_a_gradient_of_a_real_network_is_not_zero() -> None:
    layers = [nn.Conv1d(1, 1, 3, dilation=2**k) for k in range(3)]
    x = torch.ones(1, 1, 20, requires_grad=True)
    y = x
    for layer, k in zip(layers, range(3), strict=True):
        y = layer(nn.functional.pad(y, (2 * 2**k, 0)))
    y[0, 0, -1].backward()
    assert x.grad is not None
    assert torch.equal(x.grad[0, 0] != 0, pictures.reach("dilated", 3, 20))


def test_seconds_are_read_and_measured(tmp_path: Path) -> None:
    stored = pictures.seconds("cpu", 8, 64)
    assert stored.lengths[0] == 16
    assert all(a <= b <= c for a, b, c in zip(stored.low, stored.ratio, stored.high, strict=True))
    assert stored.equal is not None
    assert pictures.seconds("cuda", 32, 512).equal is None
    file = pictures.measure(tmp_path / "s.csv", [("cpu", (1,), (8,), [4, 8], 1)])
    assert pictures.seconds("cpu", 1, 8, file).lengths == [4, 8]


@pytest.mark.parametrize("kind", ["ratios", "fading"])
def test_figures_are_drawn(kind: str) -> None:
    figure = (
        pictures.ratios({"a": ("cpu", 8, (64,)), "b": ("cuda", 32, (64, 512))})
        if kind == "ratios"
        else pictures.fading({"x": torch.rand(5, 9), "y": torch.zeros(5, 9)})
    )
    figure.canvas.draw()
    plt.close(figure)
