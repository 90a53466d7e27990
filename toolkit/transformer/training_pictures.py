"""Pictures of a Transformer's training: targets, batches, smoothing, the schedule, and curves.

The chapter's example is «I am a student», with the six words that a decoder chooses from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.corpora.translation import SPECIALS
from toolkit.plots import INK, PALETTE

SENTENCE = ("I", "am", "a", "student")
CHOICES = ("a", "am", "I", "thanks", "student", "<eos>")  # of the decoder
FRENCH = (*SPECIALS, "je", "suis", "étudiant", "merci")
ENGLISH = (*SPECIALS, "a", "am", "I", "thanks", "student")
PAIRS = (("je suis étudiant", "I am a student"), ("merci", "thanks"))
# Source and target length of six sentences, <eos> counted.
LENGTHS = {"a": (2, 2), "b": (2, 2), "c": (2, 3), "d": (3, 5), "e": (6, 5), "f": (6, 6)}
PAPER = (512, 4000)  # width and warm-up of the base model
_SOFT = "#cfcabd"
_PADDED = "#f4f2ec"


# --------------------------------------------------------------------------- what is measured


def count_positions(batch: Sequence[int], lengths: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Positions of a batch, padding counted, and real tokens, both sides together."""
    rows = [lengths[i] for i in batch]
    wide = max(s for s, _ in rows) + max(u for _, u in rows)
    return len(rows) * wide, sum(s + u for s, u in rows)


# --------------------------------------------------------------------------- targets


def staircase(words: Sequence[str] = SENTENCE) -> Figure:
    """What the decoder reads up to each position, and what it is asked for there."""
    read = ["<bos>", *words]
    goals = [*words, "<eos>"]
    count = len(read)
    figure, ax = plt.subplots(figsize=(6.2, 0.42 * count + 0.75))
    for row, goal in enumerate(goals):
        for column, word in enumerate(read):
            seen = column <= row
            _box(ax, column, -row, word if seen else "", "#dfeaf5" if seen else _PADDED, seen)
        _box(ax, count + 0.8, -row, goal, "#f6e7da", True)
        ax.annotate(
            "", (count + 0.75, -row - 0.5), (count + 0.1, -row - 0.5),
            arrowprops={"arrowstyle": "->", "color": PALETTE[1], "lw": 1.5},
        )  # fmt: skip
    ax.text(0, 0.18, "may be seen", fontsize=11, va="bottom")
    ax.text(count + 0.8, 0.18, "asked for", fontsize=11, va="bottom")
    ax.set(xlim=(-0.05, count + 1.85), ylim=(-count - 0.05, 0.75))
    ax.axis("off")
    return figure


def _box(ax: Axes, x: float, y: float, word: str, colour: str, real: bool) -> None:
    ax.add_patch(
        plt.Rectangle(
            (x + 0.02, y - 0.97), 0.96, 0.94, fc=colour, ec=INK if real else _SOFT, lw=0.7,
            hatch=None if real else "//",
        )
    )  # fmt: skip
    ax.text(x + 0.5, y - 0.5, word, ha="center", va="center", fontsize=10.5)


# --------------------------------------------------------------------------- batches


def divided(ways: Mapping[str, Sequence[Sequence[str]]]) -> Figure:
    """The target side of the six sentences in batches: a row a sentence, padding hatched.

    Args:
        ways: for each title the batches, of names of `LENGTHS`.
    """
    tall = max(sum(map(len, batches)) + 0.5 * (len(batches) - 1) for batches in ways.values())
    figure, axes = plt.subplots(1, len(ways), figsize=(6.6, 0.32 * tall + 0.6))
    for ax, (title, batches) in zip(axes, ways.items(), strict=True):
        y = 0.0
        for batch in batches:
            wide = max(LENGTHS[name][1] for name in batch)
            top = y
            for name in batch:
                for x in range(wide):
                    _box(ax, x, y, "", "#dfeaf5", True) if x < LENGTHS[name][1] else _box(
                        ax, x, y, "", _PADDED, False
                    )
                ax.text(-0.2, y - 0.5, name, ha="right", va="center", fontsize=10.5)
                y -= 1
            ax.text(
                wide + 0.25, (top + y) / 2, f"{len(batch)} × {wide} = {len(batch) * wide}",
                va="center", fontsize=10.5,
            )  # fmt: skip
            y -= 0.5
        ax.set(xlim=(-0.8, 10.5), ylim=(-tall - 0.1, 0.1), title=title)
        ax.axis("off")
    return figure


def batch_bars(
    divided_by: Mapping[str, Sequence[Sequence[int]]], lengths: Sequence[tuple[int, int]]
) -> Figure:
    """Each batch as a bar of real tokens and padding, a panel a way of batching.

    Args:
        divided_by: for each title the batches, of indices of `lengths`.
        lengths: source and target length of each sentence.
    """
    figure, axes = plt.subplots(len(divided_by), 1, figsize=(6.2, 4.4), sharey=True)
    for ax, (title, batches) in zip(axes, divided_by.items(), strict=True):
        both = torch.tensor([count_positions(batch, lengths) for batch in batches])  # (batches, 2)
        across = range(len(batches))
        ax.bar(across, both[:, 1], width=1.0, color=PALETTE[0], label="real tokens")
        ax.bar(
            across, both[:, 0] - both[:, 1], width=1.0, bottom=both[:, 1], color=PALETTE[1],
            label="padding",
        )  # fmt: skip
        ax.set_title(title, fontsize=11)
        ax.set_xticks([])
        ax.margins(x=0.01)
    axes[-1].legend(fontsize=10, loc="upper right", ncols=2)
    axes[len(axes) // 2].set_ylabel("positions, both sides")
    axes[-1].set_xlabel("batches, in order")
    return figure


# --------------------------------------------------------------------------- smoothing


def right_word(smoothing: Sequence[float], words: int, dots: Mapping[float, float]) -> Figure:
    """Loss against the probability of the right word; the other words share the rest.

    Args:
        smoothing: a curve for each epsilon.
        words: V.
        dots: probabilities of the page's example and their losses with the second epsilon.
    """
    figure, ax = plt.subplots(figsize=(5.4, 2.8))
    p = torch.linspace(0.02, 0.9995, 800, dtype=torch.float64)
    others = ((1 - p) / (words - 1)).log()
    for colour, eps in zip(PALETTE, smoothing, strict=False):
        most, rest = 1 - eps + eps / words, eps * (words - 1) / words
        ax.plot(p, -most * p.log() - rest * others, color=colour, label=f"ε = {eps}")
    ax.plot(list(dots), list(dots.values()), "o", color=PALETTE[1], ms=6)
    ax.set(xlabel="probability of the right word", ylabel="loss", ylim=(0, 2.5), xlim=(0.2, 1.02))
    ax.legend(fontsize=10)
    return figure


# --------------------------------------------------------------------------- the schedule

# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme takes the background from what lies on the page.
_SHEET = (
    "<style>.rate{background:#fbfaf7!important;color:#22252b!important;padding:.4em .7em;"
    "margin:.3em 0;max-width:100%;width:min(30em,84vw);box-sizing:border-box;font-size:14px;"
    "line-height:1.5}.rate svg{display:block;width:100%}"
    ".rate :is(p,b){color:#22252b!important;margin:.2em 0}</style>"
)
_STEPS, _HIGH = 20_000, 3e-3


def schedule_rate(step: float, d_model: int, warmup_steps: int) -> float:
    """The learning rate of the paper's schedule at a step."""
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


def schedule_page(d_model: int, warmup_steps: int) -> str:
    """The schedule for a width and a warm-up, over the paper's own in grey, as HTML.

    The peak, and the learning rate at step 16,000, stand below.
    """
    grey, blue = (_polyline(*sizes) for sizes in (PAPER, (d_model, warmup_steps)))
    peak = schedule_rate(warmup_steps, d_model, warmup_steps)
    later = schedule_rate(16_000, d_model, warmup_steps)
    ticks = [
        f"<text x='{_across(step):.0f}' y='215' text-anchor='middle'>{step:,}</text>"
        for step in (0, 5000, 10_000, 15_000)
    ] + [
        f"<text x='48' y='{_up(rate) + 5:.0f}' text-anchor='end'>{rate:.3f}</text>"
        for rate in (0.0, 1e-3, 2e-3, 3e-3)
    ]
    label = f"learning rate against step for width {d_model} and {warmup_steps} steps of warm-up"
    return (
        f"{_SHEET}<div class=rate><svg viewBox='0 0 420 236' role='img' aria-label='{label}' "
        f"font-size='16' fill='{INK}'>"
        f"<path d='M54 10V196H412' fill='none' stroke='{INK}'/>{''.join(ticks)}"
        "<text x='233' y='232' text-anchor='middle'>step</text>"
        f"<polyline points='{grey}' fill='none' stroke='#a9a498' stroke-width='2'/>"
        f"<polyline points='{blue}' fill='none' stroke='{PALETTE[0]}' stroke-width='3'/>"
        f"<circle cx='{_across(warmup_steps):.1f}' cy='{_up(peak):.1f}' r='5' fill='{PALETTE[1]}'/>"
        f"</svg><p>peak at step {warmup_steps:,}: <b>{peak:.6f}</b>; "
        f"step 16,000: <b>{later:.6f}</b></p></div>"
    )


def _across(step: float) -> float:
    return 54 + 358 * step / _STEPS


def _up(rate: float) -> float:
    return 196 - 186 * rate / _HIGH


def _polyline(d_model: int, warmup_steps: int) -> str:
    """The corners of a schedule's line in the drawing."""
    after = range(warmup_steps, _STEPS + 1, 500)
    steps = [0.0, *map(float, after)]
    return " ".join(
        f"{_across(s):.1f},{_up(schedule_rate(max(s, 1), d_model, warmup_steps)):.1f}"
        for s in steps
    )


def decays(curves: Mapping[str, Sequence[float]], steps: Sequence[int]) -> Figure:
    """Learning rates against the step, both axes logarithmic; each line is named at its end."""
    figure, ax = plt.subplots(figsize=(5.6, 2.9))
    for colour, (name, rates) in zip(PALETTE, curves.items(), strict=False):
        ax.loglog(steps, rates, color=colour)
        ax.text(steps[-1] * 1.15, rates[-1], name, color=colour, va="center", fontsize=10.5)
    ax.set(xlabel="step", ylabel="learning rate", xlim=(steps[0], steps[-1] * 8))
    ax.set_xticks([10**n for n in range(1, 6)])
    return figure


# --------------------------------------------------------------------------- curves


def losses(
    curves: Mapping[str, Sequence[float]], *, steps: Sequence[int] | None = None,
    level: float | None = None, note: str = "", y_label: str = "loss per token",
    high: float | None = None, log_x: bool = False,
) -> Figure:  # fmt: skip
    """Loss against the step, with a dashed level that cannot be passed.

    Args:
        steps: the x of all curves; 1, 2, … without them.
        note: what the level is.
        high: top of the y axis.
    """
    figure, ax = plt.subplots(figsize=(5.8, 2.9))
    for colour, (name, values) in zip(PALETTE, curves.items(), strict=False):
        across = range(1, len(values) + 1) if steps is None else steps
        ax.plot(across, values, color=colour, lw=1.6, label=name)
    if level is not None:
        ax.axhline(level, ls="--", color=INK, lw=1, label=note)
    ax.set(xlabel="training step", ylabel=y_label)
    ax.set_ylim(0, high)
    if log_x:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.legend(fontsize=10)
    return figure


def averaged(singles: Sequence[Sequence[float]], means: Sequence[float]) -> Figure:
    """Shares that are right of single checkpoints (dots), and of their average (diamonds).

    Args:
        singles: for each seed those of its checkpoints. means: of their averages, one a seed.
    """
    figure, ax = plt.subplots(figsize=(5.4, 2.6))
    for seed, shares in enumerate(singles):
        ax.plot(
            [seed + 1] * len(shares), shares, "o", color=PALETTE[0], ms=5, alpha=0.7,
            label="" if seed else "single checkpoint",
        )  # fmt: skip
    ax.plot(
        range(1, len(means) + 1), means, "D", color=PALETTE[1], ms=7, label="average of the five"
    )
    ax.set(xlabel="seed", ylabel="sequences right", ylim=(None, 1.02))
    ax.set_xticks(range(1, len(means) + 1))
    ax.legend(fontsize=10)
    return figure


def one_hot(words: Sequence[str], choices: Sequence[str] = CHOICES) -> Tensor:
    """Targets of words: (words, choices), a single 1 in each row.

    Raises:
        ValueError: a word that is no choice.
    """
    if unknown := [word for word in words if word not in choices]:
        raise ValueError(f"no choice: {', '.join(unknown)}")
    goal = torch.zeros(len(words), len(choices))
    goal[range(len(words)), [list(choices).index(word) for word in words]] = 1.0
    return goal
