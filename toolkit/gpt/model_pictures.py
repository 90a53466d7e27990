"""The page on the whole GPT: a model that fits on paper, what moves its logits, its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots
from toolkit.diagrams import millions

# The model on paper: V = 4, C = 3, D = 4
WORDS = ("self", ".", "name", "=")
TOKENS = ((2, 0, 1, 0), (0, 2, 0, 1), (0, 0, 2, 1), (1, 1, 0, 0))  # W_e
POSITIONS = ((0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 0))  # W_p
ADDED = (0, -1, 2, 1)  # what the block adds at every position
PARTS = ("embeddings", "attention", "feed-forward", "biases and norms")
COLOURS = dict(zip(PARTS, plots.PALETTE, strict=False))


@torch.no_grad()
def on_paper(gpt: Callable[..., nn.Module]) -> nn.Module:
    """The model on paper: one block, which adds the same vector whatever it reads.

    Args:
        gpt: the chapter's class GPT.
    """
    model = gpt(len(WORDS), len(POSITIONS), 4, 1, 1, dropout=0.0).eval()
    block: Any = model.blocks[0]
    for linear in (block.attention.out_proj, block.feed_forward.w_2):
        linear.weight.zero_()
        linear.bias.zero_()
    block.feed_forward.w_2.bias.copy_(torch.tensor(ADDED))
    model.token.weight.copy_(torch.tensor(TOKENS))
    model.position.weight.copy_(torch.tensor(POSITIONS))
    return model


# --------------------------------------------------------------------------- causal as a whole


@torch.no_grad()
def influence(model: nn.Module, ids: Tensor, other: int) -> Tensor:
    """How far each prediction moves when one token is exchanged for `other`.

    Args:
        model: ids (B, T) -> logits (B, T, V).
        ids: (1, T).

    Returns:
        (T, T): at i, j half the summed difference of the probabilities after position i, if the
        token at j is exchanged; 0 is no change, 1 nothing in common.
    """
    rows = ids.repeat(ids.shape[1], 1)  # (T, T), a row for each token
    before = model(rows).softmax(-1)  # (T, T, V), computed in the same order as `after`
    after = model(rows.fill_diagonal_(other)).softmax(-1)
    return (after - before).abs().sum(-1).T / 2


def influence_map(found: Tensor, names: Sequence[str]) -> Figure:
    """`influence` in percent; what is exactly 0 is left white and without a number."""
    figure, ax = plt.subplots(figsize=(5.0, 4.2))
    plots.attention_map(
        ax, 100 * found, names, names, limits=(0, 130), row_label="prediction after",
        column_label="exchanged token",
    )  # fmt: skip
    for i, row in enumerate(found.tolist()):
        for j, share in enumerate(row):
            if share > 0:
                colour = "white" if share > 0.65 else plots.INK
                ax.text(j, i, f"{100 * share:.0f}", ha="center", va="center", fontsize=11,
                        color=colour)  # fmt: skip
    ax.tick_params(labelsize=11)
    ax.xaxis.label.set_size(11)
    ax.yaxis.label.set_size(11)
    return figure


# --------------------------------------------------------------------------- before training


@torch.no_grad()
def added(model: Any, ids: Tensor) -> float:
    """Size (root mean square) of what all blocks add, as a multiple of the embeddings' own.

    Args:
        model: a pre-norm GPT without dropout.
        ids: (B, T).
    """
    start = model.token(ids) + model.position.weight[: ids.shape[1]]  # (B, T, D)
    x = start
    for block in model.blocks:
        x = block(x)
    return math.sqrt((x - start).square().mean() / start.square().mean())


def growth(
    make: Callable[[int], nn.Module], depths: Sequence[int], seeds: int = 5
) -> list[list[float]]:
    """`added` of freshly initialised models.

    Args:
        make: number of blocks -> model, drawn anew.

    Returns:
        For each depth a number for each seed.
    """
    found = []
    for depth in depths:
        row = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = make(depth)
            ids = torch.randint(model.token.num_embeddings, (2, 16))  # type: ignore[union-attr,arg-type,operator]
            row.append(added(model.eval(), ids))
        found.append(row)
    return found


def growth_curves(depths: Sequence[int], found: Mapping[str, list[list[float]]]) -> Figure:
    """The mean of `growth` over seeds with the range of the seeds, both axes logarithmic."""
    figure, ax = plt.subplots(figsize=(5.2, 3.2))
    for (name, rows), colour in zip(found.items(), plots.PALETTE, strict=False):
        means = [sum(row) / len(row) for row in rows]
        ax.fill_between(depths, [min(r) for r in rows], [max(r) for r in rows], color=colour,
                        alpha=0.25, linewidth=0)  # fmt: skip
        ax.plot(depths, means, "o-", color=colour, label=name)
    ax.set(xlabel="blocks N", ylabel="size of what is added", xscale="log", yscale="log")
    ax.set_xticks(depths, [str(n) for n in depths])
    ticks = [0.5, 1, 2, 5, 10]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax.set_ylim(min(map(min, (r for rows in found.values() for r in rows))) / 1.3)
    ax.minorticks_off()
    ax.legend(fontsize=11)
    ax.tick_params(labelsize=11)
    ax.xaxis.label.set_size(11)
    ax.yaxis.label.set_size(11)
    return figure


# --------------------------------------------------------------------------- parameters


def by_part(
    vocab_size: int, max_length: int, d_model: int, num_layers: int, norm_first: bool = True
) -> dict[str, int]:
    """Parameters of a GPT by part; the output matrix is the token embedding, and counts once."""
    square = d_model**2
    return {
        "embeddings": (vocab_size + max_length) * d_model,
        "attention": num_layers * 4 * square,
        "feed-forward": num_layers * 8 * square,
        "biases and norms": num_layers * 13 * d_model + norm_first * 2 * d_model,
    }


def shares(models: Mapping[str, Sequence[Any]]) -> Figure:
    """A bar for each model, divided by part; biases and norms, below 1 %, are left out.

    Args:
        models: name -> arguments of `by_part`.
    """
    figure, ax = plt.subplots(figsize=(4.9, 3.1))
    for row, sizes in enumerate(models.values()):
        parts = by_part(*sizes)
        total, left = sum(parts.values()), 0.0
        for part in PARTS[:3]:
            share = 100 * parts[part] / total
            ax.barh(-row, share, left=left, color=COLOURS[part], height=0.72,
                    edgecolor=plots.SHEET, label=part if row == 0 else None)  # fmt: skip
            if share > 4:
                ax.text(left + share / 2, -row, f"{share:.0f}", ha="center", va="center",
                        color="white", fontsize=11)  # fmt: skip
            left += share
        size = millions(total) if total < 1e9 else f"{total / 1e9:.3g} B"
        ax.text(101.5, -row, size, va="center", fontsize=11)
    ax.set_yticks([-row for row in range(len(models))], list(models), fontsize=11)
    ax.set_xlim(0, 101)
    ax.set_xticks([0, 50, 100], ["0", "50", "100 %"], fontsize=11)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.45, 1.0), fontsize=11,
              columnspacing=1.0, handlelength=1.0)  # fmt: skip
    return figure
