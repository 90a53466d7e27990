"""The pictures of the page on GPT's optimiser draw the schedule and the steps they are given."""

import math
import re

import torch
from torch import Tensor

from toolkit.gpt import optimiser_pictures as pictures
from toolkit.gpt import schedule_experiments as experiments


def shrink(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: int, lr: float,
           weight_decay: float) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The decay of AdamW alone."""
    return (1 - lr * weight_decay) * value, first, second


def test_decay_is_passed_on_in_one_kind_only() -> None:
    found = pictures.decayed(shrink, count=3)
    apart, inside = (found[kind] for kind in pictures.KINDS)
    assert apart.shape == (pictures.STEPS // pictures.EVERY + 1, 2, 3)
    assert math.isclose(apart[-1].mean(), math.exp(-0.2), rel_tol=1e-3)
    assert bool((inside == 1).all())
    assert len(pictures.shrinking(found).axes) == 2


def test_the_page_of_a_schedule_shows_the_learning_rate_at_the_step_asked_for() -> None:
    def lr(step: int, peak: float, warmup: int, total: int, min_lr: float) -> float:
        return 0.25 * peak if step == 20_000 else peak

    shown = pictures.schedule_page(lr, 2000, 40_000, 0.0)
    assert "<b>0.250</b> of the peak" in shown
    assert len(re.findall("<polyline", shown)) == 2


def test_every_wrong_curve_has_a_panel_over_the_right_one() -> None:
    curves = {name: [0.0, float(i)] for i, name in enumerate(("right", "a", "b", "c", "d"))}
    axes = pictures.lines(curves, [1, 2]).axes
    assert [ax.get_title(loc="left") for ax in axes] == ["a", "b", "c", "d"]
    assert all(list(ax.lines[0].get_ydata()) == [0, 0] for ax in axes)


def test_the_comparison_draws_every_schedule_and_marks_its_best() -> None:
    losses = {0.1: torch.tensor([2.0, 2.2]), 0.2: torch.tensor([1.0, 1.2])}
    found = {name: experiments.Found(losses, 0.2, torch.tensor([1.0, 1.2])) for name in "ab"}
    (ax,) = pictures.compared(found).axes
    assert [text.get_text() for text in ax.get_legend().texts] == ["a", "b"]
