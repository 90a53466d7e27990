"""What is counted of a Transformer, and that the pictures of it can be drawn."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from solutions.transformer import clones, make_model
from toolkit.transformer import parameter_pictures as pictures

matplotlib.use("Agg")


@pytest.mark.parametrize("tied", [False, True])
def test_kinds_add_up_to_all_parameters(tied: bool) -> None:
    model = make_model(11, 11, 2, 16, 32, 2, tie_embeddings=tied)
    kinds = pictures.by_kind(model)
    assert tuple(kinds) == pictures.KINDS
    assert sum(kinds.values()) == sum(p.numel() for p in model.parameters())
    assert kinds["attention"] == 6 * 4 * 16**2
    assert kinds["feed-forward"] == 4 * 2 * 16 * 32
    assert kinds["embedding"] == (1 if tied else 3) * 11 * 16


def test_layers_have_12_and_16_squares_and_all_of_them_are_drawn() -> None:
    model = make_model(40, 40, 2, 16, 64, 2, tie_embeddings=True)
    found = pictures.squares(model)
    assert found == {"encoder layer": 12, "decoder layer": 16, "embedding": 2.5}
    figure = pictures.to_scale({"small": model})
    legend = 3
    assert len(figure.axes[0].patches) == 2 * 12 + 2 * 16 + 3 + legend
    plt.close(figure)


def test_copies_are_alike_and_drawn_weights_are_not() -> None:
    torch.manual_seed(0)
    model = make_model(9, 9, 3, 64, 128, 2)
    drawn = pictures.likeness(model)
    assert drawn.diagonal().tolist() == pytest.approx([1, 1, 1])
    assert drawn.tril(-1).abs().max() < 0.1
    model.encoder.layers = clones(model.encoder.layers[0], 3)
    copied = pictures.likeness(model)
    assert copied.min() > 0.999
    plt.close(pictures.likenesses({"drawn": drawn, "copied": copied}))
