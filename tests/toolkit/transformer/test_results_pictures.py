"""The paper's table of results."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt

from toolkit.transformer import results_pictures as pictures
from toolkit.transformer import translator_experiments

matplotlib.use("Agg")


def test_table_holds_both_transformers_and_eight_others() -> None:
    assert len(pictures.TABLE) == 10
    assert len(pictures.earlier()) == 8
    big = pictures.system("Transformer, big")
    assert big.cost_de == big.cost_fr == pictures.system("GNMT + RL").cost_de
    assert pictures.table().count("<tr>") == 11
    assert pictures.power(3.3e18) == "3.3·10<sup>18</sup>"
    assert pictures.power(None) == ""


def test_every_system_with_a_score_and_a_cost_is_a_point() -> None:
    figure = pictures.scores_and_costs()
    assert [len(ax.lines) for ax in figure.axes] == [7, 9]
    figure.canvas.draw()
    plt.close(figure)


def test_each_translator_has_a_line_with_a_point_for_each_length() -> None:
    figure = pictures.by_length(translator_experiments.read())
    (ax,) = figure.axes
    assert [line.get_label() for line in ax.lines] == list(translator_experiments.TRANSLATORS)
    assert {len(line.get_ydata()) for line in ax.lines} == {3}
    plt.close(figure)
