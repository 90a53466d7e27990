"""Pictures of the Transformer's training: what they show, and what is counted for them."""

from __future__ import annotations

import math
import re

import matplotlib.pyplot as plt
import pytest

from solutions.transformer import learning_rate
from tests.toolkit.drawings import words
from toolkit.transformer import training_pictures as pictures


def test_the_staircase_shows_one_token_more_in_each_row_and_asks_for_the_next() -> None:
    shown = words(pictures.staircase(("a", "b")))
    assert [w for w in shown if w] == [
        "<bos>", "a", "<bos>", "a", "b", "<bos>", "a", "b", "<eos>", "may be seen", "asked for",
    ]  # fmt: skip
    plt.close("all")


def test_positions_count_padding_and_tokens_do_not() -> None:
    lengths = [(2, 3), (4, 1), (9, 9)]
    assert pictures.count_positions([0, 1], lengths) == (2 * (4 + 3), 2 + 3 + 4 + 1)


def test_batches_say_how_many_positions_they_have() -> None:
    figure = pictures.divided({"one": [["a", "c"]], "two": [["e"], ["f"]]})
    assert [w for w in words(figure) if "×" in w] == ["2 × 3 = 6", "1 × 5 = 5", "1 × 6 = 6"]
    bars = pictures.batch_bars({"x": [[0], [1]], "y": [[0, 1]]}, [(1, 1), (2, 2)])
    assert [len(ax.patches) for ax in bars.axes] == [4, 2]
    plt.close("all")


def test_the_smoothed_curve_is_lowest_where_the_target_is_met() -> None:
    figure = pictures.right_word([0.0, 0.1], 6, {0.9: 0.42})
    line = figure.axes[0].lines[1]
    assert line.get_xdata()[line.get_ydata().argmin()] == pytest.approx(55 / 60, abs=2e-3)
    assert line.get_ydata().min() == pytest.approx(0.421, abs=1e-3)
    plt.close("all")


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (128, 1000)])
def test_the_schedule_is_that_of_the_chapter(d_model: int, warmup: int) -> None:
    for step in (1, warmup, 16_000):
        rate = learning_rate(step, d_model, warmup)
        assert pictures.schedule_rate(step, d_model, warmup) == pytest.approx(rate)
    page = pictures.schedule_page(d_model, warmup)
    assert f"{d_model**-0.5 * warmup**-0.5:.6f}" in page
    line = re.findall(r"points='([^']+)'", page)[1]
    heights = [float(corner.partition(",")[2]) for corner in line.split()]
    assert heights.index(min(heights)) == 1  # the peak comes right after the start


def test_losses_have_a_line_each_and_one_for_the_level() -> None:
    figure = pictures.losses({"a": [2.0, 1.0], "b": [3.0, 2.0]}, level=0.5, note="floor")
    assert [line.get_label() for line in figure.axes[0].lines] == ["a", "b", "floor"]
    logged = pictures.losses({"a": [2.0, 1.0]}, steps=[10, 1000], log_x=True)
    assert logged.axes[0].get_xscale() == "log"
    plt.close("all")


def test_averages_stand_over_their_checkpoints() -> None:
    figure = pictures.averaged([[0.8, 0.9], [0.7, 1.0]], [0.95, 1.0])
    assert figure.axes[0].lines[-1].get_ydata().tolist() == [0.95, 1.0]
    named = pictures.decays({"root": [2.0, 1.0]}, [10, 100])
    assert words(named) == ["root"]
    plt.close("all")


def test_one_hot_rows_have_a_single_one_and_refuse_other_words() -> None:
    goal = pictures.one_hot(["I", "<eos>"])
    assert goal.sum(1).tolist() == [1, 1]
    assert goal.argmax(1).tolist() == [2, 5]
    assert math.isclose(goal.sum(), 2)
    with pytest.raises(ValueError, match="you"):
        pictures.one_hot(["you"])
