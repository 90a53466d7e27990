"""What the pictures of offsets as rotations show, and that they can be drawn."""

from __future__ import annotations

import math

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.positional_encoding import rotation_pictures as pictures

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
    assert pictures.offset_share(offset.square()) == pytest.approx(1)
    assert pictures.offset_share(offset + 9 * t[:, None]) == pytest.approx(1)  # a row is shifted
    assert pictures.offset_share((t == 2).float().expand(6, 6)) < 0.5  # one key for everybody
    hidden = torch.where(offset >= 0, offset, 50.0 * (t == 4))
    assert pictures.offset_share(hidden, causal=True) == pytest.approx(1)
    assert pictures.offset_share(hidden) < 0.9


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
