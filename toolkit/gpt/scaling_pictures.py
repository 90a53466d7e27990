"""Pictures of the page on scaling: size and computation, memorising, dropout, tied embeddings."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from toolkit.gpt.scaling_experiments import Found, Outcome
from toolkit.plots import INK, PALETTE

TOKENS = 12 * 128  # of a step of the shipped models

_SHEET = (
    "<style>.copy-sheet{background:#fbfaf7!important;color:#22252b!important;padding:.5em .8em;"
    "margin:.3em 0;max-width:100%;width:min(36em,84vw);box-sizing:border-box}"
    ".copy-sheet :is(pre,p,span){margin:0;color:#22252b!important;background:none;border:0}"
    ".copy-sheet pre{white-space:pre-wrap;padding:0;font-size:13px;line-height:1.5;"
    "overflow-wrap:anywhere}.copy-sheet pre span{background:#f6d2b3!important;border-radius:3px}"
    ".copy-sheet p{font-size:13px;padding-top:.4em}</style>"
)


def computation(
    curves: Mapping[str, Sequence[tuple[int, float]]], weights: Mapping[str, int]
) -> Figure:
    """Bits per byte of each size against 6 N D: by tokens read, and by weights at the end.

    Args:
        curves: by model the step and bits per byte. weights: those in matrices, N.
    """
    figure, axes = plt.subplots(2, 1, figsize=(5.8, 5.2))
    for (name, points), colour in zip(curves.items(), PALETTE, strict=False):
        flops = [6 * weights[name] * TOKENS * step for step, _ in points]
        axes[0].plot(flops, [bits for _, bits in points], "o-", ms=3, color=colour, label=name)
        axes[1].plot(weights[name], points[-1][1], "o", ms=8, color=colour)
        axes[1].annotate(
            f"{name}: {points[-1][1]:.2f}", (weights[name], points[-1][1]), xytext=(8, 4),
            textcoords="offset points", color=colour,
        )  # fmt: skip
    ends = [(weights[name], points[-1][1]) for name, points in curves.items()]
    axes[1].plot(*zip(*ends, strict=True), color=INK, lw=0.8, ls=":")
    axes[0].set(xscale="log", xlabel="operations, C = 6ND", title="while they are trained")
    axes[0].legend()
    axes[1].set(xscale="log", xlabel="weights in matrices, N", title="after 7.68 million tokens",
                xlim=(4e4, 4e6), ylim=(0.95, 1.6))  # fmt: skip
    for ax in axes:
        ax.set_ylabel("bits per byte")
        ax.minorticks_off()
    return figure


def memorising(found: Mapping[str, Found], steps_an_epoch: int, limit: int) -> Figure:
    """Losses and copied runs of some contestants against epochs: a line of means, a dot a seed.

    Args:
        found: by what to write for each contestant. limit: tokens of a sample.
    """
    figure, axes = plt.subplots(3, 1, figsize=(5.8, 7.4), sharex=True)
    for (name, one), colour in zip(found.items(), PALETTE, strict=False):
        epochs = [step / steps_an_epoch for step in one.steps]
        for ax, values in zip(axes, (one.train, one.test, one.copied), strict=True):
            ax.plot(epochs, values.mean(1), color=colour, label=name)
            for seed in values.T:
                ax.plot(epochs, seed, ".", ms=4, color=colour, alpha=0.5)
    first, *others = found.values()
    control = first.control.mean().item()
    axes[2].axhline(control, color=INK, ls=":", lw=1)
    for one, colour in zip(others, PALETTE[1:], strict=False):
        own = one.control[-1].mean().item()  # what others share with a text of another length
        if abs(own - control) > 1:
            axes[2].plot([0.8 * epochs[-1], 1.2 * epochs[-1]], [own] * 2, color=colour, lw=2)
    axes[2].text(1, control + 0.8, "functions of other modules", fontsize=10)
    axes[0].set_title("training loss, nats per token")
    axes[1].set_title("loss on held-out modules")
    axes[2].set_title(f"longest copied run in {limit} written tokens")
    axes[0].legend()
    _doubling(axes[2])
    axes[2].set_xlabel("epochs")
    return figure


def regularised(found: Mapping[str, Mapping[str, Found]], steps_an_epoch: int) -> Figure:
    """Held-out loss against training, with and without dropout, a panel for each kind of text."""
    figure, axes = plt.subplots(
        len(found), 1, figsize=(5.8, 2.4 * len(found)), sharex=True, squeeze=False
    )
    for ax, (title, each) in zip(axes[:, 0], found.items(), strict=True):
        for (name, one), colour in zip(each.items(), PALETTE, strict=False):
            epochs = [step / steps_an_epoch for step in one.steps]
            ax.plot(epochs, one.test.mean(1), color=colour, label=name)
            for seed in one.test.T:
                ax.plot(epochs, seed, ".", ms=4, color=colour, alpha=0.5)
        ax.set(title=title, ylabel="held-out loss")
        _doubling(ax)
    axes[0, 0].legend()
    axes[-1, 0].set_xlabel("epochs")
    return figure


def _doubling(ax: plt.Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))


def output_matrices(found: Mapping[str, Outcome]) -> Figure:
    """Held-out loss by the way of making the output matrix: a dot a seed, a line at the mean."""
    figure, ax = plt.subplots(figsize=(5.8, 0.9 + 0.5 * len(found)))
    for y, one in enumerate(found.values()):
        ax.plot(one.test, [y] * len(one.test), "o", color=PALETTE[0], ms=6, alpha=0.55, mew=0)
        ax.plot([one.test.mean()] * 2, [y - 0.3, y + 0.3], color=INK, lw=2)
    ax.set_yticks(range(len(found)), list(found))
    ax.invert_yaxis()
    ax.set_xlabel("loss on held-out modules (nats per token)")
    return figure


def copy_sheet(text: str, begin: int, end: int, note: str) -> str:
    """A written text with its longest copied run shaded."""
    before, run, after = (html.escape(part) for part in (text[:begin], text[begin:end], text[end:]))
    return (
        f"{_SHEET}<div class=copy-sheet><pre>{before}<span>{run}</span>{after}</pre>"
        f"<p>{html.escape(note)}</p></div>"
    )
