"""Pictures of the page on residual connections: a block in numbers, its paths, a decoder's stream.

The block of the page takes (2, 1) to (1.5, 2): `W_1`, ReLU, `W_2`, and the input is added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.attention import example_pictures
from toolkit.corpora.translation import BOS, EOS
from toolkit.diagrams import Sheet
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE
from toolkit.transformer.experiments import BLOCKS, Found
from toolkit.transformer.logit_lens import SUBLAYERS, decoder_states, log_probabilities

X = torch.tensor([2.0, 1])
W_1 = torch.tensor([[1.0, 0], [-1, -1]])  # x @ W_1 is (1, -1)
W_2 = torch.tensor([[-0.5, 1], [3, 3]])  # (1, 0) @ W_2 is (-0.5, 1)


def block() -> Figure:
    """The two-layer block with the page's numbers: x goes past the layers, F(x) is added to it."""
    sheet = Sheet(13.2, 5.3)
    y = 2.4
    sheet.words("x", 0.7, y, "$x$\n(2, 1)", width=1.3, size=12)
    for name, x, text, kind in (
        ("w_1", 3.0, "$W_1$", "query"),
        ("relu", 5.4, "ReLU", "value"),
        ("w_2", 7.6, "$W_2$", "query"),
        ("outer", 10.6, "ReLU", "value"),
    ):
        sheet.node(name, x, y, text, kind, width=1.4, height=1.0, size=12)
    sheet.plus("add", 9.05, y, 0.33)
    sheet.words("y", 12.4, y, "$y$\n(1.5, 2)", width=1.5, size=12)
    for source, target in itertools.pairwise(("x", "w_1", "relu", "w_2", "add", "outer", "y")):
        sheet.link(source, target, start="right", end="left")
    sheet.link(
        "x", "add", start=(1.75, y), via=((1.75, 4.2), (9.05, 4.2)), end="top", color=PALETTE[1]
    )
    sheet.dot(1.75, y, PALETTE[1])
    sheet.text(5.4, 4.7, "residual connection: $x$ = (2, 1)", 12, color=PALETTE[1])
    sheet.text(4.2, y + 0.85, "(1, −1)", 11)
    sheet.text(6.5, y + 0.85, "(1, 0)", 11)
    sheet.ax.plot([2.2, 2.2, 8.4, 8.4], [1.6, 1.4, 1.4, 1.6], color=INK, linewidth=1.0)
    sheet.text(5.3, 0.8, "residual: $F(x)$ = (−0.5, 1)", 12)
    return sheet.figure


def paths(blocks: int, factor: float, most: int = 5) -> str:
    """How the derivative of a stack of scalar blocks is divided among its paths, as HTML.

    Args:
        blocks: N.
        factor: the derivative of each F; with the residual connection it is 1 + factor.
        most: longer paths are shown together.
    """
    whole = (1 + factor) ** blocks
    labels, notes, values = [], [], []
    for k in range(min(blocks, most) + 1):
        count = math.comb(blocks, k)
        labels.append(f"through {k}")
        notes.append(f"{count:,} × {factor**k:.2g}")
        values.append(count * factor**k / whole)
    if blocks > most:
        labels.append("through more")
        notes.append("")
        values.append(1 - sum(values))
    caption = f"shares of the derivative, {blocks} block{'s' if blocks > 1 else ''}"
    return example_pictures.bars(labels, torch.tensor(values), notes, caption) + (
        f"<p>with the residual connection {1 + factor:g}<sup>{blocks}</sup> = <b>{whole:.3g}</b>, "
        f"without it {factor:g}<sup>{blocks}</sup> = <b>{factor**blocks:.1g}</b></p>"
    )


# --------------------------------------------------------------------------- a decoder's stream


@dataclass(frozen=True)
class Stream:
    """What runs past the sub-layers of a decoder while it writes a translation.

    Attributes:
        tokens: U tokens that the decoder is given; the first is "(start)".
        ids: their ids (U,), and the one that comes next to each (U,).
        next_ids: see `ids`.
        stages: names of the stages: the embedding, then each sub-layer.
        vectors: the sum after each stage (stages, U, D).
    """

    tokens: tuple[str, ...]
    ids: Tensor
    next_ids: Tensor
    stages: tuple[str, ...]
    vectors: Tensor


@torch.no_grad()
def decoder_stream(shipped: Shipped, text: str) -> Stream:
    """Let a shipped Transformer translate a sentence, and keep the sums in its decoder."""
    model, words = shipped.model, shipped.tokenizer
    source = torch.tensor([words.encode(text)])  # (1, S)
    written = shipped.module.greedy_decode(model, source, 60)[0].tolist()
    ids = torch.tensor([BOS, *(i for i in written if i not in (BOS, EOS))])  # (U,)
    states = decoder_states(model, source, ids[None])  # (1, U, D) each
    names = [f"{n}: {name}" for n in range(1, len(model.decoder.layers) + 1) for name in SUBLAYERS]
    tokens = ("(start)", *(words.tokenizer.id_to_token(i) for i in ids[1:].tolist()))
    following = torch.cat([ids[1:], torch.tensor([EOS])])
    return Stream(tokens, ids, following, ("embedding", *names), torch.cat([*states.values()]))


@torch.no_grad()
def predictions(shipped: Shipped, stream: Stream, position: int) -> str:
    """What the decoder would write if it ended after each stage, as HTML."""
    model, words = shipped.model, shipped.tokenizer
    logp = log_probabilities(model, stream.vectors[:, position])  # (stages, V)
    best, ids = logp.exp().max(-1)
    notes = [
        {BOS: "(start)", EOS: "(end)"}.get(i) or words.tokenizer.id_to_token(i)
        for i in ids.tolist()
    ]
    given = stream.tokens[position]
    return example_pictures.bars(stream.stages, best, notes, f"the decoder is given «{given}»")


# --------------------------------------------------------------------------- the experiment

LABELS = {
    "plain": "plain",
    "plain, He": "plain, He's initialisation",
    "sum only": "input added, gradient cut",
    "residual": "residual",
}


def losses(found: Mapping[str, Found]) -> Figure:
    """Loss on new points against the number of blocks, mean and spread of the seeds."""
    figure, ax = plt.subplots(figsize=(6.2, 4.1))
    for index, (way, label) in enumerate(LABELS.items()):
        each = torch.stack([found[f"{way}, {blocks} blocks"].loss for blocks in BLOCKS])
        colour = PALETTE[index]
        ax.plot(BLOCKS, each.mean(1), "o-", color=colour, label=label, lw=1.8)
        for blocks, seeds in zip(BLOCKS, each, strict=True):
            ax.plot([blocks] * len(seeds), seeds, "_", color=colour, ms=9, alpha=0.7)
    ax.axhline(math.log(2), color=INK, lw=0.9, ls=":")
    ax.text(BLOCKS[0], math.log(2) * 1.06, "chance", fontsize=10)
    ax.set(
        xlabel="blocks of two layers", ylabel="loss on new points", yscale="log", xticks=BLOCKS,
    )  # fmt: skip

    ax.set_yticks([0.03, 0.1, 0.3], ["0.03", "0.1", "0.3"])
    ax.minorticks_off()
    figure.legend(loc="outside lower center", ncols=2, fontsize=10.5)
    return figure
