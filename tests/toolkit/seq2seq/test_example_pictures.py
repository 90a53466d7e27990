"""The sequence-to-sequence chapter's toy translator, and its pictures."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.seq2seq import GRUCell, NextTokenTable, beam_search, greedy_decode
from tests.toolkit.drawings import words
from toolkit.seq2seq import example_pictures as pictures


def test_the_toy_translates_its_date_and_reverses_what_it_reads_reversed() -> None:
    found = pictures.example(("March", "5"))
    assert found.written == ("5", ".", "März", "<eos>")
    assert found.states.tolist() == [pytest.approx([0.76, 0, 0]), pytest.approx([0.36, 0.76, 0])]
    torch.testing.assert_close(found.chances.sum(1), torch.ones(4))
    assert pictures.example(("5", "March")).written == ("März", "5", ".", "<eos>")


def test_the_toy_carries_its_state_through_padding() -> None:
    toy, mask = pictures.ToyTranslator(), torch.tensor([[True, True, False]])
    source = torch.tensor([[4, 5, 0]])
    torch.testing.assert_close(toy.start(source, mask)[0], toy.start(source[:, :2])[0])
    assert not torch.equal(toy.start(source)[0], toy.start(source, mask)[0])


def test_the_example_refuses_words_without_a_vector() -> None:
    with pytest.raises(ValueError, match="April"):
        pictures.example(("April",))


def test_a_unit_with_an_open_gate_remembers_and_prints_what_it_computes() -> None:
    step = pictures.unit_step(1.0, 0.0)
    assert (step.i, step.f, step.g, step.o, step.c, step.h) == (0.88, 0.12, 0.76, 0.5, 0.67, 0.29)
    page = pictures.unit_page(5.0, 2.0)
    assert page.count("f 0.99") == len(pictures.UNIT_WORDS) - 1
    assert ">0.61<" in page


def test_the_tree_of_rain_has_a_best_sentence_that_greedy_search_misses() -> None:
    table = NextTokenTable(pictures.rain_table())
    source = torch.tensor([[0]])
    rain, heavy = (pictures.RAIN_WORDS.index(word) for word in ("rain", "heavy"))
    assert greedy_decode(table, source)[0, 0] == rain
    assert beam_search(table, source, 2, 3)[0][0][0] == heavy
    page = pictures.open_tree(pictures.RAIN, {"heavy", "heavy rain"}, "heavy rain")
    assert page.count("<details open>") == 1
    assert "0.40 × 0.95 = 0.38" in page


def test_gates_are_those_of_the_cell() -> None:
    torch.manual_seed(0)
    cell, x, h = GRUCell(3, 4), torch.randn(2, 3), torch.randn(2, 4)
    _, z, n = pictures.gru_gates(cell, x, h)
    torch.testing.assert_close((1 - z) * n + z * h, cell(x, h).detach())


def test_a_batch_says_its_words_and_hatches_its_padding() -> None:
    ids, mask = torch.tensor([[1, 0]]), torch.tensor([[True, False]])
    figure = pictures.batch_grid(ids, mask, ["<pad>", "hello"], title="one")
    assert words(figure) == ["hello", "1", "<pad>", "0"]
    assert [bool(p.get_hatch()) for p in figure.axes[0].patches] == [False, True]
    named = pictures.batch_grid(ids, mask, ["<pad>", "hello"], names=["first"])
    assert words(named)[0] == "first"
    plt.close("all")


def test_logits_and_probabilities_have_a_colour_scale_each() -> None:
    found = pictures.example(("March", "5"))
    figure = pictures.offered(found.logits[0], found.chances[0])
    assert words(figure)[:4] == ["2.56", "0.66", "0.00", "0.05"]
    shades = figure.axes[0].images[0].get_array()
    assert shades[0].tolist() == [1, 1]  # the largest of each column is the darkest
    plt.close("all")


def test_right_and_wrong_cells_have_a_panel_a_cell() -> None:
    lines = {"right": [1.0, 2.0], "wrong": [1.0, 9.0]}
    figure = pictures.growth({"no tanh": lines, "swapped": lines}, "size")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["no tanh", "swapped"]
    assert words(figure) == ["right", "wrong"] * 2
    plt.close("all")


def test_curves_of_an_experiment_show_one_line_a_model() -> None:
    found = {"a": {(2, 100): (0.5, 0.1, 0.01), (4, 100): (0.2, 0.1, 0.01)}, "b": {}}
    figure = pictures.learned(found, across=0, fixed=100, names=["a"], x_label="x", y_label="y")
    (line,) = figure.axes[0].lines
    assert line.get_xdata().tolist() == [2, 4]
    tinted = pictures.learned(found, across=0, names=["a"], x_label="x", y_label="y", colours=["r"])
    assert tinted.axes[0].lines[0].get_color() == "r"
    plt.close("all")
