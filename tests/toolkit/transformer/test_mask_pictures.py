"""Means in layers, a translator without some of its masks, and the pictures."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from torch.nn import functional as F

from solutions.transformer import greedy_decode, make_model, make_std_mask, pad_mask
from tests.toolkit.drawings import words
from toolkit.transformer import mask_pictures as pictures


def test_means_with_and_without_the_causal_mask() -> None:
    assert pictures.averages([2, 4, 6], 2, causal=True) == [[2, 4, 6], [2, 3, 4], [2, 2.5, 3]]
    assert pictures.averages([2, 4, 6], 2, causal=False)[1:] == [[4, 4, 4], [4, 4, 4]]


def test_two_layers_print_the_means() -> None:
    shown = words(pictures.two_layers([2, 4, 6], ["a", "b", "c"]))
    assert "2.5" in shown
    assert shown.count("4") == 1 + 1 + 1 + 6
    plt.close("all")


def test_a_mask_of_one_row_is_drawn_for_any_query() -> None:
    ids = torch.tensor([[1, 8, 0, 0]])
    figure = pictures.grids(
        {"one": pad_mask(ids)[0], "all": make_std_mask(ids)[0]}, ["<bos>", "Mai", "pad", "pad"]
    )
    labels = [[t.get_text() for t in ax.get_yticklabels()] for ax in figure.axes]
    assert labels == [["any"], ["<bos>", "Mai", "pad", "pad"]]
    plt.close("all")


def test_with_all_masks_it_is_greedy_search_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    model = make_model(12, 12, 2, 16, 32, 2, dropout=0.0).eval()
    source = torch.randint(4, 12, (1, 5))
    alone = pictures.greedy_without(model, source, max_length=8)
    assert torch.equal(alone, greedy_decode(model, source, 8))
    assert torch.equal(alone, pictures.greedy_without(model, F.pad(source, (0, 3)), max_length=8))


def test_an_unknown_mask_is_refused() -> None:
    with pytest.raises(ValueError, match="decoder"):
        pictures.greedy_without(make_model(5, 5, 1, 4, 4, 1), torch.tensor([[4]]), ["decoder"])
