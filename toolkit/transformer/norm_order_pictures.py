"""Pictures of the page on pre-norm and post-norm: one token through both, gradients, training.

The page's token is (1, 1, 5, 5), and its sub-layer exchanges the two entries in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.diagrams import Sheet
from toolkit.plots import INK, PALETTE
from toolkit.transformer.experiments import LAYERS, ORDERS, Found

X = torch.tensor([1.0, 1, 5, 5])


def exchange(x: Tensor) -> Tensor:
    """The page's sub-layer: the two entries in the middle change places."""
    return x[..., [0, 2, 1, 3]]


def one_token() -> Figure:
    """The page's token through a post-norm and a pre-norm connection, with all numbers."""
    sheet = Sheet(14.9, 10.2)
    for order, y, out in (
        ("post-norm", 6.5, "(−1.41, 0, 0, 1.41)"),
        ("pre-norm", 1.2, "(0, 2, 4, 6)"),
    ):
        post = order == "post-norm"
        sheet.text(0.1, y + 3.0, order, 13, ha="left")
        sheet.words(f"{order}.x", 1.5, y, "$x$\n(1, 1, 5, 5)", width=2.8, size=11.5)
        add = 7.8
        sheet.plus(f"{order}.add", add, y, 0.33)
        if post:
            sheet.node(f"{order}.f", 5.4, y + 1.9, "sub-layer", "weights", width=2.7, height=0.95,
                       size=11.5)  # fmt: skip
            sheet.link(f"{order}.x", f"{order}.f", start=(3.2, y), via=((3.2, y + 1.9),),
                       end="left")  # fmt: skip
            sheet.text(7.2, y + 2.45, "(1, 5, 1, 5)", 11.5, ha="left")
            sheet.node(f"{order}.norm", 9.5, y, "norm", "output", width=1.6, height=0.95,
                       size=11.5)  # fmt: skip
            sheet.link(f"{order}.add", f"{order}.norm", start="right", end="left",
                       color=PALETTE[1])  # fmt: skip
            sheet.text(8.3, y - 1.0, "(2, 6, 6, 10)", 11.5)
            last = f"{order}.norm"
        else:
            sheet.node(f"{order}.norm", 4.4, y + 1.9, "norm", "output", width=1.4, height=0.95,
                       size=11.5)  # fmt: skip
            sheet.node(f"{order}.f", 6.4, y + 1.9, "sub-layer", "weights", width=2.15, height=0.95,
                       size=11.5)  # fmt: skip
            sheet.link(f"{order}.x", f"{order}.norm", start=(3.2, y), via=((3.2, y + 1.9),),
                       end="left")  # fmt: skip
            sheet.link(f"{order}.norm", f"{order}.f", start="right", end="left")
            sheet.text(5.0, y + 3.0, "(−1, −1, 1, 1)", 11.5)
            sheet.text(7.9, y + 2.45, "(−1, 1, −1, 1)", 11.5, ha="left")
            last = f"{order}.add"
        sheet.link(f"{order}.f", f"{order}.add", start="right", via=((add, y + 1.9),), end="top")
        sheet.link(f"{order}.x", f"{order}.add", start="right", end="left", color=PALETTE[1])
        sheet.dot(3.2, y, PALETTE[1])
        sheet.words(f"{order}.y", 12.95, y, out, width=3.85, size=11.5)
        sheet.link(last, f"{order}.y", start="right", end="left", color=PALETTE[1])
    return sheet.figure


def by_layer(gradients: Mapping[str, Tensor], sizes: Mapping[str, Tensor]) -> Figure:
    """Before training: the gradient in each layer, and the stream's RMS behind it.

    Args:
        gradients: norms (models, N) by order; the band is a standard deviation.
        sizes: RMS of the stream before the first layer and after each (models, N + 1).
    """
    figure, axes = plt.subplots(1, 2, figsize=(5.8, 3.1))
    for order, colour in zip(ORDERS, PALETTE, strict=False):
        found = gradients[order]
        layers = torch.arange(1, found.shape[1] + 1)
        middle, spread = found.mean(0), found.std(0)
        axes[0].plot(layers, middle, "o-", color=colour, ms=4)
        axes[0].fill_between(
            layers, middle - spread, middle + spread, color=colour, alpha=0.16, lw=0
        )
        axes[1].plot(layers, sizes[order][:, 1:].mean(0), "o-", color=colour, ms=4, label=order)
    for ax, title in zip(axes, ("norm of the gradient", "RMS of the stream"), strict=True):
        ax.set(title=title, xlabel="layer", xticks=range(2, found.shape[1] + 1, 2))
        ax.set_ylim(bottom=0)
    axes[1].legend(fontsize=10.5)
    return figure


def _band(ax: Axes, x: Tensor, values: Tensor, label: str, colour: str, line: str) -> None:
    """Mean of the seeds (the first dimension), and the range from the lowest to the highest."""
    ax.plot(x, values.mean(0), line, color=colour, label=label, ms=4)
    ax.fill_between(x, values.amin(0), values.amax(0), color=colour, alpha=0.16, lw=0)


def by_learning_rate(found: Mapping[str, Found], guessing: float) -> Figure:
    """Loss after training against the learning rate, a panel for each depth; range of the seeds."""
    figure, axes = plt.subplots(1, len(LAYERS), figsize=(5.8, 3.8), sharey=True)
    for ax, layers in zip(axes, LAYERS, strict=True):
        for order, colour in zip(ORDERS, PALETTE, strict=False):
            for warm, line in (("no warm-up", "o-"), ("warm-up", "s:")):
                one = found[f"{order}, {layers} layers, {warm}"]
                lrs = torch.tensor(list(one.by_lr))
                each = torch.stack(list(one.by_lr.values()), 1)  # (seeds, lrs)
                _band(ax, lrs, each, f"{order}, {warm}", colour, line)
        ax.axhline(guessing, color=INK, lw=0.9, ls=":")
        ax.set(title=f"{layers} layers", xlabel="learning rate", xscale="log", yscale="log")
        ax.set_xticks([1e-3, 1e-2, 1e-1], ["0.001", "", "0.1"])
        ax.minorticks_off()
    axes[0].set_ylabel("loss on new sequences")
    axes[0].set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10.5)
    return figure


def curves(found: Mapping[str, Found], layers: int, guessing: float) -> Figure:
    """Training loss of all four variants of one depth, each at its best learning rate."""
    figure, ax = plt.subplots(figsize=(6.2, 3.7))
    for order, colour in zip(ORDERS, PALETTE, strict=False):
        for warm, line in (("no warm-up", "-"), ("warm-up", ":")):
            one = found[f"{order}, {layers} layers, {warm}"]
            label = f"{order}, {warm} ({one.lr:g})"
            _band(ax, torch.tensor(one.steps), one.curve, label, colour, line)
    ax.axhline(guessing, color=INK, lw=0.9, ls=":")
    ax.set(xlabel="step", ylabel="training loss", yscale="log")
    ax.set_yticks([0.1, 0.3, 1], ["0.1", "0.3", "1"])
    ax.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2, fontsize=10.5)
    return figure
