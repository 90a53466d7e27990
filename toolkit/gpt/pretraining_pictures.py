"""Pictures of the page on training a GPT: losses, what it wrote, its surprise, its context.

The text is that which lies beside the shipped model, so that the page needs no other.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.code_corpus import END, START
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE

MARKS = (50, 500, 5000)  # steps after which the shipped model answered: 1, 10 and 100 %
Curves = Sequence[Mapping[str, str]]

# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme takes the background from every table.
_SHEET = (
    "<style>.code-sheet{background:#fbfaf7!important;color:#22252b!important;padding:.5em .8em;"
    "margin:.3em 0;max-width:100%;width:min(36em,84vw);box-sizing:border-box;font-size:14px;"
    "line-height:1.6;overflow-wrap:anywhere}.code-sheet :is(pre,p,li,span,code){margin:0;"
    "color:#22252b!important;background:none;border:0}"
    ".code-sheet pre{white-space:pre-wrap;padding:0;"
    "font-size:13px;line-height:1.5}.code-sheet pre span{padding:1px 0;border-radius:3px;"
    "background:var(--c,none)!important}.code-sheet ol{margin:.3em 0 0;padding-left:1.6em}</style>"
)

# --------------------------------------------------------------------------- text


def held_out_stream(shipped: Shipped) -> Tensor:
    """The functions beside the shipped model, each from START to END, in one row: (M,)."""
    encode = shipped.tokenizer.encode
    return torch.tensor([i for t in shipped.held_out() for i in (START, *encode(t), END)])


def sizes(shipped: Shipped) -> tuple[int, int]:
    """Tokens that are predicted in the held-out functions, and their bytes, one for each end."""
    texts = shipped.held_out()
    tokens = sum(len(shipped.tokenizer.encode(text)) + 1 for text in texts)
    return tokens, sum(len(text.encode()) + 1 for text in texts)


def frequency_loss(shipped: Shipped) -> float:
    """Nats per token of held-out text, knowing how frequent each token is in it, and no more."""
    stream = held_out_stream(shipped)
    share = torch.bincount(stream[stream != START]).double()
    share = share / share.sum()
    return -torch.special.xlogy(share, share).sum().item()


@torch.no_grad()
def probabilities(shipped: Shipped, text: str) -> tuple[list[str], Tensor]:
    """The tokens of a function and of its end, and what the model gave each before it came (T,)."""
    row = torch.tensor([[START, *shipped.tokenizer.encode(text), END]])
    shares = shipped.model(row[:, :-1])[0].softmax(-1)  # (T, V)
    given = shares.gather(-1, row[0, 1:, None])[:, 0]
    return shipped.tokenizer.names(row[0, 1:].tolist()), given


# --------------------------------------------------------------------------- the course of training


def course(curves: Curves, begin: float, frequency: float) -> Figure:
    """The training loss of the shipped model, and bits per byte of three sizes on held-out text.

    Args:
        curves: rows of `training.csv`.
        begin: loss of equal probabilities. frequency: of knowing the frequencies, both in nats.
    """
    figure, axes = plt.subplots(2, 1, figsize=(5.8, 4.5))
    rows = [r for r in curves if r["model"] == "gpt" and r["loss"]]
    axes[0].plot([int(r["step"]) for r in rows], [float(r["loss"]) for r in rows], lw=1.4)
    for value, name in ((begin, "equal probabilities"), (frequency, "frequency alone")):
        axes[0].axhline(value, color=INK, lw=1, ls=":")
        axes[0].text(4500, value + 0.35, f"{name}: {value:.2f}", ha="right", fontsize=10)
    for mark in MARKS:
        axes[0].axvline(mark, color="#a9a498", lw=1)
    axes[0].set(title="training loss of the shipped model, nats per token", xscale="log",
                ylim=(1, 8.4), xlabel="step")  # fmt: skip
    axes[0].set_xticks([50, 100, 500, 1000, 5000], ["50\n1 %", "100", "500\n10 %", "1,000",
                                                    "5,000\n100 %"])  # fmt: skip
    axes[0].minorticks_off()
    for (name, points), colour in zip(held_out_curves(curves).items(), PALETTE, strict=False):
        axes[1].plot(*zip(*points, strict=True), "o-", ms=3, color=colour)
        axes[1].text(5120, points[-1][1], f"{name}: {points[-1][1]:.2f}", va="center",
                     color=colour, fontsize=10)  # fmt: skip
    axes[1].set(title="three sizes, bits per byte of validation modules", xlabel="step",
                xlim=(0, 6900), ylim=(0.9, 1.9))  # fmt: skip
    axes[1].set_xticks(range(0, 5001, 1000), [f"{n:,}" for n in range(0, 5001, 1000)])
    return figure


def held_out_curves(curves: Curves) -> dict[str, list[tuple[int, float]]]:
    """Step and bits per byte of held-out modules, by model."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in curves:
        if row["held_out_bits_per_byte"]:
            point = int(row["step"]), float(row["held_out_bits_per_byte"])
            found.setdefault(row["model"], []).append(point)
    return found


def answer_sheet(prompt: str, answer: str) -> str:
    """A beginning and how the model went on, which is shaded."""
    return (
        f"{_SHEET}<div class=code-sheet><pre>{html.escape(prompt)}"
        f"<span style='--c:#cfe0f2'>{html.escape(answer)}</span></pre></div>"
    )


# --------------------------------------------------------------------------- bits


def compared_bits(bits: Mapping[str, float]) -> Figure:
    """Bits per byte as bars; the last one is the model's."""
    figure, ax = plt.subplots(figsize=(5.8, 0.5 + 0.42 * len(bits)))
    for y, value in enumerate(bits.values()):
        ax.barh(y, value, color=PALETTE[0] if y == len(bits) - 1 else PALETTE[5], height=0.62)
        ax.text(value + 0.03, y, f"{value:.2f}", va="center")
    ax.set_yticks(range(len(bits)), list(bits))
    ax.invert_yaxis()
    ax.set(xlim=(0, 1.15 * max(bits.values())), xlabel="bits per byte")
    return figure


def surprise_sheet(names: Sequence[str], bits: Sequence[float]) -> str:
    """A function whose tokens are the darker, the more bits they cost; 10 and more are darkest."""
    spans = []
    for name, cost in zip(names, bits, strict=True):
        share = min(cost / 10, 1)
        colour = [round(x + (y - x) * share) for x, y in ((251, 240), (250, 150), (247, 80))]
        said = html.escape(name.replace("⏎", "\n").replace("·", " "))
        spans.append(
            f"<span title='{cost:.1f} bits' style='--c:rgb({','.join(map(str, colour))})'>"
            f"{said}</span>"
        )
    return (
        f"{_SHEET}<div class=code-sheet><pre>{''.join(spans)}</pre>"
        "<p style='font-size:12px'>light: expected; dark: 10 bits and more</p></div>"
    )


# --------------------------------------------------------------------------- context


@torch.no_grad()
def losses_at(
    shipped: Shipped, stream: Tensor, begin: Tensor, length: int, position: Tensor | None = None
) -> Tensor:
    """Losses of chunks of `length` tokens that begin at `begin` (n,), in nats.

    Returns:
        (n, length) at every position, or (n,) at the one that `position` (n,) says.
    """
    found = []
    for some in torch.arange(len(begin)).split(64):
        chunk = stream[begin[some, None] + torch.arange(length + 1)]
        x, target = shipped.model.features(chunk[:, :-1]), chunk[:, 1:]  # (B, T, D), (B, T)
        if position is not None:
            rows = torch.arange(len(some))
            x, target = x[rows, position[some]], target[rows, position[some]]
        logits = x @ shipped.model.token.weight.T  # (..., V)
        each = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none")
        found.append(each.view(target.shape))
    return torch.cat(found)


def by_position(shipped: Shipped, stream: Tensor, every: int = 61) -> Tensor:
    """Mean loss by the number of tokens that a prediction is made from, 1 to C: (C,)."""
    length = shipped.model.max_length
    begin = torch.arange(0, len(stream) - length, every)
    return losses_at(shipped, stream, begin, length).mean(0)


def chunks_and_windows(
    shipped: Shipped, stream: Tensor, length: int, every: int = 61
) -> tuple[Tensor, Tensor]:
    """Losses of the same tokens, the text cut into chunks, and each from a window of its own.

    Returns:
        Both (n,): predicted from 1 to `length` tokens, as it comes, and from exactly `length`.
    """
    asked = torch.arange(shipped.model.max_length, len(stream), every)  # predicted tokens
    cut = ((asked - 1) // length * length).clamp(max=len(stream) - length - 1)
    chunks = losses_at(shipped, stream, cut, length, asked - 1 - cut)
    last = torch.full_like(asked, length - 1)
    return chunks, losses_at(shipped, stream, asked - length, length, last)


def context_curve(losses: Tensor, bins: Mapping[str, tuple[float, float]]) -> Figure:
    """Loss against the number of tokens given: a dot a position, and a line of means.

    Args:
        losses: (C,), from 1 token on. bins: where the middle of each is, and its mean.
    """
    figure, ax = plt.subplots(figsize=(5.8, 2.7))
    ax.plot(range(1, len(losses) + 1), losses, ".", ms=4, color=PALETTE[0], alpha=0.4)
    ax.plot(*zip(*bins.values(), strict=True), "o-", color=PALETTE[0])
    ax.axhline(losses.mean().item(), ls="--", color=PALETTE[1])
    ax.text(1, losses.mean().item() - 0.06, "mean of the chunk", va="top", color=PALETTE[1])
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set(xlabel="tokens given", ylabel="loss (nats)")
    return figure


def bins_of(losses: Tensor) -> dict[str, tuple[float, float]]:
    """Means of 1, 2, 3-4, 5-8, … tokens given: the middle (geometric) and the mean loss of each."""
    found, low = {}, 1
    for high in (1, 2, 4, 8, 16, 32, 64, 128):
        name = f"{low}" if low == high else f"{low}–{high}"
        found[name] = math.sqrt(low * high), losses[low - 1 : high].mean().item()
        low = high + 1
    return found


@torch.no_grad()
def context_sheet(shipped: Shipped, text: str, place: int, given: int) -> str:
    """The likeliest tokens at a position of a function, from the last `given` tokens before it."""
    ids = [START, *shipped.tokenizer.encode(text), END]
    names = shipped.tokenizer.names(ids)
    first = max(0, place - given)
    shares = shipped.model(torch.tensor([ids[first:place]]))[0, -1].softmax(-1)
    spans = []
    for i, name in enumerate(names[: place + 1]):
        colour = "#f6d2b3" if i == place else "#cfe0f2" if i >= first else "#eceae4"
        said = "" if name == "[START]" else html.escape(name.replace("⏎", "\n").replace("·", " "))
        spans.append(f"<span style='--c:{colour}'>{said}</span>")
    best = shares.topk(3)
    items = "".join(
        f"<li><code>{html.escape(name)}</code> {share:.2f}</li>"
        for name, share in zip(
            shipped.tokenizer.names(best.indices.tolist()), best.values.tolist(), strict=True
        )
    )
    right = f"<code>{html.escape(names[place])}</code> {shares[ids[place]]:.2f}"
    return (
        f"{_SHEET}<div class=code-sheet><pre>{''.join(spans)}</pre><ol>{items}</ol>"
        f"<p>the token itself: {right}</p></div>"
    )


# --------------------------------------------------------------------------- training by mistake


def learn(
    train: Callable[..., list[float]], make: Callable[[], nn.Module], stream: Tensor, steps: int,
    **settings: Any,
) -> tuple[float, float]:  # fmt: skip
    """Train a new model by any `train`, right or wrong.

    Returns:
        What it reports, as the mean of the last ten losses; and the loss of predicting the next
        token, of 40 chunks of the stream, without dropout.
    """
    torch.manual_seed(0)
    model = make()
    losses = train(model, stream, total_steps=steps, **settings)
    model.eval()
    length = settings["length"]
    begin = torch.arange(40)[:, None] * ((len(stream) - length - 1) // 40)
    chunks = stream[begin + torch.arange(length + 1)]
    with torch.no_grad():
        logits = model(chunks[:, :-1])
    honest = F.cross_entropy(logits.flatten(0, 1), chunks[:, 1:].flatten()).item()
    return sum(map(float, losses[-10:])) / 10, honest
