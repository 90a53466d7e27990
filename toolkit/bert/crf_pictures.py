"""Pictures of the pages on sequence labelling: lattices of tags that can be stepped through.

The first page tags «the log file» with O and N (part of a name), by hand; the second «close the log
file» with O, B and I. Lattices are drawn as SVG, so that each step of a widget is small.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots
from toolkit.bert.crf_experiments import FOLLOWS, SIZES, TAGGERS, TAGS, Found
from toolkit.plots import INK, PALETTE

_FAINT, _LINE, _MARK, _NEW = "#5b6069", "#cfcabd", "#f9dcc4", "#cfe3f5"
# A sheet of its own, so that it reads the same on a light and on a dark page; !important, because
# the theme takes the background from what lies on the page.
_SHEET = (
    "<style>.lattice{background:#fbfaf7!important;color:#22252b!important;padding:.4em .7em;"
    "margin:.3em 0;max-width:100%;width:min(34em,84vw);box-sizing:border-box;font-size:14px;"
    "line-height:1.55}.lattice svg{display:block;width:100%}"
    ".lattice :is(p,b){color:#22252b!important;margin:.2em 0}</style>"
)


@dataclass(frozen=True)
class Example:
    """A sentence, its tags, and all scores of a CRF: small whole numbers, set by hand.

    Attributes:
        emissions: (T, L). transitions: (L, L), from row to column. start, end: (L,).
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    emissions: Tensor
    transitions: Tensor
    start: Tensor
    end: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """What `crf_partition` and `viterbi` are given: a batch of this one sentence."""
        mask = torch.ones(1, len(self.words), dtype=torch.bool)
        return self.emissions[None], mask, self.transitions, self.start, self.end

    def parts(self, path: Sequence[int]) -> list[float]:
        """The numbers that the score of a sequence of tags adds up, from left to right."""
        numbers = [self.start[path[0]].item(), self.emissions[0, path[0]].item()]
        for t in range(1, len(path)):
            numbers.append(self.transitions[path[t - 1], path[t]].item())
            numbers.append(self.emissions[t, path[t]].item())
        return numbers

    def score(self, path: Sequence[int]) -> float:
        """The score of a sequence of tags, whose end score is 0 in both examples."""
        return sum(self.parts(path)) + self.end[path[-1]].item()

    def paths(self) -> list[tuple[int, ...]]:
        """All sequences of tags."""
        return list(itertools.product(range(len(self.tags)), repeat=len(self.words)))

    def name(self, path: Sequence[int]) -> str:
        """A sequence of tags as one reads it: «O N N»."""
        return " ".join(self.tags[y] for y in path)


TWO = Example(
    ("the", "log", "file"), ("O", "N"),
    torch.tensor([[2.0, 0], [1, 0], [0, 2]]),
    torch.tensor([[0.0, 0], [-1, 2]]),
    torch.tensor([0.0, -2]), torch.zeros(2),
)  # fmt: skip
THREE = Example(
    ("close", "the", "log", "file"), ("O", "B", "I"),
    torch.tensor([[3.0, 1, 0], [3, 0, 0], [2, 1, 0], [0, 1, 3]]),
    torch.tensor([[0.0, 0, -4], [0, -2, 1], [0, -1, 0]]),
    torch.tensor([0.0, 0, -4]), torch.zeros(3),
)  # fmt: skip


def signed(value: float, digits: int = 0) -> str:
    """A number with a true minus sign."""
    return f"{value:.{digits}f}".replace("-", "−")


# --------------------------------------------------------------------------- drawing

_LEFT, _RISE, _TOP = 34, 88, 30
_HALF, _HIGH = 33, 19


@dataclass
class _Lattice:
    """An SVG that grows: nodes for tags of words, edges for moves from tag to tag."""

    words: Sequence[str]
    tags: Sequence[str]
    drawn: list[str] = field(default_factory=list)

    @property
    def wide(self) -> int:
        """From word to word: closer where there are many, so that all fit on a phone."""
        return 150 if len(self.words) < 4 else 118

    def at(self, t: int, y: int) -> tuple[int, int]:
        return _LEFT + _HALF + self.wide * t, _TOP + _RISE * y

    def edge(self, t: int, a: int, b: int, colour: str = _LINE, width: float = 1.5,
             text: str = "") -> None:  # fmt: skip
        """The move from tag a of word t - 1 to tag b of word t."""
        (x0, y0), (x1, y1) = self.at(t - 1, a), self.at(t, b)
        x0, x1 = x0 + _HALF, x1 - _HALF
        self.drawn.append(
            f"<line x1='{x0}' y1='{y0}' x2='{x1}' y2='{y1}' stroke='{colour}' "
            f"stroke-width='{width}'/>"
        )
        if text:  # nearer to where it comes from, so that crossing lines keep theirs apart
            x, y = x0 + 0.26 * (x1 - x0), y0 + 0.26 * (y1 - y0)
            self.drawn.append(
                f"<text x='{x:.0f}' y='{y + 6:.0f}' text-anchor='middle' font-size='17' "
                f"stroke='#fbfaf7' stroke-width='5' paint-order='stroke'>{text}</text>"
            )

    def node(self, t: int, y: int, text: str, fill: str = "none", stroke: str = _FAINT) -> None:
        x, height = self.at(t, y)
        self.drawn.append(
            f"<rect x='{x - _HALF}' y='{height - _HIGH}' width='{2 * _HALF}' height='{2 * _HIGH}' "
            f"rx='7' fill='{'#fbfaf7' if fill == 'none' else fill}' stroke='{stroke}' "
            f"stroke-width='{1 if stroke == _FAINT else 2.5}'/>"
            f"<text x='{x}' y='{height + 7}' text-anchor='middle' font-size='20'>{text}</text>"
        )

    def page(self, label: str, lines: Sequence[str]) -> str:
        """The drawing as HTML, with lines of text below."""
        high = _TOP + _RISE * (len(self.tags) - 1) + 56
        wide = _LEFT + 2 * _HALF + self.wide * (len(self.words) - 1) + 8
        names = [
            f"<text x='6' y='{self.at(0, y)[1] + 7}' font-size='20' font-weight='bold'>{tag}</text>"
            for y, tag in enumerate(self.tags)
        ] + [
            f"<text x='{self.at(t, 0)[0]}' y='{high - 12}' text-anchor='middle' font-size='19' "
            f"font-style='italic'>{word}</text>"
            for t, word in enumerate(self.words)
        ]
        below = "".join(f"<p>{line}</p>" for line in lines)
        return (
            f"{_SHEET}<div class=lattice><svg viewBox='0 0 {wide} {high}' role='img' "
            f"aria-label='{html.escape(label, quote=True)}' fill='{INK}'>"
            f"{''.join(self.drawn)}{''.join(names)}</svg>{below}</div>"
        )


# --------------------------------------------------------------------------- the score, and Z


def path_page(example: Example, *names: str) -> str:
    """One sequence of tags in the lattice of all of them: its score, and its share of Z.

    Args:
        names: the tag of each word.
    """
    path = [example.tags.index(name) for name in names]
    sheet = _Lattice(example.words, example.tags)
    tags = range(len(example.tags))
    edges = list(itertools.product(range(1, len(path)), tags, tags))
    edges.sort(key=lambda e: (e[1], e[2]) == (path[e[0] - 1], path[e[0]]))
    for t, a, b in edges:
        bold = (a, b) == (path[t - 1], path[t])
        text = signed(example.transitions[a, b].item())
        sheet.edge(t, a, b, *((PALETTE[1], 4) if bold else (_LINE, 1.5)), text)
    for t, y in itertools.product(range(len(path)), tags):
        chosen = path[t] == y
        sheet.node(t, y, signed(example.emissions[t, y].item()), _MARK if chosen else "none",
                   PALETTE[1] if chosen else _FAINT)  # fmt: skip
    parts, total = example.parts(path), example.score(path)
    added = " + ".join(f"({signed(x)})" if x < 0 else signed(x) for x in parts)
    whole = sum(math.exp(example.score(p)) for p in example.paths())
    return sheet.page(
        f"the sequence {example.name(path)} in the lattice; its score is {signed(total)}",
        [
            f"s = {added} = <b>{signed(total)}</b>",
            f"e<sup>s</sup> = {math.exp(total):.1f}; p = {math.exp(total):.1f} / {whole:.1f} = "
            f"<b>{math.exp(total) / whole:.3f}</b>",
        ],
    )


def forward_sums(example: Example) -> Tensor:
    """log of the sum over all beginnings that end with each tag: (T, L)."""
    sums = [example.start + example.emissions[0]]
    for now in example.emissions[1:]:
        sums.append(now + (sums[-1][:, None] + example.transitions).logsumexp(0))
    return torch.stack(sums)


def _first_word(example: Example, values: Tensor) -> list[str]:
    """For each tag what it begins with: start and emission, and their sum in `values` (L,)."""
    return [
        f"{tag}: start {signed(example.start[y].item())}, emission "
        f"{signed(example.emissions[0, y].item())}, together <b>{signed(values[y].item())}</b>"
        for y, tag in enumerate(example.tags)
    ]


def forward_page(example: Example, step: int) -> str:
    """The forward recursion after `step` words, one number a node; behind the last word, log Z."""
    sums, words = forward_sums(example), len(example.words)
    sheet = _Lattice(example.words, example.tags)
    last = min(step, words)
    for t in range(1, last):
        for a, b in itertools.product(range(len(example.tags)), repeat=2):
            now = t == last - 1 and step <= words
            text = signed(example.transitions[a, b].item()) if now else ""
            sheet.edge(t, a, b, *((PALETTE[0], 2.5) if now else (_LINE, 1.5)), text)
    for t, y in itertools.product(range(words), range(len(example.tags))):
        new = t == last - 1
        text = signed(sums[t, y].item(), 3 if t > 0 else 0) if t < last else ""
        sheet.node(t, y, text, _NEW if new else "none", PALETTE[0] if new else _FAINT)
    if step > words:
        ends = [signed(x, 3) for x in sums[-1].tolist()]
        powers = " + ".join(f"e<sup>{x}</sup>" for x in ends)
        lines = [f"log Z = log({powers}) = <b>{sums[-1].logsumexp(0):.3f}</b>"]
    elif step == 1:
        lines = _first_word(example, sums[0])
    else:
        lines = []
        for y, tag in enumerate(example.tags):
            terms = []
            for a in range(len(example.tags)):
                before = signed(sums[last - 2, a].item(), 3 if last > 2 else 0)
                move = example.transitions[a, y].item()
                sign = f"{'−' if move < 0 else '+'} {abs(move):.0f}"
                terms.append(f"e<sup>{before} {sign}</sup>")
            lines.append(
                f"{tag}: {signed(example.emissions[last - 1, y].item())} + log("
                f"{' + '.join(terms)}) = <b>{signed(sums[last - 1, y].item(), 3)}</b>"
            )
    done = f"after {last} of {words} words" + (", and log Z" if step > words else "")
    return sheet.page(f"the sums of the forward recursion {done}", lines)


# --------------------------------------------------------------------------- Viterbi


def viterbi_table(example: Example) -> tuple[Tensor, Tensor, list[int]]:
    """The best score of a beginning that ends with each tag (T, L), the tag before it, the path."""
    best, before = [example.start + example.emissions[0]], []
    for now in example.emissions[1:]:
        longer, tag = (best[-1][:, None] + example.transitions).max(0)
        best.append(now + longer)
        before.append(tag)
    path = [int((best[-1] + example.end).argmax())]
    for tag in reversed(before):
        path.append(int(tag[path[-1]]))
    return torch.stack(best), torch.stack(before), path[::-1]


def viterbi_steps(example: Example) -> list[str]:
    """What can be stepped through: forward a word at a time, then back."""
    return [*example.words, *(f"back {n}" for n in range(1, len(example.words) + 1))]


def viterbi_page(example: Example, name: str) -> str:
    """One step of the search: scores and pointers so far, and on the way back the path so far.

    Args:
        name: one of `viterbi_steps`.
    """
    best, before, path = viterbi_table(example)
    words, tags = len(example.words), range(len(example.tags))
    step = viterbi_steps(example).index(name)
    last = min(step, words - 1)
    back = step - words + 1  # how many tags of the path are known
    known = {words - 1 - k: path[words - 1 - k] for k in range(max(back, 0))}
    sheet = _Lattice(example.words, example.tags)
    edges = [(t, int(before[t - 1, b]), b) for t in range(1, last + 1) for b in tags]
    followed = {(t, path[t - 1], path[t]) for t in range(1, words) if t in known and t - 1 in known}
    if back <= 0 and step > 0:  # those that lose, in grey
        for a, b in itertools.product(tags, repeat=2):
            if (last, a, b) not in edges:
                sheet.edge(last, a, b, "#e3dfd5", 1)
    for t, a, b in sorted(edges, key=lambda e: e in followed):
        now = (back <= 0 and t == last) or (t, a, b) in followed
        colour = PALETTE[1] if (t, a, b) in followed else PALETTE[0] if now else "#a9a498"
        sheet.edge(t, a, b, colour, 4 if now else 2)
    for t, y in itertools.product(range(words), tags):
        if known.get(t) == y:
            fill, stroke = _MARK, PALETTE[1]
        elif back <= 0 and t == last:
            fill, stroke = _NEW, PALETTE[0]
        else:
            fill, stroke = "none", _FAINT
        sheet.node(t, y, signed(best[t, y].item()) if t <= last else "", fill, stroke)
    if back > 0:
        if back == 1:
            lines = [f"Largest of the last word: {example.tags[path[-1]]}, "
                     f"with <b>{signed(best[-1].max().item())}</b>."]  # fmt: skip
        else:
            t = words - back
            after, now = (example.tags[path[k]] for k in (t + 1, t))
            lines = [f"The pointer of {after} at <i>{example.words[t + 1]}</i> leads to "
                     f"<b>{now}</b> at <i>{example.words[t]}</i>."]  # fmt: skip
        found = ["?"] * (words - back) + [example.tags[y] for y in path[words - back :]]
        lines.append("Tags so far: " + " ".join(found))
    elif step == 0:
        lines = _first_word(example, best[0])
    else:
        lines = []
        for y, tag in enumerate(example.tags):
            ways = [
                f"{signed(best[last - 1, a].item())} "
                f"{'−' if example.transitions[a, y] < 0 else '+'} "
                f"{abs(example.transitions[a, y].item()):.0f}"
                for a in tags
            ]
            largest = (best[last - 1] + example.transitions[:, y]).max().item()
            lines.append(
                f"{tag}: largest of {', '.join(ways)} is {signed(largest)}, from "
                f"{example.tags[int(before[last - 1, y])]}; with emission "
                f"{signed(example.emissions[last, y].item())}: "
                f"<b>{signed(best[last, y].item())}</b>"
            )
    return sheet.page(f"Viterbi's search, step «{name}»", lines)


# --------------------------------------------------------------------------- what was learned


def learned_transitions(transitions: Tensor) -> Figure:
    """Transitions (L, L) of a trained tagger beside the probabilities of the language."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.9))
    plots.attention_map(
        axes[0], FOLLOWS, TAGS, TAGS, title="the language: probability", numbers=".2f",
        limits=(0, 1.3), row_label="tag before", column_label="tag after",
    )  # fmt: skip
    low, high = transitions.min().item(), transitions.max().item()
    plots.attention_map(
        axes[1], transitions, TAGS, TAGS, title="learned: transition scores", numbers=".1f",
        limits=(low, high + 0.3 * (high - low)), row_label="", column_label="tag after",
    )  # fmt: skip
    return figure


MEASURES = {"tags": "tags right", "whole": "sentences right", "broken": "break a rule"}


def shares(found: Mapping[str, Found], best: Mapping[str, float]) -> Figure:
    """Three measures of the four taggers, for both sizes of the training data.

    A bar is the mean of the seeds, a dot one of them.

    Args:
        best: of each measure, what is possible at best; a dotted line.
    """
    figure, axes = plt.subplots(1, 3, figsize=(6.4, 4.0), sharey=True)
    colours = dict(zip(SIZES, ("#a9c9e6", PALETTE[0]), strict=True))
    for ax, (measure, title) in zip(axes, MEASURES.items(), strict=True):
        for name, one in found.items():
            tagger, size = name.removesuffix(" sentences").split(", ")
            y = list(TAGGERS).index(tagger) + (-0.2 if int(size) == SIZES[0] else 0.2)
            each = 100 * getattr(one, measure)
            ax.barh(y, each.mean(), 0.36, color=colours[int(size)],
                    label=f"{size} training sentences" if tagger == "BiLSTM" else None)  # fmt: skip
            ax.plot(each, [y] * len(each), ".", color=INK, ms=3.5)
            ax.annotate(f"{each.mean():.0f}", (each.max(), y), (5, 0), va="center",
                        textcoords="offset points", fontsize=11)  # fmt: skip
        if measure in best:
            ax.axvline(100 * best[measure], color=INK, lw=1, ls=":")
        ax.set(title=title, xlabel="percent", xlim=(0, 128), xticks=(0, 50, 100))
    axes[0].set_yticks(range(len(TAGGERS)), list(TAGGERS), fontsize=11)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2,
                  fontsize=11)  # fmt: skip
    return figure
