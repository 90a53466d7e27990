"""Diagrams of the sequence-to-sequence chapter: right labels, nothing overlaps or runs out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.toolkit.drawings import Drawings, words
from toolkit import seq2seq_diagrams as diagrams

LEVELS = [
    {("A",): 0.6, ("B",): 0.4},
    {("A", "C"): 0.3, ("A", "D"): 0.3, ("B", "C"): 0.02, ("B", "D"): 0.38},
    {("B", "D", "<eos>"): 0.38, ("A", "C", "<eos>"): 0.3},
]
KEPT = [{("A",), ("B",)}, {("A", "C"), ("B", "D")}, set(LEVELS[2])]
WINNER = ("B", "D", "<eos>")
GRID = (torch.tensor([[0, 1, 2], [3, 4, 0]]), torch.tensor([[True] * 3, [True, True, False]]))

DRAWINGS: dict[str, Callable[[], Figure]] = {
    "unrolled": lambda: diagrams.unrolled(["March", "5"], ["5", ".", "März"]),
    "families": diagrams.task_families,
    "cells": diagrams.cells,
    "padding": lambda: diagrams.padding_grids({"a": GRID, "b": GRID}, [list("abc"), list("de")]),
    "tree": lambda: diagrams.search_tree(LEVELS, KEPT, WINNER),
}


class TestDrawings(Drawings):
    drawings = DRAWINGS


@pytest.mark.parametrize(("source", "target"), [(["a"], ["b"]), (["a", "b", "c"], ["d", "e"])])
def test_the_decoder_is_fed_what_it_has_written(source: list[str], target: list[str]) -> None:
    text = words(diagrams.unrolled(source, target))
    assert all(text.count(word) == 1 for word in source)
    assert all(text.count(word) == 2 for word in target)  # written, then read
    assert text.count("<bos>") == text.count("<eos>") == 1
    assert f"$s_{{{len(target) + 1}}}$" in text  # one step more than words, for the stop token
    assert f"$s_{{{len(target) + 2}}}$" not in text


def test_the_state_is_handed_over_and_the_encoder_starts_from_zeros() -> None:
    text = words(DRAWINGS["unrolled"]())
    assert "$h_0=0$" in text
    assert "$C=h_T$" in text


@pytest.mark.parametrize(("source", "target"), [([], ["a"]), (["a"], [])])
def test_an_empty_side_is_refused(source: list[str], target: list[str]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        diagrams.unrolled(source, target)


def test_each_family_says_the_shape_of_its_output() -> None:
    text = words(diagrams.task_families())
    for shape in ("logits (B, N, labels)", "logits (B, labels)", "logits (B, N′, vocabulary)"):
        assert text.count(shape) == 1


def test_each_cell_has_its_gates() -> None:
    text = " ".join(words(diagrams.cells()))
    assert text.count("tanh") == 4  # RNN, GRU, LSTM, and the read-out of its memory
    for gate in ("reset", "update", "output", "input", "forget"):
        assert text.count(gate) == 1


def test_padding_is_hatched_and_counted() -> None:
    figure = DRAWINGS["padding"]()
    cells = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert [bool(p.get_hatch()) for p in cells].count(True) == 2  # one in each of two grids
    assert len(cells) == 12
    assert words(figure).count("2 × 3, 17% padding") == 2


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="another shape"):
        diagrams.padding_grids({"a": (GRID[0], GRID[1][:, :2])}, [list("abcde")])


def test_the_tree_says_every_probability_and_no_arrows_cross() -> None:
    figure = DRAWINGS["tree"]()
    text = words(figure)
    assert text.count("C   0.30") == 1
    assert text.count("D   0.38") == 1
    # Children stand in the order of their parents: the path of A stays above that of B.
    place = {t.get_text(): t.get_position()[1] for ax in figure.axes for t in ax.texts}
    assert place["<eos>   0.30"] > place["<eos>   0.38"]


def test_a_tree_without_the_parents_is_refused() -> None:
    with pytest.raises(ValueError, match="parent"):
        diagrams.search_tree([{("A", "B"): 0.5}], [set()], ("A", "B"))
    with pytest.raises(ValueError, match="levels"):
        diagrams.search_tree(LEVELS, KEPT[:1], WINNER)
