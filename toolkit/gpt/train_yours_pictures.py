"""Pictures of the page on training one's own GPT: losses, and how it goes on after each share.

The text is that which lies beside the shipped model, so that the page needs no other.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import own_models
from toolkit.plots import INK, PALETTE

SIZES = {"d_model": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
MARKS = {50: "50\n1 %", 500: "500\n10 %", 5000: "5,000\n100 %"}
# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme colours every block of code.
_SHEET = (
    "<style>.goes-on{background:#fbfaf7!important;color:#22252b!important;padding:.5em .7em;"
    "margin:.3em 0;width:min(34em,84vw);box-sizing:border-box;font:13px/1.5 monospace;"
    "white-space:pre-wrap;overflow-wrap:anywhere}.goes-on b{color:#104a84!important}</style>"
)


def frequencies(stream: Tensor) -> tuple[float, list[tuple[int, float]]]:
    """What a model can do that knows how frequent each token is, and nothing else.

    Returns:
        Its loss on the stream (M,), in nats; and the five most frequent ids with their shares.
    """
    share = torch.bincount(stream).double() / len(stream)
    top = share.topk(5)
    most = list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return -torch.special.xlogy(share, share).sum().item(), most


def learn(
    parts: Any, stream: Tensor, steps: int, *, vocab_size: int = 1024, seed: int = 0,
    make: Callable[..., nn.Module] | None = None,
    init_weights: Callable[..., nn.Module] | None = None,
    train: Callable[..., list[float]] | None = None,
) -> tuple[nn.Module, list[float]]:  # fmt: skip
    """The page's training, perhaps with one part exchanged: the model and the loss of every step.

    Args:
        parts: with `GPT`, `init_weights` and `train`.
        make, init_weights, train: in the place of these.
    """
    torch.manual_seed(seed)
    model = (make or parts.GPT)(vocab_size, max_length=128, **SIZES)
    (init_weights or parts.init_weights)(model)
    losses = (train or parts.train)(
        model, stream, steps, length=64, batch_size=8, max_lr=5e-3, warmup_steps=max(1, steps // 10)
    )
    return model, losses


def smooth(losses: Sequence[float], width: int) -> tuple[list[float], list[float]]:
    """Means of neighbouring steps, and the steps in the middle of them."""
    starts = range(0, len(losses) - width + 1, width)
    return (
        [s + (width + 1) / 2 for s in starts],
        [sum(losses[s : s + width]) / width for s in starts],
    )


def live_losses(
    curves: Mapping[str, Sequence[float]], levels: Mapping[str, float], width: int = 4
) -> Figure:
    """Losses of the first steps of trainings, means of `width` neighbouring steps.

    Args:
        curves: loss of each step by name.
        levels: losses to mark by a dotted line, by what has them.
    """
    figure, ax = plt.subplots(figsize=(5.8, 3.2))
    for (name, losses), colour in zip(curves.items(), PALETTE, strict=False):
        ax.plot(*smooth(losses, width), color=colour, label=name)
    for name, level in levels.items():
        ax.axhline(level, color=INK, lw=1, ls=":")
        ax.text(max(map(len, curves.values())), level + 0.1, f"{name}: {level:.2f}", ha="right",
                fontsize=10.5)  # fmt: skip
    ax.set(xlabel="step", ylabel="loss", ylim=(0, 7.9))
    if len(curves) > 1:
        ax.legend(fontsize=10.5)
    return figure


def course(curves: Sequence[Mapping[str, str]]) -> Figure:
    """The whole training of the shipped model and of two smaller ones: loss, and held-out bits.

    Args:
        curves: rows of `training.csv`.
    """
    figure, axes = plt.subplots(2, 1, figsize=(5.8, 4.8), sharex=True)
    for colour, (model, name) in zip(
        PALETTE,
        {"gpt": "940,800 parameters (shipped)", "gpt-medium": "224,000", "gpt-small": "62,000"}
        .items(), strict=False,
    ):  # fmt: skip
        rows = [row for row in curves if row["model"] == model]
        for ax, column, mark in zip(axes, ("loss", "held_out_bits_per_byte"), ("", "o"),
                                    strict=True):  # fmt: skip
            points = [(int(row["step"]), float(row[column])) for row in rows if row[column]]
            ax.plot(*zip(*points, strict=True), marker=mark, ms=3.5, color=colour, label=name)
    axes[0].set(title="training loss (nats per token)", ylim=(1, 7))
    axes[1].set(title="validation text (bits per byte)", ylim=(0.9, 2), xlabel="step",
                xscale="log")  # fmt: skip
    axes[0].legend(fontsize=10.5)
    for ax in axes:
        for step in MARKS:
            ax.axvline(step, color="#a9a498", lw=1)
    axes[1].set_xticks(list(MARKS), list(MARKS.values()))
    axes[1].minorticks_off()
    return figure


def goes_on(prompt: str, answer: str) -> str:
    """A first line and how a model goes on from it."""
    return f"{_SHEET}<div class=goes-on><b>{html.escape(prompt)}</b>{html.escape(answer)}</div>"


@torch.no_grad()
def moved(model: nn.Module, ids: Tensor) -> Tensor:
    """How far the logits at each position move when the last token changes: (T,).

    Args:
        ids: (1, T).
    """
    model.eval()
    other = ids.clone()
    other[0, -1] = (other[0, -1] + 1) % model.token.num_embeddings  # type: ignore[operator,union-attr]
    return (model(other) - model(ids))[0].abs().amax(-1)


def counted(shipped: own_models.ShippedWeights) -> int:
    """How many parameters the shipped model has."""
    return sum(tensor.numel() for tensor in shipped.state.values())
