"""Pictures of the pages on training objectives: who sees whom, learning, reading and writing."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.bert.objective_experiments import LOOKS, OBJECTIVES, STARTS, best_lr
from toolkit.corpora.docstrings import MASK
from toolkit.plots import INK, PALETTE

Rows = Sequence[Mapping[str, str]]
Node = tuple[int, int]  # level and position
WORDS = ("the", "file", "is", "open")
GREY = "#b9b4a8"


# --------------------------------------------------------------------------- connections


def connections(model: str, tokens: int = len(WORDS)) -> list[tuple[Node, Node]]:
    """What is computed from what in two layers of "BERT" or "GPT", or in one layer of "ELMo".

    Nodes are (level, position); level 0 holds the tokens. ELMo has a chain from the left at level
    1 and one from the right at level 2, which are put side by side at level 3.
    """
    positions = range(tokens)
    if model != "ELMo":
        return [
            ((level, a), (level + 1, b))
            for level in (0, 1)
            for a, b in itertools.product(positions, positions)
            if model == "BERT" or a <= b
        ]
    edges = [((0, t), (level, t)) for t in positions for level in (1, 2)]
    edges += [((level, t), (3, t)) for t in positions for level in (1, 2)]
    edges += [((1, t - 1), (1, t)) for t in positions if t]
    return edges + [((2, t), (2, t - 1)) for t in positions if t]


def needed_for(edges: Sequence[tuple[Node, Node]], goal: Node) -> set[Node]:
    """All nodes that a node depends on, itself included."""
    found, new = {goal}, {goal}
    while new:
        new = {a for a, b in edges if b in new} - found
        found |= new
    return found


def who_sees_whom(marked: int = 2) -> Figure:
    """The connections of BERT, GPT and ELMo; what the top vector of one token depends on."""
    figure, axes = plt.subplots(1, 3, figsize=(5.4, 2.7))
    heights = {"BERT": (0, 1.5, 3), "GPT": (0, 1.5, 3), "ELMo": (0, 1, 2, 3)}
    for ax, (model, levels) in zip(axes, heights.items(), strict=True):
        edges = connections(model)
        goal = (len(levels) - 1, marked)
        used = needed_for(edges, goal)
        for (a, s), (b, t) in sorted(edges, key=lambda e: e[1] in used):
            bold = (b, t) in used and (a, s) in used
            bend = 0.28 if model == "ELMo" and abs(b - a) > 1 else 0.0
            ax.annotate(
                "", (t, levels[b]), (s, levels[a]),
                arrowprops={
                    "arrowstyle": "-|>", "color": PALETTE[1] if bold else GREY,
                    "lw": 1.3 if bold else 0.7, "shrinkA": 6, "shrinkB": 6, "mutation_scale": 8,
                    "connectionstyle": f"arc3,rad={bend if b == 2 else -bend}",
                },
            )  # fmt: skip
        for level, t in itertools.product(range(len(levels)), range(len(WORDS))):
            on = (level, t) in used
            ax.plot(t, levels[level], "o", ms=9, mec=PALETTE[1] if on else INK, zorder=3,
                    mfc="#f6d2b3" if on else "#eceae4", mew=1.4 if on else 0.8)  # fmt: skip
        for t, word in enumerate(WORDS):
            ax.text(t, -0.45, word, ha="center", va="top", fontsize=10.5)
        seen = sum(level == 0 for level, _ in used)
        ax.text(1.5, -1.3, f"sees {seen} of {len(WORDS)}", ha="center", va="top", fontsize=10.5,
                color=PALETTE[1])  # fmt: skip
        if model == "ELMo":
            for level, arrow in ((1, "→"), (2, "←")):
                ax.text(3.3, levels[level], arrow, va="center", fontsize=12)
        ax.set(xlim=(-0.5, 3.7), ylim=(-1.9, 3.3), title=model)
        ax.axis("off")
    return figure


# --------------------------------------------------------------------------- learning


def excess(rows: Rows, objective: str) -> tuple[list[int], list[int], Tensor]:
    """Of the long training: steps, targets so far, and the excess loss (seeds, steps)."""
    mine = [r for r in rows if r["objective"] == objective and r["part"] == "training"]
    steps = sorted({int(r["step"]) for r in mine})
    at = {step: [r for r in mine if int(r["step"]) == step] for step in steps}
    values = torch.tensor([[float(r["excess"]) for r in at[step]] for step in steps]).T
    return steps, [int(at[step][0]["targets"]) for step in steps], values


def _band(ax: Axes, x: Sequence[float], values: Tensor, label: str, color: str, line: str) -> None:
    """Mean of the seeds (the first dimension), and the range from the lowest to the highest."""
    ax.plot(x, values.mean(0), line, color=color, label=label, ms=3.5)
    ax.fill_between(x, values.amin(0), values.amax(0), color=color, alpha=0.18, lw=0)


def learning_curves(rows: Rows) -> Figure:
    """Excess loss of the three objectives by steps and by predicted tokens."""
    figure, axes = plt.subplots(1, 2, figsize=(5.2, 3.4), sharey=True)
    for objective, color, line in zip(OBJECTIVES, PALETTE, ("o-", "s-", "^:"), strict=False):
        steps, targets, values = excess(rows, objective)
        _band(axes[0], steps, values, objective, color, line)
        _band(axes[1], targets, values, objective, color, line)
    for ax, title in zip(axes, ("step", "predicted tokens"), strict=True):
        ax.set(xlabel=title, xscale="log", yscale="log")
        ax.minorticks_off()
    axes[0].set_xticks([50, 200, 800, LOOKS[-1]], ["50", "200", "800", f"{LOOKS[-1]:,}"])
    axes[1].set_xticks([1e4, 1e5], ["10,000", "100,000"])
    axes[0].set_yticks([0.01, 0.03, 0.1, 0.3, 1], ["0.01", "0.03", "0.1", "0.3", "1"])
    axes[0].set_ylabel("loss beyond the best possible")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=10)
    return figure


# --------------------------------------------------------------------------- reading


def accuracy(rows: Rows, start: str) -> tuple[float, list[int], Tensor]:
    """The learning rate that validation chose, the steps, and the shares right (seeds, steps)."""
    mine = [r for r in rows if r["start"] == start]
    steps = sorted({int(r["step"]) for r in mine})
    lr = best_lr([r for r in mine if int(r["step"]) == steps[-1]], "validation")
    best = [r for r in mine if float(r["lr"]) == lr]
    values = [[float(r["accuracy"]) for r in best if int(r["step"]) == step] for step in steps]
    return lr, steps, torch.tensor(values).T


def reading_curves(rows: Rows, best: float) -> Figure:
    """Accuracy of the classifiers by steps of fine-tuning.

    Args:
        best: the share that the best possible reader has right.
    """
    figure, ax = plt.subplots(figsize=(5.2, 4.2))
    names = (
        "both sides, masked LM", "left to right, LM", "left to right, LM, early",
        "both sides, new", "left to right, new",
    )  # fmt: skip
    looks = ((0, "o-"), (1, "s-"), (3, "^-"), (0, "o:"), (1, "s:"))
    for start, name, (color, line) in zip(STARTS, names, looks, strict=True):
        _, steps, values = accuracy(rows, start)
        _band(ax, steps, 100 * values, name, PALETTE[color], line)
    ax.axhline(50, color=INK, lw=0.9, ls=":")
    ax.text(200, 49.2, "guessing", fontsize=10, ha="right", va="top")
    ax.axhline(100 * best, color=INK, lw=0.9, ls="--")
    ax.text(10, 100 * best - 2.6, "best possible", fontsize=10)
    ax.set(xlabel="step of fine-tuning", xscale="log", ylabel="percent right")
    ax.set_xticks([10, 25, 50, 100, 200], ["10", "25", "50", "100", "200"])
    ax.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2, fontsize=10)
    return figure


# --------------------------------------------------------------------------- scoring and writing


def token_scores(sentences: Mapping[str, Sequence[tuple[str, float]]]) -> Figure:
    """The log-probability of each token given all others, a panel for each sentence."""
    figure, axes = plt.subplots(1, len(sentences), figsize=(5.2, 2.7), sharex=True)
    for ax, (title, scored), color in zip(axes, sentences.items(), PALETTE, strict=False):
        values = [value for _, value in scored]
        ax.barh(range(len(values)), values, color=color, height=0.62)
        for row, value in enumerate(values):
            ax.text(value - 0.15, row, f"{value:.2f}".replace("-", "−"), ha="right", va="center",
                    fontsize=10.5)  # fmt: skip
        ax.set_yticks(range(len(values)), [token for token, _ in scored], fontsize=11)
        ax.invert_yaxis()
        ax.yaxis.tick_right()
        ax.spines["left"].set_visible(False)
        ax.spines["right"].set_visible(True)
        ax.set(title=title, xlabel="log-probability", xlim=(min(values) - 3.2, 0))
    low = min(value for scored in sentences.values() for _, value in scored)
    axes[0].set_xlim(low - 3.2, 0)
    axes[0].locator_params(axis="x", nbins=4, integer=True)
    return figure


WAYS = (
    ("real texts", "the language", "real"),
    ("left to right", "left to right", "from the left"),
    ("left to right, early", "left to right, early", "from the left"),
    ("masked, all at once", "masked", "all at once"),
    ("masked, from the left", "masked", "from the left"),
    ("masked, 1 sweep", "masked", "filling, 1"),
    ("masked, 5 sweeps", "masked", "filling, 5"),
    ("masked, 20 sweeps", "masked", "filling, 20"),
    ("best possible, all at once", "best masked", "all at once"),
    ("best possible, 1 sweep", "best masked", "filling, 1"),
    ("any days", "any days", "at random"),
)


def judged(rows: Rows, writer: str, way: str) -> tuple[float, float]:
    """Nats per token, mean and standard deviation of the seeds."""
    found = [float(r["nats"]) for r in rows if (r["writer"], r["way"]) == (writer, way)]
    return mean(found), stdev(found)


def writing_bars(rows: Rows) -> Figure:
    """How surprising the language finds what was written, in nats per token."""
    figure, ax = plt.subplots(figsize=(5.2, 4.1))
    kinds = {"the language": INK, "any days": GREY, "masked": PALETTE[0], "best masked": PALETTE[2]}
    for row, (_, writer, way) in enumerate(WAYS):
        middle, spread = judged(rows, writer, way)
        ax.barh(row, middle, xerr=spread, color=kinds.get(writer, PALETTE[1]), height=0.66)
        ax.text(middle + spread + 0.03, row, f"{middle:.2f}", va="center", fontsize=10.5)
    ax.set_yticks(range(len(WAYS)), [name for name, _, _ in WAYS], fontsize=10.5)
    ax.invert_yaxis()
    ax.axvline(judged(rows, "the language", "real")[0], color=INK, lw=0.9, ls=":")
    ax.set(xlabel="nats per token, by the language itself", xlim=(0, 2.6))
    return figure


def strip(tokens: Sequence[str], marked: Sequence[bool], masked: Sequence[bool]) -> str:
    """Tokens in a line that wraps: grey where [MASK] stands, orange where marked."""
    cells = []
    for token, new, empty in zip(tokens, marked, masked, strict=True):
        color = "#e3e0d8" if empty else "#f6d2b3" if new else "#cfe0f2"
        cells.append(
            f'<span style="background:{color};color:#22252b;padding:.15em .4em;margin:.12em;'
            f'display:inline-block;border-radius:3px">{html.escape(token)}</span>'
        )
    return f'<div style="max-width:100%">{"".join(cells)}</div>'


def filling_frame(
    history: Sequence[Tensor], name: Callable[[Sequence[int]], list[str]], texts: int, draws: int
) -> str:
    """The first texts of repeated filling after so many draws; what is new since the last sweep.

    Args:
        history: ids (B, T) after each draw, as of `objectives.sample_filling`.
        name: ids to tokens.
    """
    length = history[0].shape[1]
    empty = torch.full_like(history[0], MASK)
    now = history[draws - 1] if draws else empty
    before = history[draws - 1 - length] if draws > length else empty
    return "".join(
        strip(name(a.tolist()), (a != b).tolist(), (a == MASK).tolist())
        for a, b in zip(now[:texts], before[:texts], strict=True)
    )
