"""The block of GPT: the two orders of its norms, GELU by tanh, and what each part is worth."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.code_corpus import END, PAD, START
from toolkit.diagrams import FAINT, Sheet
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE

PARTS = ("attention", "network")


@torch.no_grad()
def set_constant(block: nn.Module, attention: Sequence[float], network: Sequence[float]) -> None:
    """Let both parts of a block return the same vector, whatever they read."""
    for linear, bias in (
        (block.attention.out_proj, attention),
        (block.feed_forward.w_2, network),
    ):
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor(bias))


# --------------------------------------------------------------------------- the shipped model


@dataclass(frozen=True)
class Part:
    """One part of one block: what it adds to the stream, and what its absence costs.

    before: root mean square of the stream's entries where the part reads it; adds: of what the part
    returns. change: nats per token more without it; error: standard error of that, by functions.
    """

    before: float
    adds: float
    change: float
    error: float


@dataclass(frozen=True)
class Worth:
    """What `worth` found: nats per token of the whole model, tokens, parts by (block, name)."""

    loss: float
    tokens: int
    parts: dict[tuple[int, str], Part]


@torch.no_grad()
def worth(shipped: Shipped, functions: int = 150, *, mean: bool = False) -> Worth:
    """Let each part of each block return a constant in turn, on held-out functions.

    Args:
        mean: the constant is the part's mean over all tokens, a usual size for the parts above;
            otherwise it is zeros.
    """
    model, rows = shipped.model, _rows(shipped, functions)
    seen: dict[tuple[int, str], list[Tensor]] = {}
    with _watched(model, seen):
        whole = _losses(model, rows)
    real = [row[:, 1:] != PAD for row in rows]
    counts = torch.cat([r.sum(1) for r in real])  # a number for each function
    sizes = {key: _size(values, real) for key, values in seen.items()}
    parts = {}
    for number in range(len(model.blocks)):
        for name in PARTS:
            kept = torch.cat([v[r] for v, r in zip(seen[number, name], real, strict=True)])
            with _silent(model, number, name, kept.mean(0) if mean else torch.zeros(())):
                values = _losses(model, rows)
            change = float((values - whole).sum() / counts.sum())
            apart = values - whole - change * counts  # of each function
            error = float(apart.square().sum().sqrt() / counts.sum())
            parts[number, name] = Part(
                sizes[number, f"before {name}"], sizes[number, name], change, error
            )
    loss = float(whole.sum() / counts.sum())
    return Worth(loss, int(counts.sum()), parts)


def _rows(shipped: Shipped, functions: int, batch: int = 25) -> list[Tensor]:
    """Held-out functions from START to END, similar lengths together, padded: (B, T) each."""
    encoded = sorted(
        (
            [START, *shipped.tokenizer.encode(text), END][: shipped.config["max_length"]]
            for text in shipped.held_out()[:functions]
        ),
        key=len,
    )
    return [
        nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in encoded[i : i + batch]], True, float(PAD)
        )
        for i in range(0, len(encoded), batch)
    ]


def _losses(model: nn.Module, rows: Sequence[Tensor]) -> Tensor:
    """Nats of each function: (functions,)."""
    found = []
    for ids in rows:
        logits = model(ids[:, :-1]).transpose(1, 2)  # (B, V, T - 1)
        values = F.cross_entropy(logits, ids[:, 1:], ignore_index=PAD, reduction="none")
        found.append(values.sum(1))
    return torch.cat(found)


def _size(values: Sequence[Tensor], real: Sequence[Tensor]) -> float:
    """Root mean square of the entries of vectors (B, T, D) where `real` (B, T) is true."""
    kept = torch.cat([v[r] for v, r in zip(values, real, strict=True)])
    return float(kept.square().mean().sqrt())


@contextlib.contextmanager
def _watched(model: nn.Module, seen: dict[tuple[int, str], list[Tensor]]) -> Iterator[None]:
    """Collect what each part returns and what its norm reads."""
    handles = []
    for number, block in enumerate(model.blocks):
        for name, part, norm in (
            ("attention", block.attention, block.norm_1),
            ("network", block.feed_forward, block.norm_2),
        ):
            returned = seen.setdefault((number, name), [])
            read = seen.setdefault((number, f"before {name}"), [])
            handles += [
                part.register_forward_hook(lambda _m, _i, out, kept=returned: kept.append(out)),
                norm.register_forward_pre_hook(
                    lambda _m, inputs, kept=read: kept.append(inputs[0])
                ),
            ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _silent(model: nn.Module, number: int, name: str, constant: Tensor) -> Iterator[None]:
    """In the block that it begins, one part of one block returns a constant, () or (D,)."""
    block = model.blocks[number]
    part = block.attention if name == "attention" else block.feed_forward
    handle = part.register_forward_hook(lambda _m, _i, out: constant.expand_as(out))
    try:
        yield
    finally:
        handle.remove()


# --------------------------------------------------------------------------- figures


def two_orders() -> Figure:
    """A block of GPT-1 (post-norm) and one of GPT-2 (pre-norm), from below, with their skips."""
    sheet = Sheet(12.4, 13.2)
    stacks = {
        "GPT-1: post-norm": (
            (2.9, "causal\nself-attention"), (4.75, "+"), (5.95, "norm 1"),
            (8.0, "feed-forward\nGELU"), (9.85, "+"), (11.05, "norm 2"),
        ),
        "GPT-2: pre-norm": (
            (2.2, "norm 1"), (3.85, "causal\nself-attention"), (5.7, "+"), (7.0, "norm 2"),
            (8.65, "feed-forward\nGELU"), (10.5, "+"),
        ),
    }  # fmt: skip
    for x, (name, parts) in zip((3.1, 9.4), stacks.items(), strict=True):
        sheet.text(x - 2.6, 12.8, name, 12.5, ha="left", weight="bold")
        sheet.words(f"{name}.in", x, 0.45, "x", width=1.0, height=0.6, size=12)
        before, fork = f"{name}.in", 1.2
        for number, (y, part) in enumerate(parts):
            label = f"{name}.{number}"
            if part == "+":
                sheet.plus(label, x, y, 0.33)
            elif part.startswith("norm"):
                sheet.node(label, x, y, part, "output", width=2.4, height=0.9, size=11.5)
            else:
                sheet.node(label, x, y, part, "weights", width=3.9, height=1.5, size=11.5)
            sheet.link(before, label)
            if part == "+":
                source = f"{name}.in" if fork < 2 else before
                sheet.link(source, label, "skip", start=(x, fork),
                           via=((x - 2.5, fork), (x - 2.5, y)), end="left",
                           color=PALETTE[1])  # fmt: skip
                sheet.dot(x, fork, PALETTE[1])
                fork = y + (1.2 + 0.7 if "post" in name else 0.55)
            before = label
        top = sheet.nodes[before].side("top")
        sheet.arrow(top, (x, top[1] + 0.7))
    return sheet.figure


def missed(found: Worth) -> Figure:
    """How much the loss grows without each part, a bar each with its standard error."""
    figure, ax = plt.subplots(figsize=(4.9, 2.9))
    names = [f"{name} {number}" for number, name in found.parts]
    parts = list(found.parts.values())
    for row, ((_, name), part) in enumerate(found.parts.items()):
        ax.barh(row, part.change, xerr=part.error, color=PALETTE[PARTS.index(name)],
                error_kw={"ecolor": INK, "lw": 1.2})  # fmt: skip
        ax.text(part.change + part.error + 0.1, row, f"{part.change:.2f}", va="center",
                fontsize=10.5)  # fmt: skip
    ax.set_yticks(range(len(names)), names, fontsize=10.5)
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="nats per token more without it",
           xlim=(0, 1.15 * max(part.change for part in parts)))  # fmt: skip
    ax.tick_params(axis="y", length=0)
    return figure


def gelu_gap() -> Figure:
    """The difference of the two forms of GELU, tanh minus exact."""
    x = torch.linspace(-5, 5, 801, dtype=torch.float64)
    gap = 1e4 * (F.gelu(x, approximate="tanh") - F.gelu(x))
    figure, ax = plt.subplots(figsize=(4.9, 2.1))
    ax.axhline(0, color=FAINT, lw=0.8)
    ax.plot(x, gap)
    ax.set(xlabel="x", ylabel="tanh − exact, in 0.0001", ylim=(-3, 5.5))
    ax.yaxis.label.set_fontsize(9)
    return figure
