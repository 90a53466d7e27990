"""What the pictures of the pages on training objectives show."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pytest
import torch

from toolkit.bert import objective_experiments as experiments
from toolkit.bert import objective_pictures as pictures
from toolkit.corpora.docstrings import MASK


@pytest.mark.parametrize(
    ("model", "top", "seen"), [("BERT", 2, {0, 1, 2, 3}), ("GPT", 2, {0, 1, 2}),
                               ("ELMo", 3, {0, 1, 2, 3})],
)  # fmt: skip
def test_a_token_sees_what_its_model_lets_it_see(model: str, top: int, seen: set[int]) -> None:
    needed = pictures.needed_for(pictures.connections(model), (top, 2))
    assert {t for level, t in needed if level == 0} == seen


def test_elmos_chain_from_the_left_sees_nothing_of_the_right() -> None:
    needed = pictures.needed_for(pictures.connections("ELMo"), (1, 2))
    assert {t for level, t in needed if level == 0} == {0, 1, 2}


def test_every_picture_can_be_drawn_from_the_stored_rows() -> None:
    figures = [
        pictures.who_sees_whom(),
        pictures.learning_curves(experiments.read("learning")),
        pictures.reading_curves(experiments.read("reading"), 0.99),
        pictures.writing_bars(experiments.read("writing")),
        pictures.token_scores({"a": [("the", -1.0)], "b": [("file", -2.0)]}),
    ]
    assert all(figure.axes for figure in figures)
    for figure in figures:
        plt.close(figure)


def test_a_filled_token_is_marked_and_a_masked_one_is_grey() -> None:
    history = [torch.tensor([[7, MASK]]), torch.tensor([[7, 8]])]

    def name(ids: Sequence[int]) -> list[str]:
        return [f"<{i}>" for i in ids]

    first = pictures.filling_frame(history, name, 1, 1)
    assert first.count("#f6d2b3") == 1
    assert first.count("#e3e0d8") == 1
    assert "&lt;7&gt;" in first
    assert pictures.filling_frame(history, name, 1, 0).count("#e3e0d8") == 2
