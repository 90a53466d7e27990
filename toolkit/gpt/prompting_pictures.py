"""Pictures of the page on prompting: scores of answers, and the stored experiment."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots
from toolkit.corpora.code_corpus import END, START
from toolkit.gpt import prompting_experiments as experiments
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE

# Probabilities of the next token by the token before: after 5 come 6, 7 or 8, after 7 mostly 8.
NEXT = {5: {6: 0.30, 7: 0.25, 8: 0.45}, 7: {6: 0.10, 8: 0.90}}
Results = Mapping[tuple[int, str, int], Tensor]


def table() -> Tensor:
    """`NEXT` as logits of a `TableModel` (9, 9); everything else is as good as impossible."""
    logits = torch.full((9, 9), 1e-9).log()
    for before, after in NEXT.items():
        for token, share in after.items():
            logits[before, token] = torch.tensor(share).log()
    logits[6, 6] = logits[8, 6] = 0.0
    return logits


def tree() -> Figure:
    """The answers [6] and [7, 8] after the prompt [5], with the probability of each step."""
    figure, ax = plt.subplots(figsize=(4.9, 1.6))
    at = {"5": (0, 1), "6": (1, 1.8), "7": (1, 1), "8": (1, 0.2), "7 8": (2, 1)}
    steps = (("5", "6", 0.30), ("5", "7", 0.25), ("5", "8", 0.45), ("7", "7 8", 0.90))
    for begin, end, share in steps:
        (x, y), (u, v) = at[begin], at[end]
        colour = {"6": PALETTE[0], "8": "#a9a498"}.get(end, PALETTE[1])
        ax.plot([x, u], [y, v], color=colour, lw=1 + 5 * share, zorder=1)
        ax.text(
            0.36 * x + 0.64 * u, 0.36 * y + 0.64 * v + 0.13, f"{share:.2f}", ha="center",
            va="bottom",
        )  # fmt: skip
    for name, (x, y) in at.items():
        ax.text(
            x, y, name[-1], ha="center", va="center", zorder=2, fontsize=12,
            bbox={"boxstyle": "circle,pad=0.35", "fc": plots.SHEET, "ec": INK},
        )  # fmt: skip
    ax.text(1.17, 1.8, "answer [6]: 0.30", va="center", color=PALETTE[0])
    ax.text(2.17, 1, "answer [7, 8]:\n0.25 · 0.90 = 0.225", va="center", color=PALETTE[1])
    ax.text(0, 0.35, "prompt", ha="center", va="center")
    ax.set(xlim=(-0.25, 3.55), ylim=(-0.1, 2.15))
    ax.axis("off")
    return figure


# --------------------------------------------------------------------------- the shipped model


def copied(
    shipped: Shipped, scores: Callable[..., Tensor], template: str, names: Sequence[str]
) -> Tensor:
    """How probable each name is after a prompt that holds one of them: (names, names).

    Args:
        scores: `answer_scores`.
        template: a prompt with {} for the name.
    """
    encode = shipped.tokenizer.encode
    answers = [encode(f" {name}") for name in names]
    rows = [
        scores(shipped.model, [START, *encode(template.format(name))], answers, per_token=False)
        for name in names
    ]
    return torch.stack(rows).exp()


def copied_map(shares: Tensor, names: Sequence[str]) -> Figure:
    """`copied` as a map: names in the prompt down, names that go on across."""
    figure, ax = plt.subplots(figsize=(4.9, 2.1))
    plots.attention_map(
        ax, shares, names, names, numbers=".2f", row_label="in the header",
        column_label="goes on with",
    ).set_aspect("auto")  # fmt: skip
    ax.tick_params(axis="x", labelrotation=0)
    for label in ax.get_xticklabels():
        label.set_horizontalalignment("center")
    return figure


def ranking(
    shipped: Shipped, scores: Callable[..., Tensor], count: int = 200, seed: int = 5
) -> dict[str, float]:
    """How often the own body of a held-out function beats three others, by kind of score.

    Args:
        scores: `answer_scores`.

    Returns:
        Share right by "sum", "mean" and "gain" over an empty prompt, and "shortest": if always the
        shortest body is taken.
    """
    model: nn.Module = shipped.model
    encode, draw, pairs = shipped.tokenizer.encode, random.Random(seed), []
    for text in shipped.held_out():
        header, newline, body = text.partition("\n")
        prompt, answer = [START, *encode(header)], [*encode(newline + body), END]
        if header.endswith(":") and body and len(prompt) + len(answer) <= 100:
            pairs.append((prompt, answer))
    right = dict.fromkeys(("sum", "mean", "gain", "shortest"), 0)
    for prompt, own in draw.sample(pairs, count):
        room = shipped.config["max_length"] - len(prompt)
        others = [body for _, body in pairs if body != own and len(body) <= room]
        bodies = [own, *draw.sample(others, 3)]
        sums = scores(model, prompt, bodies, per_token=False)  # (4,)
        alone = scores(model, [START], bodies, per_token=False)
        sizes = torch.tensor([len(body) for body in bodies])
        for name, found in (
            ("sum", sums), ("mean", sums / sizes), ("gain", sums - alone), ("shortest", -sizes),
        ):  # fmt: skip
            right[name] += int(found.argmax() == 0)
    return {name: number / count for name, number in right.items()}


# --------------------------------------------------------------------------- the experiment


def by_examples(results: Results, count: int = experiments.COUNTS[-1]) -> Figure:
    """Share right by number of examples: a dot a seed, and what an ideal reader would have."""
    figure, ax = plt.subplots(figsize=(5.4, 2.3))
    across = torch.arange(len(experiments.EXAMPLES))
    ideal = [100 * experiments.ideal(n) for n in experiments.EXAMPLES]
    ax.plot(across, ideal, color=INK, lw=1.2, ls="--", label="reads all, else guesses")
    for number, (name, label) in enumerate(
        (("new", "mappings never seen"), ("renamed", "training mappings, renamed"),
         ("shuffled", "random labels")),
    ):  # fmt: skip
        colour = PALETTE[number]
        for x, n in enumerate(experiments.EXAMPLES):
            share = 100 * results[count, name, n]
            ax.plot(torch.full_like(share, x + 0.12 * (number - 1)), share, "o", color=colour,
                    ms=4.5, alpha=0.6, mew=0, label=label if x == 0 else None)  # fmt: skip
    _chance(ax)
    ax.set_xticks(across, [str(n) for n in experiments.EXAMPLES])
    ax.set(xlabel="examples in the prompt", ylabel="right (%)", ylim=(0, 102))
    ax.legend(fontsize=10, loc="upper left")
    return figure


def by_mappings(results: Results, examples: int = 4) -> Figure:
    """What is read off the prompt and what is recalled, by the number of training mappings."""
    figure, ax = plt.subplots(figsize=(5.4, 2.3))
    counts = experiments.COUNTS
    across = torch.arange(len(counts))
    for colour, name, label in (
        (PALETTE[0], "new, shown", "new mapping, letter in the prompt"),
        (PALETTE[1], "seen, not shown", "training mapping, letter not in it"),
    ):
        shares = torch.stack([100 * results[count, name, examples] for count in counts])
        ax.plot(across, shares.mean(1), color=colour, label=label)
        ax.plot(across, shares, "o", color=colour, ms=4.5, alpha=0.55, mew=0)
    _chance(ax)
    ax.set_xticks(across, [f"{count:,}" for count in counts])
    ax.set(xlabel="different mappings in training", ylabel="right (%)", ylim=(0, 104))
    figure.legend(fontsize=10.5, loc="outside upper left")
    return figure


def _chance(ax: Axes) -> None:
    share = 100 / experiments.DIGITS
    ax.axhline(share, color=INK, lw=1, ls=":")
    ax.text(0.62, share - 1.5, "chance", ha="center", va="top", fontsize=10,
            transform=ax.get_yaxis_transform())  # fmt: skip


def maps(weights: Tensor, parts: Sequence[tuple[int, int, Sequence[int]]]) -> Figure:
    """Attention of some queries of the stored prompt to all its tokens.

    Args:
        weights: as of `read_maps`.
        parts: layer and head, and the positions of the queries, all from 0.
    """
    names = experiments.names()
    sizes = [len(queries) for _, _, queries in parts]
    figure, axes = plt.subplots(
        len(parts), 1, figsize=(4.8, 0.4 * sum(sizes) + 0.75 * len(parts)), height_ratios=sizes
    )
    for ax, (layer, head, queries) in zip(axes, parts, strict=True):
        plots.attention_map(
            ax, weights[layer, head, list(queries)], [names[q] for q in queries], names,
            title=f"layer {layer}, head {head}", numbers=".2f", row_label="", column_label="",
        )  # fmt: skip
        ax.tick_params(axis="x", labelrotation=0)
        for label in ax.get_xticklabels():
            label.set_horizontalalignment("center")
    return figure
