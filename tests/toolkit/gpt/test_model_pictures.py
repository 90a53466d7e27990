"""The pages on the whole GPT and its size: the model on paper, causality, growth, counts."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from solutions.gpt import GPT, count_parameters, init_weights
from toolkit.gpt import model_pictures as pictures
from toolkit.plots import array


def test_the_model_on_paper_says_what_the_page_computes_by_hand() -> None:
    model = pictures.on_paper(GPT)
    with torch.no_grad():
        last = model(torch.tensor([[0, 1]]))[0, -1]  # self .
    torch.testing.assert_close(last, torch.tensor([-1.0, -1, 3, -2]), atol=1e-3, rtol=0)


def test_an_exchanged_token_moves_nothing_before_it() -> None:
    torch.manual_seed(0)
    model = GPT(20, 8, 16, 2, 2, dropout=0.0).eval()
    ids = torch.randint(1, 20, (1, 6))
    found = pictures.influence(model, ids, 0)
    assert (found.triu(1) == 0).all()
    assert (found.diagonal() > 0).all()
    assert found.max() <= 1
    figure = pictures.influence_map(found, [str(i) for i in range(6)])
    assert len(figure.axes[0].texts) == 21
    plt.close(figure)


def test_growth_has_a_number_for_each_depth_and_seed_and_is_drawn() -> None:
    found = pictures.growth(lambda n: init_weights(GPT(12, 16, 8, n, 2, dropout=0.0)), [1, 3], 2)
    assert [len(row) for row in found] == [2, 2]
    assert found[0][0] != found[0][1]
    figure = pictures.growth_curves([1, 3], {"scaled": found})
    _, last = array(figure.axes[0].lines[0].get_ydata())
    assert last == pytest.approx(sum(found[1]) / 2)
    plt.close(figure)


@pytest.mark.parametrize("sizes", [(10, 6, 4, 1, True), (31, 20, 12, 3, False)])
def test_the_parts_add_up_to_the_count(sizes: tuple[int, int, int, int, bool]) -> None:
    assert sum(pictures.by_part(*sizes).values()) == count_parameters(*sizes)


def test_each_model_has_a_bar_of_three_parts() -> None:
    figure = pictures.shares({"small": (10, 6, 4, 1), "GPT-3": (50_257, 2048, 12_288, 96)})
    ax = figure.axes[0]
    assert len(ax.patches) == 6
    assert [text.get_text() for text in ax.texts if "B" in text.get_text()] == ["175 B"]
    plt.close(figure)
