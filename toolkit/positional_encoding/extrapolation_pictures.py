"""Pictures of the page on length extrapolation: accuracy by position, and clock hands.

As on the page on sinusoidal codes, the tip of a hand is its sine to the right of the middle and its
cosine above it: position 0 points to the 12, and hands turn clockwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots
from toolkit.positional_encoding.clock_pictures import face
from toolkit.positional_encoding.experiments import LONGEST, SYMBOLS, TRAINED, Found


def by_method(tasks: Mapping[str, Mapping[str, Found]]) -> Figure:
    """A panel for each method with a curve for each task, mean and spread of the seeds.

    Args:
        tasks: what `experiments.read` returned, by the name of the task.
    """
    methods = list(next(iter(tasks.values())))
    rows = math.ceil((len(methods) + 1) / 2)
    figure, axes = plt.subplots(
        rows, 2, figsize=(5.6, 1.65 * rows), sharex=True, sharey=True, squeeze=False
    )
    for ax, method in zip(axes.flat, methods, strict=False):
        ax.axvspan(-0.5, TRAINED - 0.5, color=plots.INK, alpha=0.08, lw=0)
        ax.axhline(1 / SYMBOLS, color=plots.INK, lw=0.8, ls=":")
        for index, (task, found) in enumerate(tasks.items()):
            one = found[method]
            middle, spread = one.shares.mean(0), one.shares.std(0)
            colour = plots.PALETTE[index]
            ax.plot(one.x, middle, "-" if index == 0 else "--", color=colour, label=task, lw=1.6)
            low, high = (middle - spread).clamp(min=0), (middle + spread).clamp(max=1)
            ax.fill_between(one.x, low, high, color=colour, alpha=0.2, lw=0)
        ax.set(title=method, ylim=(-0.03, 1.06), xlim=(-0.5, LONGEST - 0.5))
        ax.set_xticks(range(0, LONGEST + 1, TRAINED))
    for ax in axes[:, 0]:
        ax.set_ylabel("right")
    for ax in axes[-1]:
        ax.set_xlabel("position")
    axes.flat[len(methods) - 2].tick_params(labelbottom=True)
    rest = list(axes.flat)[len(methods) :]
    for ax in rest:
        ax.axis("off")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    rest[0].legend(handles, labels, loc="center", fontsize=10, title="grey: trained lengths")
    return figure


def hands(shown: Mapping[str, tuple[int, ...]], frequencies: tuple[float, ...]) -> Figure:
    """The clock hands of a sinusoidal code: a circle per frequency, a hand per position.

    Args:
        shown: positions by the label of their colour.
        frequencies: radians per position.
    """
    figure, axes = plt.subplots(1, len(frequencies), figsize=(5.4, 2.9), squeeze=False)
    for ax, frequency in zip(axes[0], frequencies, strict=True):
        face(ax)
        for index, (label, positions) in enumerate(shown.items()):
            angles = frequency * torch.tensor(positions, dtype=torch.float64)
            _spokes(ax, angles, plots.PALETTE[index], label, positions, 1.17 + 0.25 * index)
        ax.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), title=f"frequency {frequency:g}")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10)
    return figure


def _spokes(
    ax: plt.Axes, angles: Tensor, colour: str, label: str, positions: tuple[int, ...], away: float
) -> None:
    for number, (angle, position) in enumerate(zip(angles.tolist(), positions, strict=True)):
        x, y = math.sin(angle), math.cos(angle)
        ax.plot([0, x], [0, y], color=colour, lw=1.8, label=label if number == 0 else None)
        if number in (0, len(positions) - 1):
            ax.text(away * x, away * y, str(position), ha="center", va="center", color=colour)
