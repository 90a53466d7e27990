"""What the pictures of offsets as rotations show, and that they can be drawn."""

from __future__ import annotations

import math

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from toolkit import rotation_pictures as pictures

matplotlib.use("Agg")


def test_hands_turn_by_offset_times_frequency_wherever_they_start() -> None:
    for t in (0, 1, 100):
        page = pictures.turn_page(t, 3)
        assert "<td>3.0 = 172°</td>" in page
        assert "<td>0.3 = 17°</td>" in page
    assert "−1.0 = −57°" in pictures.turn_page(3, -1)
    assert "(−0.76, −0.65)" in pictures.turn_page(1, 3)


def test_products_are_those_of_two_codes() -> None:
    found = pictures.product(torch.arange(5), 4, 100.0).tolist()
    assert found == pytest.approx([2, 1.535, 0.564, -0.035, 0.267], abs=0.001)
    assert pictures.product(torch.tensor([-7]), 64) == pictures.product(torch.tensor([7]), 64)


def test_only_what_depends_on_the_offset_is_explained_by_it() -> None:
    t = torch.arange(6.0)
    offset = t[:, None] - t
    assert pictures.offset_means(offset)[1] == pytest.approx(1)
    assert pictures.offset_means(t[:, None] + t)[1] == pytest.approx(0, abs=1e-6)
    means, share = pictures.offset_means(torch.where(offset >= 0, offset, 50 * t), causal=True)
    assert share == pytest.approx(1)  # what the mask hides is not counted
    assert means[3, 1] == 2
    assert pictures.offset_means(torch.where(offset >= 0, offset, 50 * t))[1] < 0.9


def test_figures_are_drawn_and_show_what_a_matrix_does() -> None:
    turn = torch.eye(4)
    moved = pictures.moved({"stays": turn, "twice": 2 * turn})
    tips = [line.get_xydata()[-1] for line in moved.axes[1].lines if "moved" in line.get_label()]
    assert tips[0].tolist() == pytest.approx([2 * math.sin(3), 2 * math.cos(3)])
    drawn = [
        moved,
        pictures.products(),
        pictures.score_maps({"a": torch.eye(4), "b": torch.ones(4, 4)}, ["b"]),
        pictures.wavelengths((10, 100), 8, 64),
    ]
    for figure in drawn:
        figure.canvas.draw()
        plt.close(figure)
