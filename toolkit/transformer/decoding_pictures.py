"""How a trained Transformer writes: a search tree with ends of its own, and a cache step by step.

«es regnet stark» again, whose tree has two words a sentence in `seq2seq_pictures`. Here sentences
have two to four words, so that their length matters.
"""

from __future__ import annotations

import contextlib
import html
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots
from toolkit.corpora.translation import BOS, SPECIALS
from toolkit.widgets import side_by_side

# What may follow each beginning, and how probable it is. Products are exact to three places.
TREE: dict[str, dict[str, float]] = {
    "": {"it": 0.6, "heavy": 0.4},
    "it": {"rains": 0.45, "is": 0.4, "pours": 0.15},
    "heavy": {"rain": 0.9, "showers": 0.1},
    "it rains": {"<eos>": 0.7, "heavily": 0.3},
    "it is": {"raining": 1.0},
    "it pours": {"<eos>": 1.0},
    "heavy rain": {"<eos>": 0.7, "falls": 0.3},
    "heavy showers": {"<eos>": 1.0},
    "it rains heavily": {"<eos>": 1.0},
    "it is raining": {"heavily": 0.9, "<eos>": 0.1},
    "heavy rain falls": {"<eos>": 1.0},
    "it is raining heavily": {"<eos>": 1.0},
}
WORDS = [
    *SPECIALS, "it", "heavy", "rains", "is", "pours", "rain", "showers", "raining", "heavily",
    "falls",
]  # fmt: skip


def tree_table() -> Tensor:
    """The logits of `TREE` (1, 5, V, V): by source, position, previous token and next token."""
    size = len(WORDS)
    chances = torch.zeros(1, 5, size, size)
    for beginning, follow in TREE.items():
        said = beginning.split()
        row = WORDS.index(said[-1]) if said else BOS
        for token, chance in follow.items():
            chances[0, len(said), row, WORDS.index(token)] = chance
    chances[chances.sum(-1) == 0] = 1 / size  # never reached; a row of -inf would be NaN
    return chances.log()


def length_penalty(length: int, alpha: float) -> float:
    """What the log-probability of a sentence is divided by; the length counts <eos>."""
    return ((5 + length) / 6) ** alpha


@dataclass(frozen=True)
class Searched:
    """What a beam kept of `TREE`, and the sentences that it ended with.

    kept: beginnings, and sentences with their <eos>. ended: probability of each sentence.
    """

    kept: set[str] = field(default_factory=set)
    ended: dict[str, float] = field(default_factory=dict)

    def ranked(self, alpha: float) -> list[tuple[str, float]]:
        """Sentences and their scores, best first."""
        scores = {
            said: math.log(chance) / length_penalty(len(said.split()), alpha)
            for said, chance in self.ended.items()
        }
        return sorted(scores.items(), key=lambda pair: -pair[1])


def search_tree(beam_size: int) -> Searched:
    """Beam search in `TREE` until nothing is live; what has ended makes the beam narrower."""
    found, live = Searched(), {"": 1.0}
    while live:
        extended = {
            f"{beginning} {token}".strip(): chance * more
            for beginning, chance in live.items()
            for token, more in TREE[beginning].items()
        }
        best = sorted(extended, key=lambda said: -extended[said])[: beam_size - len(found.ended)]
        found.kept.update(best)
        found.ended.update({s: extended[s] for s in best if s.endswith("<eos>")})
        live = {s: extended[s] for s in best if not s.endswith("<eos>")}
    return found


# --------------------------------------------------------------------------- pages of widgets

_TREE = (
    "<style>.twigs ul{list-style:none;margin:0;padding-left:1.1em;"
    "border-left:1px solid var(--pst-color-border,#c9c5ba)}.twigs>ul{border:0;padding:0;"
    "display:flex;flex-wrap:wrap;gap:0 3em}"
    ".twigs li{line-height:1.5;margin:0}.twigs .kept{font-weight:bold}.twigs .lost{opacity:.8}"
    ".twigs .best{color:var(--pst-color-success,#2e7d4f)}"
    "table.ends :is(td,th){padding:.1em .5em;text-align:right;border:0}"
    "table.ends :is(td,th):first-child{text-align:left}</style>"
)


def tree_page(beam_size: int, alpha: float) -> str:
    """The tree with what a beam keeps in bold, and its sentences with their scores, as HTML.

    Args:
        beam_size: 0 for the tree alone.
    """
    if not beam_size:
        return f"{_TREE}<div class=twigs>&lt;bos&gt;{_twig('', 1.0, (), '')}</div>"
    found = search_tree(beam_size)
    ranked = found.ranked(alpha)
    best = ranked[0][0]
    lines = []
    for said, score in ranked:
        length, chance = len(said.split()), found.ended[said]
        numbers = (
            str(length),
            f"{chance:.3f}",
            _minus(math.log(chance), 3),
            f"{length_penalty(length, alpha):.3f}",
            _minus(score, 2),
        )
        cells = "".join(f"<td>{number}</td>" for number in numbers)
        mark = " class=best" if said == best else ""
        name = html.escape(said.removesuffix(" <eos>"))
        lines.append(f"<tr><th scope=row{mark}>{name}</th>{cells}</tr>")
    head = "".join(f"<th scope=col>{name}</th>" for name in ("|y|", "P", "log P", "lp", "score"))
    return (
        f"{_TREE}<div class=twigs>&lt;bos&gt;{_twig('', 1.0, found.kept, best)}</div>"
        "<div style='overflow-x:auto'><table class=ends>"
        f"<tr><td></td>{head}</tr>{''.join(lines)}</table></div>"
    )


def _twig(beginning: str, chance: float, kept: Collection[str], best: str) -> str:
    """What follows a beginning, as nested lists."""
    items = []
    for token, more in TREE[beginning].items():
        said = f"{beginning} {token}".strip()
        mark = "kept" if said in kept else "lost"
        if said in kept and f"{best} ".startswith(f"{said} "):
            mark += " best"
        joint = f"{chance * more:.3f}" if beginning else f"{more:.1f}"
        text = f"{html.escape(token)} <small>{more:g} → {joint}</small>" if beginning else (
            f"{token} <small>{joint}</small>")  # fmt: skip
        below = "" if token == "<eos>" else _twig(said, chance * more, kept, best)
        items.append(f"<li><span class='{mark}'>{text}</span>{below}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _minus(number: float, digits: int) -> str:
    return f"{number:.{digits}f}".replace("-", "−")


KEPT, NEW = "#dfeaf5", "#f7d7ba"


def cache_page(
    own: Tensor,
    cross: Tensor,
    target: Sequence[str],
    source: Sequence[str],
    step: int,
    cached: bool,
) -> str:
    """One step of writing: which queries, keys and values are made, and which were kept.

    Args:
        own: weights (U, U) of one head of self-attention. cross: (U, S), to the source.
        target: the U tokens that are read, <bos> first. source: the S tokens of the source.
        step: how many of the U tokens have been read after it, 1 to U.
        cached: whether keys and values of earlier steps are kept.

    Returns:
        Two tables and a line that counts, as HTML: orange is made at this step, blue is kept.
    """
    first = step - 1 if cached else 0  # the first query that goes through the layers
    kept = [cached and j < step - 1 for j in range(step)]
    source_kept = [cached and step > 1] * len(source)
    page = side_by_side(
        _asked(own, target[:step], target[:step], first, kept, "keys: the target so far", True),
        _asked(cross, target[:step], source, first, source_kept, "keys: the source", False),
    )
    counts = step - first, kept.count(False), source_kept.count(False)
    return page + (
        "<p>Orange is made at this step, blue is kept.<br>queries: <b>{}</b>; keys and values of "
        "the target: <b>{}</b>, of the source: <b>{}</b></p>"
    ).format(*counts)


def _asked(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], first: int, kept: Sequence[bool],
    caption: str, causal: bool,
) -> str:  # fmt: skip
    """A map without the rows before `first`; its columns tell which keys were kept."""
    head = "".join(
        f"<td style=--c:{KEPT if one else NEW}>{html.escape(name)}</td>"
        for name, one in zip(columns, kept, strict=True)
    )
    lines = []
    for i, name in enumerate(rows):
        cells = [
            "<td></td>" if i < first or (causal and j > i)
            else f"<td style=--c:{NEW}>{float(weights[i, j]):.2f}</td>"
            for j in range(len(columns))
        ]  # fmt: skip
        lines.append(f"<tr><th scope=row>{html.escape(name)}</th>{''.join(cells)}</tr>")
    return (
        f"<table class=heat style=font-size:13px><caption>{html.escape(caption)}</caption>"
        f"<tr><td></td>{head}</tr>{''.join(lines)}</table>"
    )


# --------------------------------------------------------------------------- what is counted


class Counted(nn.Module):
    """A model that counts how often it is asked.

    calls: of `encode`, `decode` and `generator`. positions: of the target that `decode` was given.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calls = dict.fromkeys(("encode", "decode", "generator"), 0)
        self.positions = 0

    def encode(self, source: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """source (B, S) -> memory (B, S, D)."""
        self.calls["encode"] += 1
        return self.model.encode(source, src_mask)

    def decode(
        self, memory: Tensor, src_mask: Tensor | None, tgt: Tensor, tgt_mask: Tensor | None
    ) -> Tensor:
        """memory (B, S, D) and tgt (B, U) -> (B, U, D)."""
        self.calls["decode"] += 1
        self.positions += tgt.shape[1]
        return self.model.decode(memory, src_mask, tgt, tgt_mask)

    def generator(self, hidden: Tensor) -> Tensor:
        """hidden (..., D) -> log-probabilities (..., V)."""
        self.calls["generator"] += 1
        return self.model.generator(hidden)


@dataclass
class Work:
    """What went through the layers of a stack.

    calls: of all layers together. positions: rows of T positions that they were given, a sentence.
    """

    calls: int = 0
    positions: int = 0


@contextlib.contextmanager
def layer_work(layers: Iterable[nn.Module]) -> Iterator[Work]:
    """Count what goes through `feed_forward` of each layer, which it runs once a call.

    with layer_work(model.decoder.layers) as work:
        greedy_decode(model, source, 20)
    print(work.calls, work.positions)
    """
    work = Work()

    def note(module: nn.Module, given: Any, output: Tensor) -> None:
        work.calls += 1
        work.positions += output.shape[-2]

    hooks = [layer.feed_forward.register_forward_hook(note) for layer in layers]
    try:
        yield work
    finally:
        for hook in hooks:
            hook.remove()


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Shortest processor time of a call, of some repeats."""
    best = math.inf
    for _ in range(repeats):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


# --------------------------------------------------------------------------- figures


def loop(source: Sequence[str], written: Sequence[str]) -> Figure:
    """Greedy decoding as a drawing: one encoder, and a decoder call for each token written."""
    steps = len(written)
    figure, ax = plt.subplots(figsize=(4.7, 3.4))
    read = ["<bos>", *written[:-1]]
    text = {"ha": "center", "va": "center", "fontsize": 11, "color": plots.INK}
    box = {"boxstyle": "round,pad=0.35", "ec": plots.INK, "lw": 0.7}
    arrow = {"arrowstyle": "->", "lw": 1.2, "color": plots.INK}
    ax.text(-1.3, 0, "encoder\nonce", bbox=box | {"fc": "#dfeaf5"}, **text)
    for i, word in enumerate(source):
        ax.text(-1.3, -0.95 - 0.48 * i, word, **text)
    ax.annotate("", (-1.3, -0.38), (-1.3, -0.72), arrowprops=arrow)
    ax.plot([-1.3, -1.3, steps - 1], [0.4, 0.85, 0.85], color=plots.PALETTE[0], lw=2)
    ax.text(-1.3, 1.18, "memory", **text | {"color": "#1a5f99"})
    for step, word in enumerate(written):
        ax.text(step, 0, "decoder", bbox=box | {"fc": "#f6e7da"}, **text)
        ax.annotate(
            "", (step, 0.28), (step, 0.85), arrowprops=arrow | {"color": plots.PALETTE[0], "lw": 2}
        )
        for i, token in enumerate(read[: step + 1]):
            ax.text(step, -0.95 - 0.48 * i, token, **text)
        ax.annotate("", (step, -0.28), (step, -0.72), arrowprops=arrow)
        ax.annotate("", (step + 0.12, 1.35), (step + 0.12, 0.28), arrowprops=arrow)
        ax.text(step + 0.12, 1.6, word, weight="bold", **text)
    ax.set(xlim=(-1.85, steps - 0.45), ylim=(-1.15 - 0.48 * (steps - 1), 1.85))
    ax.axis("off")
    return figure


def penalties(alphas: Sequence[float] = (0.0, 0.6, 1.0), longest: int = 30) -> Figure:
    """What a log-probability is divided by, against the length."""
    figure, ax = plt.subplots(figsize=(4.8, 2.6))
    lengths = np.arange(1, longest + 1)
    for colour, alpha in zip(plots.PALETTE, alphas, strict=False):
        values = ((5 + lengths) / 6) ** alpha
        ax.plot(lengths, values, color=colour)
        ax.text(longest + 0.5, values[-1], f"α = {alpha:g}", color=colour, va="center", fontsize=11)
    ax.set(xlabel="tokens, <eos> counted", ylabel="length penalty", xlim=(0, longest + 6))
    ax.set_ylim(bottom=0)
    return figure


def savings(
    lengths: Sequence[int], measured: Sequence[float], positions: Sequence[float]
) -> Figure:
    """How many times as fast a cache makes writing, beside the ratio of positions."""
    figure, ax = plt.subplots(figsize=(5.0, 2.9))
    for colour, style, name, values in (
        (plots.PALETTE[0], "o-", "seconds", measured),
        (plots.PALETTE[1], "o--", "positions", positions),
    ):
        ax.plot(lengths, values, style, color=colour)
        ax.text(lengths[-1] * 1.12, values[-1], name, color=colour, va="center", fontsize=11)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(list(lengths), [str(n) for n in lengths])
    ticks = [1, 2, 4, 8, 16, 32, 64]
    ax.set_yticks(ticks, [str(n) for n in ticks])
    ax.minorticks_off()
    ax.set(xlabel="target tokens U", ylabel="without cache / with", xlim=(None, lengths[-1] * 3.2))
    return figure
