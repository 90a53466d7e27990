"""Pictures of the page on GPT's optimiser and its schedule: decay, warm-up, cosine, mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.gpt.schedule_experiments import Found
from toolkit.plots import INK, PALETTE

LR, WEIGHT_DECAY, STEPS, EVERY = 1e-3, 0.1, 2000, 20
NOISE = (10.0, 0.1)
KINDS = ("decoupled (AdamW)", "in the gradient (L2)")

# --------------------------------------------------------------------------- weight decay


def decayed(adamw_step: Callable[..., Any], count: int = 300, seed: int = 0) -> dict[str, Tensor]:
    """Parameters that begin at 1, whose gradients are noise, under two kinds of weight decay.

    Args:
        adamw_step: of the chapter.
        count: parameters for each size of the noise.

    Returns:
        For each of `KINDS`: values (STEPS / EVERY + 1, noise, count), from the first on.
    """
    draw = torch.Generator().manual_seed(seed)
    size = torch.tensor(NOISE)[:, None]  # (2, 1)
    noise = size * torch.randn(STEPS, len(NOISE), count, generator=draw)
    found = {}
    for kind in KINDS:
        apart = kind == KINDS[0]
        value = torch.ones(len(NOISE), count)
        exp_avg = exp_avg_sq = torch.zeros_like(value)
        kept = [value]
        for step, gradient in enumerate(noise, 1):
            added = 0.0 if apart else WEIGHT_DECAY * value
            value, exp_avg, exp_avg_sq = adamw_step(
                value, gradient + added, exp_avg, exp_avg_sq, step, LR,
                weight_decay=WEIGHT_DECAY if apart else 0.0,
            )  # fmt: skip
            if step % EVERY == 0:
                kept.append(value)
        found[kind] = torch.stack(kept)
    return found


def shrinking(found: Mapping[str, Tensor]) -> Figure:
    """Mean and middle two thirds of what `decayed` returns, a panel for each kind of decay."""
    figure, axes = plt.subplots(1, len(found), figsize=(6.0, 2.35), sharey=True)
    for ax, (kind, values) in zip(axes, found.items(), strict=True):
        steps = torch.arange(len(values)) * EVERY
        for number, size in enumerate(NOISE):
            low, high = values[:, number].quantile(torch.tensor([1 / 6, 5 / 6]), dim=1)
            colour, mean = PALETTE[number], values[:, number].mean(1)
            ax.fill_between(steps, low, high, color=colour, alpha=0.18, lw=0)
            ax.plot(steps, mean, color=colour, ls="--" if number else "-")
            ax.text(STEPS * 1.03, mean[-1] + _aside(values, number), f"noise {size:g}",
                    color=colour, va="center", fontsize=11)  # fmt: skip
        ax.set(
            title=kind, xlabel="step", ylim=(0, 1.1), xlim=(0, STEPS * 1.55), xticks=(0, 1000, 2000)
        )
    axes[0].set_ylabel("parameter")
    return figure


def _aside(values: Tensor, number: int) -> float:
    """How far a label moves from the end of its line so that it doesn't cover the other."""
    ends = values[-1].mean(1)
    close = abs(ends[0] - ends[1]) < 0.1
    return (0.06 if number == 0 else -0.06) if close else 0.0


# --------------------------------------------------------------------------- the schedule

_SHEET = (
    "<style>.rate{background:#fbfaf7!important;color:#22252b!important;padding:.4em .7em;"
    "margin:.3em 0;max-width:100%;width:min(30em,84vw);box-sizing:border-box;font-size:14px;"
    "line-height:1.5}.rate svg{display:block;width:100%}"
    ".rate :is(p,b){color:#22252b!important;margin:.2em 0}</style>"
)
_LAST = 40_000
_ASKED = 20_000


def schedule_page(
    cosine_lr: Callable[..., float], warmup: int, total: int, minimum: float, peak: float = 2.5e-4
) -> str:
    """The learning rate against the step, over GPT-1's in grey, as HTML.

    Args:
        cosine_lr: of the chapter.
        minimum: share of the peak at the end.
    """

    def lr(step: float, *plan: float) -> float:
        return cosine_lr(step, peak, int(plan[0]), int(plan[1]), min_lr=peak * plan[2])

    def line(*plan: float) -> str:
        steps = sorted({1, int(plan[0]) or 1, *range(500, _LAST + 1, 500)})
        return " ".join(f"{_across(s):.1f},{_up(lr(s, *plan) / peak):.1f}" for s in steps)

    plan = (warmup, total, minimum)
    ticks = [
        f"<text x='{_across(s):.0f}' y='215' text-anchor='middle'>{s:,}</text>"
        for s in range(0, _LAST + 1, 10_000)
    ] + [
        f"<text x='48' y='{_up(share) + 5:.0f}' text-anchor='end'>{name}</text>"
        for share, name in ((0.0, "0"), (0.5, "half"), (1.0, "peak"))
    ]
    steps = range(1, total + 1, 10)
    mean = sum(lr(s, *plan) for s in steps) / len(steps) / peak
    label = (
        f"learning rate: {warmup} steps of warm-up, {total} in all, down to {minimum:g} of the peak"
    )
    return (
        f"{_SHEET}<div class=rate><svg viewBox='0 0 440 236' role='img' aria-label='{label}' "
        f"font-size='15' fill='{INK}'>"
        f"<path d='M54 10V196H416' fill='none' stroke='{INK}'/>{''.join(ticks)}"
        "<text x='233' y='233' text-anchor='middle'>step</text>"
        f"<polyline points='{line(2000, _LAST, 0)}' fill='none' stroke='#a9a498' stroke-width='2'/>"
        f"<polyline points='{line(*plan)}' fill='none' stroke='{PALETTE[0]}' stroke-width='3'/>"
        f"<circle cx='{_across(_ASKED):.1f}' cy='{_up(lr(_ASKED, *plan) / peak):.1f}' r='5' "
        f"fill='{PALETTE[1]}'/>"
        f"</svg><p>step 20,000: <b>{lr(_ASKED, *plan) / peak:.3f}</b> of the peak; mean up to step "
        f"{total:,}: <b>{mean:.3f}</b></p></div>"
    )


def _across(step: float) -> float:
    return 54 + 352 * step / _LAST


def _up(share: float) -> float:
    return 196 - 176 * share


def lines(curves: Mapping[str, Sequence[float]], steps: Sequence[int]) -> Figure:
    """Learning rates against the step, each but the first in a panel of its own over that in grey.

    Args:
        curves: by name, the right one first.
    """
    (_, right), *wrong = curves.items()
    figure, axes = plt.subplots(2, math.ceil(len(wrong) / 2), figsize=(5.8, 2.75),
                                sharex=True, sharey=True)  # fmt: skip
    for ax, (name, values) in zip(axes.flat, wrong, strict=True):
        ax.plot(steps, right, color="#a9a498", lw=3)
        ax.plot(steps, values, color=PALETTE[1])
        ax.set_title(name)
    for ax in axes[-1]:
        ax.set_xlabel("step")
    for ax in axes[:, 0]:
        ax.set_ylabel("learning rate")
    return figure


# --------------------------------------------------------------------------- stored experiment


def compared(found: Mapping[str, Found]) -> Figure:
    """The validation loss of each schedule by its largest learning rate: mean and all seeds."""
    figure, ax = plt.subplots(figsize=(5.8, 2.65))
    for (name, one), colour, marker in zip(found.items(), PALETTE, "so^D", strict=False):
        lrs = list(one.validation)
        for lr, values in one.validation.items():
            ax.plot([lr] * len(values), values, marker, color=colour, ms=3.5, alpha=0.35, mew=0)
        means = [values.mean().item() for values in one.validation.values()]
        ax.plot(lrs, means, marker=marker, ms=5, color=colour, label=name)
        best = lrs.index(one.lr)
        ax.plot(one.lr, means[best], marker, ms=10, mfc="none", mec=colour, mew=1.6)
    ax.set_xscale("log", base=2)
    ax.set_xticks(lrs, [f"{lr:g}" for lr in lrs])
    ax.set(xlabel="largest learning rate", ylabel="validation loss (nats)")
    ax.legend(fontsize=10)
    return figure
