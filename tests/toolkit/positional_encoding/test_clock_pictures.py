"""Pictures of sinusoidal codes: where hands point, and that what is drawn holds the numbers."""

from __future__ import annotations

import math

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.positional_encoding import clock_pictures as pictures

matplotlib.use("Agg")


def test_a_hand_points_to_its_sine_right_and_its_cosine_up() -> None:
    quarter = torch.tensor([0.0, 1, 1, 0])  # at the 12, and at the 3
    assert pictures.tips(quarter) == [(0, 1), (1, 0)]
    with pytest.raises(ValueError, match="pairs"):
        pictures.tips(torch.zeros(3))


def test_a_clock_is_drawn_for_each_row_with_a_hand_for_each_pair() -> None:
    angle = torch.tensor([[0.0, 0], [1, 0.1]])
    codes = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    figure = pictures.clocks(["the 0", "dog 1"], codes)
    assert [ax.get_title() for ax in figure.axes] == ["the 0", "dog 1"]
    thick = [line for line in figure.axes[1].lines if line.get_linewidth() > 2]
    (fast, slow) = (line.get_xydata()[1] for line in thick)
    assert fast.tolist() == pytest.approx([math.sin(1), math.cos(1)])
    assert math.atan2(*slow) == pytest.approx(0.1)
    plt.close(figure)


def test_a_function_that_flattens_out_is_drawn_to_its_last_step() -> None:
    gaps = torch.tensor([0.5, 0.25, 0, 0])
    figure = pictures.failures({"flat": gaps}, {"hand": torch.tensor([0.0, 1, 2, 1])})
    line, cross = figure.axes[0].lines
    assert line.get_xdata().tolist() == [0, 1]
    assert cross.get_xdata().tolist() == [1]
    plt.close(figure)


def test_tables_print_every_number_and_no_minus_zero() -> None:
    figure = pictures.tables({"a": torch.tensor([[0.841, -0.001]])}, ["dog 1"])
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.84", "0.00"]
    plt.close(figure)


def test_figures_are_drawn() -> None:
    digits = torch.tensor([[0.0, 0], [1, 0], [0, 1], [1, 1]])
    drawn = [
        pictures.digits_and_waves(digits, torch.randn(4, 2).tanh()),
        pictures.wavelengths({4: torch.tensor([6.3, 62.8]), 2: torch.tensor([6.3])}, 100.0),
        pictures.heat_maps({"one": torch.randn(3, 8), "two": torch.randn(4, 6)}),
        pictures.clocks(["10 past", "20 past"], torch.randn(2, 2), marked=True),
    ]
    for figure in drawn:
        figure.canvas.draw()
        plt.close(figure)
