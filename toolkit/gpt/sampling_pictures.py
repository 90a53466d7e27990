"""Pictures of the page on sampling: a distribution reshaped by hand, and what settings lead to."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from ipywidgets import VBox
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots, widgets
from toolkit.plots import INK, PALETTE

OFF = "off"
Cut = Callable[[Tensor, Any], Tensor]


def cut(
    logits: Tensor, parts: Any, temperature: float, top_k: int | None, top_p: float | None
) -> Tensor:
    """Probabilities (V,) to draw from: temperature first, then top-k, then top-p.

    Args:
        parts: with `scale_temperature`, `keep_top_k` and `keep_top_p`.
    """
    logits = parts.scale_temperature(logits, temperature)
    if top_k is not None:
        logits = parts.keep_top_k(logits, top_k)
    if top_p is not None:
        logits = parts.keep_top_p(logits, top_p)
    return logits.softmax(-1)


def _bars(names: Sequence[str], before: Sequence[float], after: Sequence[float], note: str) -> str:
    """One distribution as a table of bars; what was cut has its share before in brackets."""
    lines = []
    for name, old, new in zip(names, before, after, strict=True):
        kept = new > 0
        fill = PALETTE[0] if kept else "#cfd2d8"
        said = f"{new:.3f}" if kept else f"({old:.3f})"
        lines.append(
            f"<tr><th scope=row style=text-align:right>{html.escape(name)}</th>"
            f"<td style=text-align:left!important><span style='display:inline-block;height:.8em;"
            f"background:{fill};width:{max(0.1, 11 * (new or old)):.1f}em'></span> {said}</td></tr>"
        )
    return widgets.side_by_side(
        f"<table class=heat style=font-size:13px><caption>{note}</caption>{''.join(lines)}</table>"
    )


def reshaped(
    logits: Mapping[str, Tensor], names: Callable[[Sequence[int]], Sequence[str]], parts: Any, *,
    temperatures: Sequence[float] = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0), ks: Sequence[int] = (10, 3),
    ps: Sequence[float] = (0.9, 0.6), shown: int = 8,
) -> VBox:  # fmt: skip
    """Next-token distributions that follow temperature, top-k and top-p by hand.

    Args:
        logits: (V,) by the name of the position.
        names: of token ids, as they are to be read.
        parts: with the three functions of `cut`.
        shown: tokens with a bar of their own; the others share one.
    """

    def draw(position: str, temperature: str, top_k: str, top_p: str) -> str:
        z, heat = logits[position], float(temperature)
        before = cut(z, parts, heat, None, None)  # (V,)
        k, p = (None if top_k == OFF else int(top_k)), (None if top_p == OFF else float(top_p))
        after = cut(z, parts, heat, k, p)  # (V,)
        best = z.topk(shown).indices
        rest = (1 - before[best].sum().item(), max(0.0, 1 - after[best].sum().item()))
        number = int((after > 0).sum())
        few = number <= shown
        return _bars(
            [*names(best.tolist()), f"{len(z) - shown:,} others"],
            [*before[best].tolist(), rest[0]],
            [*after[best].tolist(), 0.0 if few else rest[1]],
            f"{number:,} of {len(z):,} tokens can be drawn",
        )

    return widgets.frames(
        {
            "position": list(logits),
            "temperature": [f"{t:g}" for t in temperatures],
            "top-k": [OFF, *map(str, ks)],
            "top-p": [OFF, *map(str, ps)],
        },
        draw,
        start={"temperature": list(temperatures).index(1.0)},
    )


def outcomes(
    settings: Sequence[str], compiles: Mapping[str, Mapping[str, Tensor]],
    copied: Mapping[str, Tensor], real: float,
) -> Figure:  # fmt: skip
    """What each setting leads to: shares that compile, and the longest copied runs.

    Args:
        compiles: by model and setting the shares (S,), one for each seed.
        copied: by setting the mean longest runs (S,) of the first model, in tokens.
        real: the same of functions that people wrote.
    """
    figure, axes = plt.subplots(1, 2, figsize=(5.2, 0.8 + 0.35 * len(settings)), sharey=True)
    for below, colour, (model, found) in zip(
        (-0.17, 0.17), PALETTE, compiles.items(), strict=False
    ):
        for y, setting in enumerate(settings):
            _seeds(axes[0], 100 * found[setting], y + below, colour, 0.15)
            number = f"{(100 * found[setting]).mean():.0f}"
            axes[0].text(104, y + below * 1.3, number, color=colour, va="center", fontsize=10.5)
        axes[0].plot([], [], "o", color=colour, label=model)
    for y, setting in enumerate(settings):
        _seeds(axes[1], copied[setting], y, PALETTE[0], 0.25)
    axes[1].axvline(real, color=INK, lw=1, ls=":")
    axes[0].set(xlabel="of 100 texts compile", xlim=(0, 100))
    axes[1].set(xlabel="tokens copied in a row", xlim=(0, None))
    for ax in axes:
        ax.xaxis.label.set_size(11)
    labels = [setting.replace("temperature ", "τ = ") for setting in settings]
    axes[0].set_yticks(range(len(settings)), labels, fontsize=11.5)
    axes[0].invert_yaxis()
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, handletextpad=0.1)
    axes[1].set_title("dotted: people", fontsize=11)
    return figure


def _seeds(ax: Any, values: Tensor, y: float, colour: str, half: float) -> None:
    ax.plot(values, torch.full_like(values, y), "o", color=colour, ms=5, alpha=0.55, mew=0)
    mean = plots.array(values.mean())
    ax.plot([mean, mean], [y - half, y + half], color=INK, lw=2)
