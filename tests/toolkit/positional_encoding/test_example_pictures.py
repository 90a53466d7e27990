"""The position chapter's small example: its numbers, and that its pictures can be drawn."""

from __future__ import annotations

import math

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.positional_encoding import example_pictures as pictures
from toolkit.positional_encoding import measures

matplotlib.use("Agg")
DOG, MAN = pictures.SENTENCES
NEW_ORDER = [0, 4, 2, 3, 1]  # of the second sentence's words in the first


def test_both_sentences_hold_the_same_vectors_in_another_order() -> None:
    first, second = pictures.vectors(DOG), pictures.vectors(MAN)
    assert first[1].tolist() == [1, 1, 0, 0]
    assert not torch.equal(first, second)
    assert torch.equal(first[NEW_ORDER], second)


def test_codes_are_sinusoidal_to_two_places() -> None:
    codes = pictures.codes(5)
    for t, row in enumerate(codes.tolist()):
        exact = [math.sin(t), math.cos(t), math.sin(t / 10), math.cos(t / 10)]
        assert row == pytest.approx(exact, abs=0.00501)


@pytest.mark.parametrize("code", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_only_without_code_and_mask_outputs_move_with_the_words(code: bool, causal: bool) -> None:
    first, second = (pictures.example(s, code=code, causal=causal) for s in pictures.SENTENCES)
    same = torch.equal(first.output[NEW_ORDER], second.output)
    assert same == (not code and not causal)
    assert (first.weights.sum(1) - 1).abs().max() < 0.02
    assert bool((first.weights.triu(1) == 0).all()) == causal


def test_rotary_scores_follow_the_offset() -> None:
    x = pictures.vectors(DOG)
    here, later = (pictures.turned(x[2], m) @ pictures.turned(x[1], m - 1) for m in (2, 7))
    assert float(here) == pytest.approx(float(later), abs=0.03)
    assert pictures.scores_by_family(DOG)["rotary"][0] == 0.69


def test_a_convolution_does_not_see_where_its_window_lies() -> None:
    x = pictures.vectors(DOG)
    late = pictures.convolution(torch.cat([torch.ones(3, 4), x]))
    assert torch.equal(late[4:], pictures.convolution(x)[1:])
    assert pictures.recurrent(DOG)[-1].tolist() == [1.375, 0.125, 1, 0.5625]


def test_sums_of_orthogonal_vectors_are_taken_apart_and_narrow_ones_are_not() -> None:
    wide = torch.eye(24)
    found = pictures.take_apart(wide[:16], 0.5 * wide[16:])
    assert (found.token, found.position, found.position_after) == (1, 1, 1)
    torch.manual_seed(0)
    assert pictures.take_apart(torch.randn(60, 2), torch.randn(8, 2)).token < 0.3


def test_pages_are_tables_with_every_number() -> None:
    shown = pictures.sum_page(DOG)
    assert shown.count("<table") == 3
    assert "−0.99" in shown
    assert "1.84" in shown
    assert pictures.order_page(MAN, True, False).count("<table") == 2
    report = measures.report(torch.randn(30, 8))
    marks = pictures.requirements_page({"random": report}, {"bounded": "small", "offset": "map"})
    assert "<b>offset</b>: map" in marks
    assert marks.count("✓") == 1
    assert marks.count("✗") == 1
    with pytest.raises(ValueError, match="rows"):
        pictures.table(torch.zeros(2, 2), ["a"], ["b", "c"], "")


def test_figures_are_drawn() -> None:
    causal = pictures.example(DOG, causal=True)
    drawn = [
        pictures.two_orders(),
        pictures.attending(pictures.example(DOG), causal, marked=[2]),
        pictures.by_construction(),
        pictures.shares({"one": (0.5, 0.1), "two": (1.0, 0.0)}, 0.5),
        pictures.families(),
        pictures.ratios({"one": (0.1, 2.0)}),
        pictures.spreads({"one": torch.randn(50), "two": torch.randn(50)}),
        pictures.matrix(pictures.EMBEDDINGS, pictures.VOCABULARY, "0123"),
        pictures.gradients(torch.ones(4, 4), torch.zeros(4, 4)),
        pictures.sizes({"right": 1.4, "wrong": 0.7}, 1.4),
    ]
    for figure in drawn:
        figure.canvas.draw()
        plt.close(figure)
