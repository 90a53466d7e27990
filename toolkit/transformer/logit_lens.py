"""The logit lens: what a decoder would say if it ended after this sub-layer.

The vectors between two sub-layers are given to the last norm, if there is one, and then to the
generator, as if no layer followed (nostalgebraist, 2020).
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots, widgets
from toolkit.corpora.translation import BOS, PAD, Batch, collate
from toolkit.models import Shipped

SUBLAYERS = ("self-attention", "cross-attention", "feed-forward")
STATES = ("input", *(f"{part} {layer}" for layer in (1, 2) for part in SUBLAYERS))


@torch.no_grad()
def decoder_states(model: nn.Module, src: Tensor, tgt: Tensor) -> dict[str, Tensor]:
    """The decoder's vectors on the way up: what goes in, and what each sub-layer makes of it.

    Args:
        model: an EncoderDecoder of the chapter: `decoder.layers[i].sublayer`.
        src: (B, S) int64. tgt: (B, U) int64, begins with `BOS`.

    Returns:
        (B, U, D) under "input", "self-attention 1", "cross-attention 1", "feed-forward 1",
        "self-attention 2" and so on.
    """
    states: dict[str, Tensor] = {}
    handles = []

    def keep(name: str) -> Callable[[nn.Module, tuple, Tensor], None]:
        def hook(module: nn.Module, given: tuple, result: Tensor) -> None:
            states.setdefault("input", given[0])
            states[name] = result

        return hook

    for number, layer in enumerate(model.decoder.layers, start=1):
        for part, connection in zip(SUBLAYERS, layer.sublayer, strict=True):
            handles.append(connection.register_forward_hook(keep(f"{part} {number}")))
    mode = model.training
    try:
        model.eval()
        model(src, tgt)
    finally:
        model.train(mode)
        for handle in handles:
            handle.remove()
    return states


@torch.no_grad()
def log_probabilities(model: nn.Module, x: Tensor) -> Tensor:
    """What the model would say if the decoder's last layer had returned x: (..., D) -> (..., V)."""
    norm = model.decoder.norm
    return model.generator(x if norm is None else norm(x))


def ids(shipped: Shipped, source: str, written: Sequence[str]) -> tuple[Tensor, Tensor]:
    """A source sentence and the tokens written so far as ids, (1, S) and (1, U) with `BOS`."""
    words = shipped.tokenizer
    return torch.tensor([words.encode(source)]), torch.tensor([[BOS, *words.ids(written)]])


def last_position(
    shipped: Shipped, source: str, written: Sequence[str], tokens: Sequence[str]
) -> tuple[list[str], Tensor]:
    """The last position through the lens: the most probable token, and chances of some tokens.

    Returns:
        One token and one row of chances for each state, (states, len(tokens)).
    """
    src, tgt = ids(shipped, source, written)
    states = decoder_states(shipped.model, src, tgt)
    rows = torch.stack(
        [log_probabilities(shipped.model, x[0, -1]).exp() for x in states.values()]
    )  # (states, V)
    best = [shipped.tokenizer.tokenizer.id_to_token(int(i)) for i in rows.argmax(-1)]
    return best, rows[:, shipped.tokenizer.ids(tokens)]


def page(
    shipped: Shipped, source: str, written: Sequence[str], tokens: Sequence[str]
) -> str:  # fmt: skip
    """`last_position` as an HTML table, the input below and the output on top."""
    best, chances = last_position(shipped, source, written, tokens)
    rows = [f"{name}: {token}" for name, token in zip(STATES, best, strict=True)]
    so_far = " ".join(["<bos>", *written])
    caption = f"{source} → {so_far} …"
    table = widgets.heat_table(chances.flip(0), rows[::-1], list(tokens), caption)
    for token in set(best):
        name = html.escape(token)
        table = table.replace(f": {name}</th>", f": <b>{name}</b></th>")
    return widgets.side_by_side(table)


@torch.no_grad()
def handover(shipped: Shipped, most: int = 200) -> tuple[dict[str, tuple[float, float]], int]:
    """How often the lens shows the token that was given, and the token that comes next.

    The first held-out pairs, with the reference as input of the decoder. Padding does not count.

    Returns:
        Both shares for each state, and the number of positions.
    """
    batch = _held_out(shipped, most)
    real = batch.target_out != PAD  # (B, U)
    shares = {}
    for name, x in decoder_states(shipped.model, batch.source, batch.target_in).items():
        best = log_probabilities(shipped.model, x[real]).argmax(-1)  # (positions,)
        given, following = (
            float((best == wanted[real]).float().mean())
            for wanted in (batch.target_in, batch.target_out)
        )
        shares[name] = given, following
    return shares, int(real.sum())


@torch.no_grad()
def without(shipped: Shipped, most: int = 200) -> dict[str, float]:
    """The share of next tokens that are right if the result of one sub-layer is 0, for each.

    The same positions as in `handover`.
    """
    batch = _held_out(shipped, most)
    real = batch.target_out != PAD  # (B, U)
    shares = {}
    for number, layer in enumerate(shipped.model.decoder.layers, start=1):
        parts = (layer.self_attn, layer.src_attn, layer.feed_forward)
        for name, part in zip(SUBLAYERS, parts, strict=True):
            handle = part.register_forward_hook(lambda _module, _given, out: torch.zeros_like(out))
            try:
                best = shipped.model(batch.source, batch.target_in).argmax(-1)  # (B, U)
            finally:
                handle.remove()
            shares[f"{name} {number}"] = float((best == batch.target_out)[real].float().mean())
    return shares


def _held_out(shipped: Shipped, most: int) -> Batch:
    words, pairs = shipped.tokenizer, shipped.held_out()[:most]
    return collate(
        [words.ids(pair.source_tokens) for pair in pairs],
        [words.ids(pair.target_tokens) for pair in pairs],
    )


def handover_figure(shares: Mapping[str, tuple[float, float]]) -> Figure:
    """The two shares of `handover`, from the input to the last sub-layer."""
    figure, ax = plt.subplots(figsize=(6.4, 2.7))
    names = (("the token it was given", 1.0, 72), ("the next token", 5.4, 52))
    for column, (name, middle, height) in enumerate(names):
        values = [100 * pair[column] for pair in shares.values()]
        colour = plots.PALETTE[1 - column]
        ax.plot(range(len(values)), values, "o-", color=colour)
        ax.text(middle, height, name, color=colour, fontsize=10.5, ha="center")
        for x, value in enumerate(values):
            above = value >= 100 * list(shares.values())[x][1 - column]
            ax.annotate(
                f"{value:.0f}", (x, value), (0, 6 if above else -14), textcoords="offset points",
                ha="center", fontsize=10, color=colour,
            )  # fmt: skip
    ax.set_xticks(range(len(shares)), [name.replace("-", "-\n") for name in shares])
    ax.set(ylim=(-14, 112), ylabel="% of positions", yticks=(0, 50, 100))
    return figure


def influence(layer: nn.Module, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
    """Which outputs of a decoder layer move when one target token is exchanged.

    Args:
        x: (1, U, D). memory: (1, S, D). mask: (1, U, U) bool.

    Returns:
        (outputs, U): how far output i moves when input j is replaced by zeros.
    """
    with torch.no_grad():
        before = layer(x, memory, None, mask)  # (1, outputs, D)
        moved = []
        for j in range(x.shape[1]):
            other = x.clone()
            other[:, j] = 0
            moved.append((layer(other, memory, None, mask) - before)[0].norm(dim=-1))
    return torch.stack(moved, dim=1)


def influences(maps: Mapping[str, Tensor], tokens: Sequence[str]) -> Figure:
    """`influence` of several layers side by side: dark where an output depends on an input."""
    figure, axes = plt.subplots(1, len(maps), figsize=(2.8 * len(maps), 2.5), squeeze=False)
    for ax, (title, moved) in zip(axes.flat, maps.items(), strict=True):
        plots.attention_map(
            ax, moved, tokens, tokens, title=title, numbers=".1f",
            limits=(0.0, 2.0), row_label="output at", column_label="target token set to zero",
        )  # fmt: skip
        for text in ax.texts:
            text.set_fontsize(10)
    return figure
