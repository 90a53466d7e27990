"""Causal attention by hand, with three tokens of code, and in the shipped GPT.

«return len (»: queries and keys are chosen so that without a mask each position would look at the
token after it, which is its own target.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import plots, widgets
from toolkit.corpora.code_corpus import END, START
from toolkit.diagrams import SOFT
from toolkit.gpt.measures import attention_scores
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE, SHEET
from toolkit.positional_encoding.example_pictures import table

TOKENS = ("return", "len", "(")
HOLDS = ("expression", "container")  # what a value says should follow
# Entries: keyword, function, bracket, variable
QUERIES = torch.tensor([[2.0, 4, 0, 0], [0, 2, 4, 0], [0, 6, 2, 0]])  # (3, 4)
KEYS = torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])  # (3, 4)
VALUES = torch.tensor([[2.0, 0], [0, 4], [2, 2]])  # (3, 2)


def by_hand(causal: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (3, 3), -inf where hidden, weights (3, 3) and output (3, 2) of the example."""
    scores = QUERIES @ KEYS.T / math.sqrt(KEYS.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1)
    return scores, weights, weights @ VALUES


@torch.no_grad()
def set_example(attention: nn.Module, values: Tensor = VALUES) -> nn.Module:
    """Give a module of one head and width 4 the example's projections; out_proj does nothing.

    Its input is then `torch.eye(4)[None, :3]`: token t has a 1 in feature t and 0 elsewhere.

    Args:
        attention: with linear layers `qkv` (4 to 12) and `out_proj` (4 to 4).
        values: (3, up to 4), the value of each token.
    """
    rows = torch.zeros(4, 12)  # feature t: query, key and value of token t
    rows[:3, :4], rows[:3, 4:8] = QUERIES, KEYS
    rows[:3, 8 : 8 + values.shape[1]] = values
    attention.qkv.weight.copy_(rows.T)
    attention.out_proj.weight.copy_(torch.eye(4))
    attention.qkv.bias.zero_()
    attention.out_proj.bias.zero_()
    return attention.eval()


@torch.no_grad()
def weights_of(kind: Callable[[int, int], nn.Module]) -> Tensor:
    """The attention weights (3, 3) of the example in a class of attention: its values are 1, 0, 0
    and so on, so that its output is its weights."""
    return set_example(kind(4, 1), torch.eye(3))(torch.eye(4)[None, :3])[0, :, :3]


# --------------------------------------------------------------------------- the shipped model


def token_gradients(model: nn.Module, ids: Tensor) -> Tensor:
    """How the logits at each position react to each token's embedding.

    Args:
        model: with an embedding `token`. ids: (1, T).

    Returns:
        (T, T): entry i, j is the length of the gradient of the log-probability of the best next
        token at position i by the embedding of token j.
    """
    taken: list[Tensor] = []

    def take(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        taken.append(output.detach().requires_grad_())  # (1, T, D)
        return taken[-1]

    handle = model.token.register_forward_hook(take)
    try:
        best = model(ids)[0].log_softmax(-1).amax(-1)  # (T,)
    finally:
        handle.remove()
    rows = [torch.autograd.grad(one, taken[0], retain_graph=True)[0][0] for one in best]
    return torch.stack(rows).norm(dim=-1)  # (T, T)


@torch.no_grad()
def scores_of(model: nn.Module, ids: Tensor, layer: int, head: int) -> Tensor:
    """The scores (T, T) of one head that reads ids (1, T), before the mask."""
    return attention_scores(model, ids)[layer, 0, head]


def with_classes(shipped: Shipped, kind: Callable[..., nn.Module]) -> nn.Module:
    """The shipped weights in another class of GPT."""
    model = kind(**shipped.config)
    model.load_state_dict(shipped.model.state_dict())
    return model.eval()


@torch.no_grad()
def loss(shipped: Shipped, model: nn.Module, functions: int = 60) -> float:
    """Nats per token of a model on held-out functions, from the first token to END."""
    total, count = 0.0, 0
    for text in shipped.held_out()[:functions]:
        ids = torch.tensor([[START, *shipped.tokenizer.encode(text), END]])[:, : model.max_length]
        logits = model(ids[:, :-1])[0]  # (T - 1, V)
        total += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return total / count


def train_briefly(
    kind: Callable[..., nn.Module], stream: Tensor, steps: int = 250, *, lr: float = 4e-3,
    length: int = 24, batch: int = 8, d_model: int = 32,
) -> tuple[nn.Module, list[float]]:  # fmt: skip
    """Train a small GPT on a stream of tokens (M,): the model in eval mode, and its losses."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = kind(int(stream.max()) + 1, 64, d_model, 2, 2, dropout=0.0)
    draw, losses = torch.Generator().manual_seed(1), []
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        starts = torch.randint(len(stream) - length, (batch,), generator=draw)
        rows = torch.stack([stream[a : a + length + 1] for a in starts.tolist()])
        value = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        losses.append(value.item())
    return model.eval(), losses


@torch.no_grad()
def loss_when_writing(
    model: nn.Module, stream: Tensor, length: int = 24, count: int = 300
) -> float:
    """Nats for the token after each of `count` pieces of a stream, with nothing behind them."""
    starts = torch.linspace(0, len(stream) - length - 1, count).long()
    rows = torch.stack([stream[a : a + length + 1] for a in starts.tolist()])  # (count, T + 1)
    return float(F.cross_entropy(model(rows[:, :-1])[:, -1], rows[:, -1]))


# --------------------------------------------------------------------------- HTML


def hand_page(causal: bool) -> str:
    """Scores, weights and output of the example as tables."""
    scores, weights, output = by_hand(causal)
    shown = table(scores.masked_fill(scores.isinf(), 0.0), TOKENS, TOKENS, "scores", ".0f")
    if causal:  # the upper entries are hidden, not 0
        rows = shown.split("<tr>")
        for i in range(3):
            cells = rows[i + 2].split("</td>")
            for j in range(i + 1, 3):
                cells[j] = cells[j].rpartition(">")[0] + ">−∞"
            rows[i + 2] = "</td>".join(cells)
        shown = "<tr>".join(rows)
    return widgets.side_by_side(
        shown,
        widgets.heat_table(weights, TOKENS, TOKENS, "weights: rows sum to 1", 3).replace(
            "class=heat", "class=heat style='font-size:13px'"
        ),
        table(output, TOKENS, HOLDS, "output"),
    )


def gradient_page(gradients: Tensor, tokens: Sequence[str]) -> str:
    """`token_gradients` as a table, in percent of the largest entry of each row."""
    shares = gradients / gradients.amax(-1, keepdim=True)
    caption = "gradients, in % of the largest in each row"
    shown = widgets.heat_table(shares, tokens, tokens, caption)
    # Whole percents, so that nine columns fit the width of a phone
    shown = re.sub(r">(\d\.\d\d)</td>", lambda m: f">{100 * float(m[1]):.0f}</td>", shown)
    return widgets.side_by_side(shown)


def reach_page(length: int, window: int, layers: int) -> str:
    """What a position can know of through layers of windows, as a table of a triangle."""
    positions = torch.arange(length)
    back = positions[:, None] - positions
    seen = (back >= 0) & (back < window)
    reached = torch.linalg.matrix_power(seen.double(), layers) > 0
    furthest = int(reached[-1].nonzero()[0])
    names = [str(i) for i in range(length)]
    caption = f"the last position reaches back to {furthest}"
    shades = 0.75 * reached.double() * (seen.double() + 1) / 2
    shown = widgets.heat_table(shades, names, names, caption, 0)
    for shade in ("0", "1"):
        shown = shown.replace(f">{shade}</td>", "></td>")
    return widgets.side_by_side(shown)


# --------------------------------------------------------------------------- figures


def masks(whole: Tensor, later: Tensor) -> Figure:
    """A causal mask, and that of the last positions of the same text, side by side."""
    figure, axes = plt.subplots(
        1, 2, figsize=(4.9, 2.5), width_ratios=(whole.shape[1], later.shape[1])
    )
    past = later.shape[1] - later.shape[0]
    for ax, mask, title in (
        (axes[0], whole, f"causal_mask({len(whole)})"),
        (axes[1], later, f"causal_mask({len(later)}, past={past})"),
    ):
        plots.mask_map(ax, mask, title=title)
        ax.set_yticks(range(len(mask)), [str(mask.shape[1] - len(mask) + i)
                                         for i in range(len(mask))])  # fmt: skip
    axes[1].set_ylabel("")
    return figure


def chunks_and_window(context: int = 4, chunks: int = 2) -> Figure:
    """What each position of a text sees, cut into chunks or through a window that slides.

    Args:
        context: k, the length of a chunk and of the window.
        chunks: how many are drawn.
    """
    total = context * chunks
    figure, axes = plt.subplots(1, 2, figsize=(4.9, 3.0), sharey=True)
    for ax, title in zip(axes, ("fixed-length chunks", "sliding window"), strict=True):
        ax.text(total + 0.9, -0.55, "before", ha="center", fontsize=10, color=SOFT)
        for row in range(total):
            before = 0
            for column in range(row + 1):
                near = row - column < context
                seen = near if title[0] == "s" else row // context == column // context
                before += seen and column < row
                if seen:
                    ax.add_patch(
                        Rectangle((column, row), 1, 1, facecolor=PALETTE[0], edgecolor=SHEET,
                                  alpha=1.0 if column == row else 0.5, linewidth=1.5)
                    )  # fmt: skip
            ax.text(total + 0.9, row + 0.5, str(before), ha="center", va="center", fontsize=10.5,
                    color=INK, gid=f"{title[0]}:{row}")  # fmt: skip
        ax.set(xlim=(0, total + 2), ylim=(total, -1), title=title, aspect="equal")
        ax.set_xticks([i + 0.5 for i in range(total)], [str(i) for i in range(total)])
        ax.set_yticks([i + 0.5 for i in range(total)], [str(i) for i in range(total)])
        ax.tick_params(length=0, labelsize=10.5)
        ax.set_xlabel("key position")
        for spine in ax.spines.values():
            spine.set_visible(False)
    axes[0].set_ylabel("query position")
    return figure


def maps(found: Mapping[str, Tensor]) -> Figure:
    """Attention weights of the three tokens from several modules, two beside each other."""
    down = -(-len(found) // 2)
    figure, axes = plt.subplots(down, 2, figsize=(4.6, 2.35 * down), squeeze=False)
    for ax, (title, weights) in zip(axes.flat, found.items(), strict=False):
        plots.attention_map(
            ax, weights, TOKENS, TOKENS, title=title, numbers=".2f", limits=(0, 1.5),
            row_label="", column_label="",
        )  # fmt: skip
        ax.tick_params(labelsize=10.5)
        for label in ax.get_xticklabels():
            label.set(rotation=0, horizontalalignment="center")
        for text in ax.texts:
            text.set_fontsize(10.5)
    return figure


def losses(found: Mapping[str, Sequence[float]], window: int = 10) -> Figure:
    """Losses of short trainings, each the mean of `window` steps."""
    figure, ax = plt.subplots(figsize=(4.9, 2.6))
    for index, (name, values) in enumerate(found.items()):
        means = torch.tensor(values).unflatten(0, (-1, window)).mean(1)
        ax.plot([window * (i + 0.5) for i in range(len(means))], means, color=PALETTE[index],
                label=name)  # fmt: skip
    ax.set(xlabel="step", ylabel="loss, nats per token", ylim=(0, None))
    ax.legend(fontsize=10.5)
    return figure
