"""The sequence-to-sequence chapter's small example, and its pictures.

«March 5» becomes «5. März» in a network of three numbers that is set by hand: its state is a list
of what is still to be said. Every state is rounded to two places, so that each number follows from
the ones that are printed.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots
from toolkit.attention.example_pictures import bars
from toolkit.corpora.translation import BOS, EOS, SPECIALS

SOURCE = [*SPECIALS, "March", "5"]
TARGET = [*SPECIALS, "5", ".", "März"]
ENTRIES = ("month", "day", "point")  # what is still to be said
READ = {"March": (1.0, 0, 0), "5": (0.0, 1, 0)}
WROTE = {"<bos>": (0.0, 0, 0), "5": (0.0, -2, 1), ".": (0.0, 0, -2), "März": (-2.0, 0, 0)}
FADES = 0.5  # how much of the encoder's state goes into the next one
END = 0.5  # the logit of the end, at every step
OFFERS = ("5", ".", "März", "<eos>")  # what the decoder chooses from


class ToyTranslator(nn.Module):
    """A translator with `start` and `step` whose weights are set by hand, and states are rounded.

    encoder: h = tanh(x + 0.5 h). decoder: s = tanh(y + s), and logits 4 s for «5», «.» and «März»,
    0.5 for the end.
    """

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Tensor]:
        """source (B, T) -> the encoding (B, 3)."""
        return (self.encode(source, source_mask)[:, -1],)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """source (B, T) of ids of `SOURCE` -> all states (B, T, 3), carried through padding."""
        mask = torch.ones_like(source).bool() if source_mask is None else source_mask  # (B, T)
        vectors = torch.tensor([READ.get(word, (0.0, 0, 0)) for word in SOURCE])
        h, states = torch.zeros(len(source), 3), []
        for ids, real in zip(source.unbind(1), mask.unbind(1), strict=True):
            new = _rounded(torch.tanh(vectors[ids] + FADES * h))  # (B, 3)
            h = torch.where(real[:, None], new, h)
            states.append(h)
        return torch.stack(states, 1)

    def step(self, previous: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        """previous (B,) of ids of `TARGET` -> logits (B, V) and the new state."""
        vectors = torch.tensor([WROTE.get(word, (0.0, 0, 0)) for word in TARGET])
        s = _rounded(torch.tanh(vectors[previous] + state[0]))  # (B, 3)
        logits = torch.full((len(s), len(TARGET)), -math.inf)
        month, day, point = (4 * s).unbind(1)
        for word, logit in zip(
            OFFERS, (day, point, month, torch.full((len(s),), END)), strict=True
        ):
            logits[:, TARGET.index(word)] = logit
        return logits, (s,)


def _rounded(x: Tensor) -> Tensor:
    return torch.round(x, decimals=2)


@dataclass(frozen=True)
class Written:
    """What the toy translator does with one sentence, greedily.

    read: T source words. states: (T, 3). written: U tokens with the end. decoder: (U, 3).
    logits, chances: (U, 4), of `OFFERS`.
    """

    read: tuple[str, ...]
    states: Tensor
    written: tuple[str, ...]
    decoder: Tensor
    logits: Tensor
    chances: Tensor


def example(words: Sequence[str] = ("March", "5"), most: int = 6) -> Written:
    """Read some words and write their translation.

    Raises:
        ValueError: a word that the example doesn't have.
    """
    if unknown := [word for word in words if word not in READ]:
        raise ValueError(f"not in the example: {', '.join(unknown)}")
    toy = ToyTranslator()
    source = torch.tensor([[SOURCE.index(word) for word in words]])
    state: tuple[Tensor] = toy.start(source)
    previous, offers = BOS, [TARGET.index(word) for word in OFFERS]
    written, states, logits = [], [], []
    while len(written) < most and previous != EOS:
        made, state = toy.step(torch.tensor([previous]), state)
        previous = int(made[0].argmax())
        written.append(TARGET[previous])
        states.append(state[0][0])
        logits.append(made[0, offers])
    scores = torch.stack(logits)  # (U, 4)
    return Written(
        tuple(words), toy.encode(source)[0], tuple(written), torch.stack(states), scores,
        scores.softmax(-1),
    )  # fmt: skip


# --------------------------------------------------------------------------- figures


def crossing() -> Figure:
    """Which source word each target word comes from."""
    figure, ax = plt.subplots(figsize=(5.2, 2.2))
    above, below = {"March": 1.0, "5": 2.6}, {"5": 0.4, ".": 1.4, "März": 2.5, "<eos>": 3.7}
    for words, y, colour in ((above, 1.0, "#dfeaf5"), (below, 0.0, "#f6e7da")):
        for word, x in words.items():
            box = {"boxstyle": "round,pad=0.35", "fc": colour, "ec": "none"}
            ax.text(x, y, word, ha="center", va="center", fontsize=12, bbox=box)
    for source, target in (("March", "März"), ("5", "5"), ("5", ".")):
        ax.annotate(
            "", (below[target], 0.2), (above[source], 0.8),
            arrowprops={"arrowstyle": "->", "color": plots.PALETTE[0], "lw": 1.8},
        )  # fmt: skip
    ax.text(-0.6, 1.0, "English", ha="right", va="center", fontsize=10.5)
    ax.text(-0.6, 0.0, "German", ha="right", va="center", fontsize=10.5)
    ax.set(xlim=(-1.7, 4.3), ylim=(-0.35, 1.35))
    ax.axis("off")
    return figure


def signed(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], *, title: str = "",
    form: str = ".2f", high: float = 1.0,
) -> Figure:  # fmt: skip
    """A matrix with its numbers, blue where they are positive and orange where negative."""
    figure, ax = plt.subplots(figsize=(1.9 + 0.75 * len(columns), 1.1 + 0.42 * len(rows)))
    plots.attention_map(
        ax, values, rows, columns, title=title, numbers=form, limits=(-1.8 * high, 1.8 * high),
        cmap="PuOr", row_label="", column_label="",
    )  # fmt: skip
    _readable(ax)
    return figure


def offered(logits: Tensor, chances: Tensor) -> Figure:
    """Logits (4,) and probabilities (4,) of `OFFERS`, each column with its own colour scale."""
    figure, ax = plt.subplots(figsize=(2.9, 2.3))
    table = torch.stack([logits, chances], 1)  # (4, 2)
    plots.attention_map(
        ax, table / table.amax(0), OFFERS, ["logit", "probability"], limits=(0, 1.6),
        row_label="", column_label="",
    )  # fmt: skip
    for (i, j), value in np.ndenumerate(table.numpy()):
        ax.text(j, i, f"{value:.2f}", ha="center", va="center")
    _readable(ax)
    return figure


def _readable(ax: plt.Axes) -> None:
    ax.set_aspect("auto")
    ax.tick_params(labelsize=10.5)
    for text in ax.texts:
        text.set_fontsize(10.5)
    for label in ax.get_xticklabels():
        label.set_rotation(0)
        label.set_horizontalalignment("center")


def batch_grid(
    ids: Tensor, mask: Tensor, words: Sequence[str], title: str = "", names: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """A batch of ids (B, T) with their words; padding is hatched.

    Args:
        words: what each id says.
        names: what stands to the left of each row.
    """
    rows, columns = ids.shape
    size = 1.2 + 0.72 * columns if names else 0.5 + 0.85 * columns
    figure, ax = plt.subplots(figsize=(size, 0.4 + 0.44 * rows))
    for i, name in enumerate(names):
        ax.text(-0.1, -i - 0.5, name, ha="right", va="center", fontsize=10, color=plots.INK)
    for i, j in itertools.product(range(rows), range(columns)):
        real = bool(mask[i, j])
        ax.add_patch(
            plt.Rectangle(
                (j, -i - 1), 1, 1, ec=plots.INK if real else "#cfcabd", lw=0.7,
                fc="#dfeaf5" if real else "#f4f2ec", hatch=None if real else "//",
            )
        )  # fmt: skip
        number = int(ids[i, j])
        for down, text, colour in (
            (0.32, words[number], plots.INK),
            (0.72, str(number), "#5b6069"),
        ):
            ax.text(j + 0.5, -i - down, text, ha="center", va="center", fontsize=10, color=colour)
    ax.set(xlim=(-0.02, columns + 0.02), ylim=(-rows - 0.02, 0.02), title=title)
    ax.axis("off")
    return figure


def fading(curves: Mapping[str, Sequence[float]]) -> Figure:
    """How much of a first token is left in the state after each further token."""
    figure, ax = plt.subplots(figsize=(4.6, 2.6))
    steps = range(len(next(iter(curves.values()))))
    plots.curves(
        ax, steps, curves, x_label="tokens read since", y_label="left in the state", title=""
    )
    ax.set_ylim(0, 1.02)
    return figure


def both_ways(words: Sequence[str] = ("I", "love", "deep", "learning")) -> Figure:
    """A forward and a backward row of states over a sentence."""
    figure, ax = plt.subplots(figsize=(4.6, 2.5))
    for x, word in enumerate(words):
        ax.text(x, 0, word, ha="center", va="center", fontsize=11)
        for y, colour, arrow in ((1, "#dfeaf5", "→"), (2, "#f6e7da", "←")):
            box = {"boxstyle": "round,pad=0.4", "fc": colour, "ec": plots.INK, "lw": 0.7}
            ax.text(x, y, f"$h_{x + 1}${arrow}", ha="center", va="center", fontsize=11, bbox=box)
    for left, right in itertools.pairwise(range(len(words))):
        for y, ends in ((1, (left + 0.3, right - 0.3)), (2, (right - 0.3, left + 0.3))):
            ax.annotate(
                "", (ends[1], y), (ends[0], y),
                arrowprops={"arrowstyle": "->", "lw": 1.5, "color": plots.PALETTE[y - 1]},
            )  # fmt: skip
    up = {"arrowstyle": "->", "lw": 1, "color": plots.INK}
    for x in range(len(words)):
        ax.annotate("", (x, 0.68), (x, 0.22), arrowprops=up)
        ax.annotate("", (x + 0.3, 1.8), (x + 0.3, 0.22), arrowprops=up)
    ax.set(xlim=(-0.6, len(words) - 0.4), ylim=(-0.35, 2.45))
    ax.axis("off")
    return figure


def learned(
    found: Mapping[str, Mapping[tuple[int, int], tuple[float, float, float]]], *,
    across: int, y_label: str, x_label: str, fixed: int | None = None,
    names: Sequence[str] | None = None, colours: Sequence[str] = plots.PALETTE,
) -> Figure:  # fmt: skip
    """Curves of a stored experiment with the spread over seeds as a band.

    Args:
        found: what `toolkit.seq2seq.experiments.read` returned.
        across: which part of the keys is the x axis, 0 (delay or length) or 1 (steps).
        fixed: the other part; None for all.
        names: which models; all if not given.
        colours: of the models, in order.
    """
    figure, ax = plt.subplots(figsize=(5.2, 3.0))
    for index, name in enumerate(names or found):
        points = {
            key[across]: value for key, value in found[name].items()
            if fixed is None or key[1 - across] == fixed
        }  # fmt: skip
        x = list(points)
        middle = torch.tensor([value[0] for value in points.values()])
        spread = torch.tensor([value[1] for value in points.values()])
        colour = colours[index % len(colours)]
        ax.plot(x, middle, "o-", color=colour, label=name)
        low, high = (middle - spread).clamp(min=0), (middle + spread).clamp(max=1)
        ax.fill_between(x, low, high, color=colour, alpha=0.15, lw=0)
    ax.set(xlabel=x_label, ylabel=y_label, ylim=(-0.02, 1.04))
    ax.legend(fontsize=9)
    return figure


# --------------------------------------------------------------------------- one LSTM unit

UNIT_WORDS = ("March", "5", ",", "2024", "and", "13", "days")


def sigmoid(x: float) -> float:
    """The logistic function, rounded to two places as the example prints it."""
    return round(1 / (1 + math.exp(-x)), 2)


@dataclass(frozen=True)
class UnitStep:
    """One step of an LSTM with one unit: gates, candidate, memory and output."""

    i: float
    f: float
    g: float
    o: float
    c: float
    h: float


def unit_step(x: float, c: float, forget: float = 2.0, write: float = 2.0) -> UnitStep:
    """A step of the chapter's one LSTM unit, each number rounded to two places.

    Args:
        x: 1 for the token that counts, 0 for others.
        c: the memory before.
        forget: pre-activation of the forget gate while nothing new comes; for x = 1 it is -forget.
        write: pre-activation of the input gate for x = 1; for x = 0 it is -write.
    """
    i = sigmoid(write if x else -write)
    f = sigmoid(-forget if x else forget)
    g, o = round(math.tanh(x), 2), sigmoid(0.0)
    c = round(f * c + i * g, 2)
    return UnitStep(i, f, g, o, c, round(o * math.tanh(c), 2))


def unit_page(forget: float, write: float, words: Sequence[str] = UNIT_WORDS) -> str:
    """The unit over a sentence whose first word counts: a row a token, as HTML."""
    c, lines, memory = 0.0, [], []
    for number, _ in enumerate(words):
        step = unit_step(float(number == 0), c, forget, write)
        c = step.c
        memory.append(c)
        lines.append(f"i {step.i:.2f}  f {step.f:.2f}")
    return bars(words, torch.tensor(memory), lines, "memory c after each token")


# --------------------------------------------------------------------------- a tree to open

# Two steps are enough for greedy search to miss the most probable sentence.
RAIN: dict[str, dict[str, float]] = {
    "": {"rain": 0.6, "heavy": 0.4},
    "rain": {"falls": 0.5, "comes": 0.3, "pours": 0.2},
    "heavy": {"rain": 0.95, "showers": 0.05},
}
RAIN_WORDS = [*SPECIALS, "rain", "heavy", "falls", "comes", "pours", "showers"]


def rain_table() -> Tensor:
    """The logits of `RAIN` as `NextTokenTable` takes them: (1, 3, V, V)."""
    size = len(RAIN_WORDS)
    chances = torch.zeros(1, 3, size, size)
    for word, follow in RAIN.items():
        step, row = (1, RAIN_WORDS.index(word)) if word else (0, BOS)
        for token, chance in follow.items():
            chances[0, step, row, RAIN_WORDS.index(token)] = chance
    # Rows that are never reached are uniform: a row of -inf would be NaN
    unused = chances.sum(-1) == 0
    chances[unused] = 1 / size
    chances[0, 2] = 0
    chances[0, 2, :, EOS] = 1
    return chances.log()


_TREE = (
    "<style>.tree details{margin:.1em 0 .1em 1.2em}.tree summary{cursor:pointer}"
    ".tree .leaf{margin-left:2.4em}.tree .kept{font-weight:bold}"
    ".tree .best{color:var(--pst-color-success,#2e7d4f)}</style>"
)


def open_tree(tree: Mapping[str, Mapping[str, float]], seen: Collection[str], best: str) -> str:
    """A search tree of two words a sentence as nested folds that a reader opens, as HTML.

    Args:
        tree: conditional probabilities by first word, as `RAIN`.
        seen: sequences ("rain", "rain falls") that a search has kept; they are bold, and open.
        best: the sequence that it returns.
    """
    parts = []
    for word, chance in tree[""].items():
        leaves = []
        for following, given in tree[word].items():
            name = f"{word} {following}"
            leaves.append(
                f"<div class='leaf{_marks(name, seen, best)}'>{html.escape(name)}: "
                f"{chance:.2f} × {given:.2f} = {chance * given:.2f}</div>"
            )
        opened = " open" if word in seen else ""
        parts.append(
            f"<details{opened}><summary class='{_marks(word, seen, best)}'>{html.escape(word)}: "
            f"{chance:.2f}</summary>{''.join(leaves)}</details>"
        )
    return f"{_TREE}<div class=tree>&lt;bos&gt;{''.join(parts)}</div>"


def _marks(name: str, seen: Collection[str], best: str) -> str:
    return (" kept" if name in seen else "") + (" best" if name == best else "")


# --------------------------------------------------------------------------- a trained GRU


def gru_gates(cell: nn.Module, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reset gate, update gate and candidate of a GRU cell: x (B, I), h (B, H) -> 3 x (B, H)."""
    with torch.no_grad():
        from_input = (x @ cell.weight_ih.T + cell.bias_ih).chunk(3, -1)
        from_state = (h @ cell.weight_hh.T + cell.bias_hh).chunk(3, -1)
        r, z = (torch.sigmoid(a + b) for a, b in zip(from_input[:2], from_state[:2], strict=True))
        return r, z, torch.tanh(from_input[2] + r * from_state[2])


def growth(curves: Mapping[str, Mapping[str, Sequence[float]]], y_label: str) -> Figure:
    """Panels of two lines each, the right and the wrong cell, over the steps of a sequence."""
    rows = len(curves)
    figure, axes = plt.subplots(rows, 1, figsize=(3.9, 0.85 * rows + 0.4), sharex=True)
    for ax, (title, lines) in zip(axes, curves.items(), strict=True):
        for colour, (name, values) in zip(plots.PALETTE, lines.items(), strict=False):
            ax.plot(range(len(values)), values, color=colour)
            ax.text(len(values) - 0.5, values[-1], name, color=colour, va="center", fontsize=10)
        ax.set_title(title, fontsize=10.5, loc="left")
        ax.set_xlim(-0.5, len(values) + 3.5)
        ax.margins(y=0.25)  # so that no name lies on the axis
        ax.set_xticks(range(0, len(values), 5))
    axes[rows // 2].set_ylabel(y_label)
    axes[-1].set_xlabel("step")
    return figure
