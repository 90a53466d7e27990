"""The model of one letter, the least loss of a text, and the picture of broadcasting."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from tests.toolkit.drawings import Drawings, words
from toolkit import basics


def test_logits_at_a_position_depend_on_its_letter_alone() -> None:
    model = basics.NextLetter(5, d_model=8)
    logits = model(torch.tensor([3, 0, 3]))
    assert logits.shape == (3, 5)
    assert torch.equal(logits[0], logits[2])
    assert sum(p.numel() for p in model.parameters()) == 5 * 8 + 8 * 5 + 5


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("aaaa", 0.0),
        ("abab", 0.0),
        ("abac", math.log(2) * 2 / 3),  # after a comes b or c
        ("abracadabra", (2 * math.log(2) + 2 * math.log(4)) / 10),
    ],
)
def test_the_least_loss_is_the_entropy_of_the_next_letter(text: str, loss: float) -> None:
    assert basics.least_loss(text) == pytest.approx(loss)


def test_the_picture_holds_every_number_and_its_copies() -> None:
    shown = words(basics.broadcasting([10, 20], [1, 2, 3]))
    assert [shown.count(n) for n in ("10", "20", "1", "2", "3")] == [3, 3, 2, 2, 2]
    assert {"11", "12", "13", "21", "22", "23", "(2, 1)", "(3,)", "(2, 3)"} <= set(shown)
    plt.close("all")


DRAWINGS = {"broadcasting": lambda: basics.broadcasting([10, 20], [1, 2, 3])}


class TestDrawings(Drawings):
    drawings = DRAWINGS
