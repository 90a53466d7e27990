"""What the pictures of layer normalisation show, and that they can be drawn."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.models import load
from toolkit.transformer import layer_norm_pictures as pictures


def test_each_token_and_the_first_column_have_numbers_that_come_out_even() -> None:
    x = pictures.batch()
    assert x[:3].std(-1, unbiased=False).tolist() == [3, 3, 3]
    assert sorted(x[:, 0].tolist()) == sorted(x[0].tolist())


def test_padding_moves_real_tokens_in_training_mode_of_batch_norm_only() -> None:
    for kind in pictures.KINDS:
        same = [pictures.normalise(kind, pictures.batch(pad))[:3] for pad in (0, 12)]
        assert torch.equal(*same) == (kind != "batch norm, training")
        assert ("<td class=m>" in pictures.moved(kind, 12)) == (kind == "batch norm, training")
        assert "<td class=m>" not in pictures.moved(kind, 0)
    with pytest.raises(ValueError, match="none of"):
        pictures.normalise("group norm", pictures.batch())


def test_what_is_averaged_together_has_one_colour() -> None:
    figure = pictures.axes_of()
    colours = {patch.get_gid(): patch.get_facecolor() for ax in figure.axes for patch in ax.patches}
    for panel in (0, 1):
        for index in range(4):
            group = {
                colours[f"{panel}:{index}:{i}" if panel == 0 else f"{panel}:{i}:{index}"]
                for i in range(4)
            }
            assert len(group) == 1
    assert len(set(colours.values())) == 4


def test_results_are_printed_and_nan_is_said() -> None:
    rows = {"right": torch.tensor([1.0, -0.5]), "wrong": torch.tensor([math.nan, 2.0])}
    figure = pictures.compared(rows, ["a", "b"])
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["1.00", "−0.50", "NaN", "2.00"]
    assert len(pictures.strips({"x": torch.arange(3.0)}, 1).axes[0].lines) == 3
    plt.close("all")


def test_a_norm_of_the_shipped_model_is_found_with_its_input() -> None:
    norm, given = pictures.at_norm(load("transformer-en-zh"), "March 5, 2021")
    assert given.shape == (7, 96)
    assert norm(given).shape == given.shape
