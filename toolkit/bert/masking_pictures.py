"""Pictures of the page on masked language modelling: shares, epochs, the shipped model at work."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from torch import Tensor, nn

from toolkit import widgets
from toolkit.bert.attention_heads import weights
from toolkit.corpora.docstrings import CLS, IGNORE, MASK, SEP, SPECIAL, Pieces
from toolkit.diagrams import FAINT
from toolkit.plots import PALETTE

FATES = ("[MASK]", "another token", "unchanged")
COLOURS = dict(zip(FATES, (PALETTE[0], PALETTE[1], PALETTE[2]), strict=True))
# Heads of the shipped model, layer and head counted from 0, and what they look at.
HEADS = {
    "layer 0, head 2": (0, 2),
    "layer 0, head 3": (0, 3),
    "layer 1, head 2": (1, 2),
}
_CHIPS = (
    "<style>.lit{line-height:1.25;max-width:40em;color:inherit}"
    ".lit span.t{display:inline-block;text-align:center;padding:.1em .4em;margin:.12em;"
    "border-radius:.3em;color:#22252b;background:var(--c,#f1efe8)}"
    ".lit span.t.d{color:#fff}.lit span.t.m{outline:2px solid #d1651c}"
    ".lit span.t small{display:block;font-size:10px}"
    ".lit table{width:auto!important;border-collapse:collapse;margin:.5em 0}"
    ".lit :is(td,th){border:0!important;padding:.1em .5em;background:none!important;"
    "color:inherit;font-weight:normal;text-align:left}"
    ".lit i{display:inline-block;height:.75em;background:#1f6fb2;margin-right:.4em}</style>"
)


# --------------------------------------------------------------------------- shares


def outcomes(tokens: int = 1000, mask_prob: float = 0.15) -> Figure:
    """Of so many ordinary tokens: how many are chosen on average, and what they become."""
    chosen = tokens * mask_prob
    parts = [round(chosen * share) for share in (0.8, 0.1, 0.1)]
    figure, ax = plt.subplots(figsize=(5.6, 2.4))
    ax.set(xlim=(-0.3, 10.3), ylim=(-0.3, 3.9))
    ax.axis("off")
    wide = 10 * mask_prob
    ax.add_patch(Rectangle((0, 2.5), wide, 0.8, fc=PALETTE[4], ec="none", gid="chosen"))
    ax.add_patch(Rectangle((wide, 2.5), 10 - wide, 0.8, fc=FAINT, ec="none", gid="rest"))
    ax.text(0, 3.45, f"{tokens:,} ordinary tokens", va="bottom", fontsize=11.5)
    ax.text(wide / 2, 2.9, f"{chosen:.0f}", ha="center", va="center", color="white", fontsize=11.5)
    ax.text(5.7, 2.9, f"{tokens - chosen:.0f} not chosen: input as it is, label −100",
            ha="center", va="center", fontsize=11)  # fmt: skip
    ax.add_patch(
        Polygon(
            [(0, 2.5), (wide, 2.5), (10, 1.55), (0, 1.55)], fc=PALETTE[4], alpha=0.14, ec="none"
        )
    )
    ax.text(4.1, 1.72, f"{chosen:.0f} chosen: the label is the original token", ha="center",
            va="bottom", fontsize=11)  # fmt: skip
    left = 0.0
    for (name, colour), count in zip(COLOURS.items(), parts, strict=True):
        width = 10 * count / chosen
        ax.add_patch(Rectangle((left, 0.75), width, 0.8, fc=colour, ec="none", gid=name))
        ax.text(left + width / 2, 1.15, f"{count}", ha="center", va="center", color="white",
                fontsize=11.5)  # fmt: skip
        left += width
    ax.text(4, 0.55, "[MASK] in the input", ha="center", va="top", fontsize=11)
    ax.text(8.9, 0.55, "another\ntoken", ha="right", va="top", fontsize=11)
    ax.text(9.1, 0.55, "un-\nchanged", ha="left", va="top", fontsize=11)
    return figure


def fates(ids: Tensor, corrupted: Tensor, labels: Tensor) -> Tensor:
    """Which of `FATES` each token has, 0 to 2; -1 where it was not chosen. All (B, T)."""
    chosen = labels != IGNORE
    found = torch.where(corrupted == MASK, 0, torch.where(corrupted == ids, 2, 1))
    return found.masked_fill(~chosen, -1)


def epochs(found: Tensor, tokens: Sequence[str]) -> Figure:
    """The fates (epochs, T) of the tokens of one sequence, a column an epoch."""
    number, length = found.shape
    figure, ax = plt.subplots(figsize=(5.8, 0.75 + 0.32 * length))
    for name, fate in ((n, FATES.index(n)) for n in FATES):
        for epoch, token in (found == fate).nonzero().tolist():
            ax.add_patch(
                Rectangle((epoch + 0.06, token + 0.08), 0.88, 0.84, fc=COLOURS[name], ec="none",
                          gid=f"{name}:{epoch}:{token}")
            )  # fmt: skip
        ax.plot([], [], "s", color=COLOURS[name], ms=9, label=name)
    ax.plot([], [], "s", color="#e4e1d9", ms=9, label="not chosen", zorder=0)
    ax.add_patch(Rectangle((0, 0), number, length, fc="#e4e1d9", ec="none", zorder=0))
    ax.set(xlim=(0, number), ylim=(length, 0), xlabel="epoch")
    ax.set_yticks([t + 0.5 for t in range(length)], tokens, fontsize=11.5)
    ax.set_xticks([e - 0.5 for e in range(10, number + 1, 10)], range(10, number + 1, 10))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, fontsize=10.5, handletextpad=0.2,
                  columnspacing=1.1)  # fmt: skip
    return figure


def shares(results: Mapping[str, tuple[Tensor, Tensor, Tensor]]) -> Figure:
    """What becomes of the tokens, in percent of all: results of functions that mask, a bar each.

    Args:
        results: ids, corrupted ids and labels, (B, T) each, by the name of the function.
    """
    figure, ax = plt.subplots(figsize=(5.6, 0.75 + 0.48 * len(results)))
    for row, (ids, corrupted, labels) in enumerate(results.values()):
        found, left = fates(ids, corrupted, labels), 0.0
        for fate, name in enumerate(FATES):
            share = 100 * (found == fate).double().mean().item()
            ax.barh(row, share, left=left, color=COLOURS[name], height=0.62)
            if share > 0.9:
                ax.text(left + share / 2, row, f"{share:.3g}", ha="center", va="center",
                        color="white", fontsize=10.5)  # fmt: skip
            elif share > 0.05:  # too narrow for its number
                ax.text(left + share / 2, row - 0.36, f"{share:.1g}", ha="center", va="bottom",
                        color=COLOURS[name], fontsize=10.5)  # fmt: skip
            left += share
    ax.set_yticks(range(len(results)), list(results), fontsize=11)
    ax.invert_yaxis()
    ax.set(xlim=(0, 15.6), xlabel="percent of the ordinary tokens")
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, fc=COLOURS[name]) for name in FATES]
    figure.legend(handles, FATES, loc="outside upper center", ncols=3, fontsize=10.5)
    return figure


# --------------------------------------------------------------------------- the shipped model


@dataclass(frozen=True)
class Prediction:
    """What the model says at one position.

    best: pieces with their probabilities. share, rank: of the original piece. weights: where each
    of the heads `HEADS` looks from this position, (T,) each.
    """

    tokens: list[str]
    best: list[tuple[str, float]]
    share: float
    rank: int
    weights: dict[str, Tensor]


@torch.no_grad()
def predict(
    model: nn.Module, pieces: Pieces, text: str, position: int, seen: int = MASK, k: int = 5
) -> Prediction:
    """Predict the piece at a position of a sentence, [CLS] being 0, with another in the input.

    Args:
        seen: the id that stands there in the input.
    """
    ids = [CLS, *pieces.encode(text), SEP]
    original, ids[position] = ids[position], seen
    with weights(model) as maps:
        hidden, _ = model.bert(torch.tensor([ids]), None, None)  # (1, T, D)
    logits = model.mlm(hidden)[0, position]  # (V,)
    found = logits.softmax(0)  # (V,)
    values, best = found.topk(k)
    return Prediction(
        pieces.tokens(ids), [(pieces.names[i], v) for i, v in zip(best.tolist(), values.tolist(),
                                                                  strict=True)],
        found[original].item(), int((found > found[original]).sum()) + 1,
        {name: maps[layer][0, head, position] for name, (layer, head) in HEADS.items()},
    )  # fmt: skip


def _chip(token: str, weight: float, masked: bool) -> str:
    red, green, blue = (round(low + (high - low) * min(1.0, weight)) for low, high in
                        ((241, 16), (239, 74), (232, 132)))  # fmt: skip
    kind = "t" + (" d" if weight > 0.45 else "") + (" m" if masked else "")
    style = f" style=--c:#{red:02x}{green:02x}{blue:02x}" if weight >= 0.02 else ""
    number = f"{weight:.2f}" if weight >= 0.02 else "&nbsp;"
    return f"<span class='{kind}'{style}>{html.escape(token)}<small>{number}</small></span>"


def frame(one: Prediction, head: str, position: int, original: str) -> str:
    """A prediction as HTML: the sentence, lit by the weights of a head, and the best pieces."""
    weights = one.weights[head].tolist()
    chips = "".join(
        _chip(token, weight, n == position)
        for n, (token, weight) in enumerate(zip(one.tokens, weights, strict=True))
    )
    rows = "".join(
        f"<tr><td>{html.escape(piece)}</td><td><i style=width:{8 * share:.2f}em></i>{share:.2f}"
        f"{' ← the original' if piece == original else ''}</td></tr>"
        for piece, share in one.best
    )
    listed = original in [piece for piece, _ in one.best]
    after = "" if listed else (
        f"<tr><td>{html.escape(original)}</td><td>{one.share:.2g} ← the original, "
        f"rank {one.rank}</td></tr>"
    )  # fmt: skip
    return f"{_CHIPS}<div class=lit><div>{chips}</div><table>{rows}{after}</table></div>"


def look_page(model: nn.Module, pieces: Pieces, texts: Mapping[str, str]) -> ipywidgets.VBox:
    """Sentences whose pieces are masked in turn, with the best pieces and where a head looks.

    Args:
        texts: the sentences by the words on their buttons.
    """
    ids = {name: pieces.encode(text) for name, text in texts.items()}
    most = max(map(len, ids.values()))
    made: dict[tuple[str, int], Prediction] = {}

    def draw(name: str, head: str, at: str) -> str:
        position = int(at)
        if position > len(ids[name]):
            return f"{_CHIPS}<div class=lit>This sentence has {len(ids[name])} tokens.</div>"
        if (name, position) not in made:
            made[name, position] = predict(model, pieces, texts[name], position)
        return frame(made[name, position], head, position, pieces.names[ids[name][position - 1]])

    return widgets.frames(
        {
            "sentence": list(texts),
            "head": list(HEADS),
            "position": [str(n) for n in range(1, most + 1)],
        },
        draw,
        start={"head": 2, "position": 6},
    )


def three_ways(
    model: nn.Module, pieces: Pieces, text: str, positions: Sequence[int], other: str
) -> list[dict[str, Any]]:
    """What the model predicts at positions of a sentence with three tokens in the input there.

    Returns:
        For each position and each of [MASK], the original piece and `other`: the words `position`,
        `original`, `input`, the best piece `best` with `share`, and `original_share`.
    """
    ids = pieces.encode(text)
    found = []
    for position in positions:
        original = ids[position - 1]
        for seen in (MASK, original, pieces.encode(other)[0]):
            one = predict(model, pieces, text, position, seen)
            found.append({
                "position": position, "original": pieces.names[original],
                "input": pieces.names[seen], "best": one.best[0][0], "share": one.best[0][1],
                "original_share": one.share,
            })  # fmt: skip
    return found


# --------------------------------------------------------------------------- whole words


@torch.no_grad()
def word_accuracy(
    model: nn.Module, pieces: Pieces, documents: Sequence[Sequence[str]], words: int
) -> dict[str, float]:
    """Accuracy on the pieces of words that have several, masked alone and as whole words.

    Args:
        documents: of sentences; the first `words` words of several pieces are asked about, each
            in its sentence.

    Returns:
        alone, whole: the shares of pieces predicted correctly when only the piece is masked, and
        when its whole word is; pieces, words: how many.
    """
    rows: list[list[int]] = []
    asked: list[tuple[int, int, int]] = []  # row, position, original piece
    kinds: list[str] = []
    count = 0
    for ids, start, end in _words(pieces, documents):
        if count == words:
            break
        count += 1
        row = [CLS, *ids, SEP]
        for masked in [range(start, end), *(range(at, at + 1) for at in range(start, end))]:
            for at in masked:
                asked.append((len(rows), at, row[at]))
                kinds.append("whole" if len(masked) > 1 else "alone")
            rows.append([MASK if at in masked else i for at, i in enumerate(row)])
    right = dict.fromkeys(("alone", "whole"), 0)
    order = sorted(range(len(rows)), key=lambda n: len(rows[n]))
    of_row: dict[int, list[int]] = {}
    for n, (row, _, _) in enumerate(asked):
        of_row.setdefault(row, []).append(n)
    for part in (order[n : n + 64] for n in range(0, len(order), 64)):
        longest = max(len(rows[n]) for n in part)
        batch = torch.tensor([rows[n] + [0] * (longest - len(rows[n])) for n in part])
        hidden, _ = model.bert(batch, None, batch != 0)  # (B, T, D)
        here = [(b, n) for b, row in enumerate(part) for n in of_row[row]]
        at = torch.tensor([asked[n][1] for _, n in here])
        best = model.mlm(hidden[torch.tensor([b for b, _ in here]), at])[:, SPECIAL:].argmax(-1)
        for (_, n), found in zip(here, (best + SPECIAL).tolist(), strict=True):
            right[kinds[n]] += found == asked[n][2]
    total = kinds.count("alone")
    return {name: n / total for name, n in right.items()} | {"pieces": total, "words": count}


def _words(pieces: Pieces, documents: Sequence[Sequence[str]]):
    """Each word of several pieces with its sentence: ids, and first and last + 1 position."""
    for document in documents:
        for text in document:
            ids = pieces.encode(text)[:60]
            starts = [n for n, name in enumerate(pieces.tokens(ids)) if not name.startswith("##")]
            for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
                if end - start > 1:
                    yield ids, start + 1, end + 1
