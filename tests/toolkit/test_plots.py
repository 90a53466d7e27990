"""Attention maps, masks and curves show what they are given."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from toolkit import plots


def drawn(ax: plt.Axes) -> np.ndarray:
    return np.asarray(ax.images[0].get_array().filled(np.nan))


def test_a_map_shows_its_numbers_in_place() -> None:
    _, ax = plt.subplots()
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5]], requires_grad=True)
    plots.attention_map(ax, weights, ["a", "b"], ["x", "y"], numbers=True)
    np.testing.assert_allclose(drawn(ax), [[0.75, 0.25], [0.5, 0.5]])
    assert {(t.get_position(), t.get_text()) for t in ax.texts} == {
        ((0, 0), "0.75"), ((1, 0), "0.25"), ((0, 1), "0.50"), ((1, 1), "0.50"),
    }  # fmt: skip
    assert [t.get_text() for t in ax.get_xticklabels()] == ["x", "y"]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")


def test_a_masked_score_is_left_out_of_the_colours_and_printed_as_infinity() -> None:
    _, ax = plt.subplots()
    plots.attention_map(ax, [[1.0, -math.inf], [2.0, 3.0]], numbers=True, limits=None)
    assert np.isnan(drawn(ax)[0, 1])
    assert ax.images[0].get_clim() == (1.0, 3.0)
    assert "−∞" in [t.get_text() for t in ax.texts]


def test_numbers_stand_out_from_their_cell() -> None:
    _, ax = plt.subplots()
    plots.attention_map(ax, [[0.0, 1.0]], numbers=True)
    light, dark = ax.texts
    assert dark.get_color() == "white"
    assert light.get_color() != "white"


@pytest.mark.parametrize(
    ("weights", "rows"), [(torch.ones(2, 2, 2), None), (torch.ones(2, 2), ["only one"])]
)
def test_a_map_that_does_not_fit_is_refused(weights: torch.Tensor, rows: list | None) -> None:
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match="shape"):
        plots.attention_map(ax, weights, rows)


def test_a_mask_shows_where_it_is_true() -> None:
    _, ax = plt.subplots()
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    plots.mask_map(ax, mask)
    np.testing.assert_array_equal(drawn(ax).astype(bool), mask.numpy())


def test_curves_are_labelled_and_keep_their_values() -> None:
    _, ax = plt.subplots()
    plots.curves(ax, [1, 2, 4], {"up": [1, 2, 3], "flat": torch.ones(3)}, x_label="n (tokens)",
                 y_label="time (ms)", log_x=True, dashed=["flat"])  # fmt: skip
    up, flat = ax.get_lines()
    np.testing.assert_allclose(up.get_ydata(), [1, 2, 3])
    assert flat.get_linestyle() == "--"
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("n (tokens)", "time (ms)", "log")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["up", "flat"]


def test_a_curve_of_another_length_is_refused() -> None:
    _, ax = plt.subplots()
    with pytest.raises(ValueError, match="short"):
        plots.curves(ax, [1, 2], {"short": [1]}, x_label="x", y_label="y")


def test_figures_are_opaque_and_light_so_that_a_dark_page_does_not_swallow_them() -> None:
    figure, ax = plt.subplots()
    for red, green, blue, alpha in (figure.get_facecolor(), ax.get_facecolor()):
        assert alpha == 1.0
        assert min(red, green, blue) > 0.9


def test_bfloat16_and_booleans_can_be_plotted() -> None:
    assert plots.array(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]
    assert plots.array(torch.tensor([True, False])).tolist() == [1.0, 0.0]
