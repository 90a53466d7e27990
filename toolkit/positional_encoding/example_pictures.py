"""The position chapter's small example, and the pictures of its first pages.

*the dog bit the man* and *the man bit the dog*: the same five words, embeddings of four numbers,
and codes with two clock hands. Everything is rounded to two places as it is printed, so that each
number follows from those before it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toolkit import plots, widgets
from toolkit.diagrams import Sheet
from toolkit.plots import INK, PALETTE
from toolkit.positional_encoding.experiments import sinusoids
from toolkit.positional_encoding.measures import Report

SENTENCES = ("the dog bit the man", "the man bit the dog")
VOCABULARY = ("the", "dog", "bit", "man")
D_MODEL = 4
BASE = 100.0  # small, so that both hands visibly move; the paper's is 10000
# The embedding matrix, a row for each id. Times sqrt(4) = 2 it gives the vectors of the words.
EMBEDDINGS = torch.tensor(
    [[0.0, 0, 0, 0.5], [0.5, 0.5, 0, 0], [0.5, 0, 0, 0], [0.5, 0, 0.5, 0]],
)
SLOPE = 0.5  # ALiBi: what one token of distance costs
LEARNED = {-1: 1.0, 2: 0.0}  # a learned bias for two offsets
KEPT = 0.5  # what a recurrent state keeps of the one before
_LIMITS = (0.0, 1.6)


def _rounded(values: Tensor) -> Tensor:
    return (values * 100).round() / 100


def ids_of(sentence: str) -> Tensor:
    """The ids of a sentence's words, (T,)."""
    return torch.tensor([VOCABULARY.index(word) for word in sentence.split()])


def vectors(sentence: str) -> Tensor:
    """The scaled embeddings of a sentence's words, (T, 4)."""
    return EMBEDDINGS[ids_of(sentence)] * math.sqrt(D_MODEL)


def codes(length: int) -> Tensor:
    """The sinusoidal codes of positions 0 to length - 1, rounded to two places, (length, 4)."""
    return _rounded(sinusoids(length, BASE, D_MODEL))


@dataclass(frozen=True)
class Example:
    """Self-attention over a sentence with q = k = v, every step rounded to two places.

    x, output: (T, 4). scores, weights: (T, T); masked scores are -inf.
    """

    words: tuple[str, ...]
    x: Tensor
    scores: Tensor
    weights: Tensor
    output: Tensor


def attend(x: Tensor, words: Sequence[str], mask: Tensor | None = None) -> Example:
    """Self-attention over any vectors (T, 4) of the example; mask (T, T), True = may attend."""
    scores = _rounded(x.double() @ x.double().T / math.sqrt(D_MODEL))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = _rounded(scores.softmax(-1))
    output = _rounded(weights @ x.double())
    return Example(tuple(words), x, scores.float(), weights.float(), output.float())


def example(sentence: str, *, code: bool = False, causal: bool = False) -> Example:
    """Self-attention over one of the sentences, with or without positions and causal mask."""
    words = sentence.split()
    x = vectors(sentence) + (codes(len(words)) if code else 0.0)
    mask = torch.ones(len(words), len(words), dtype=torch.bool).tril() if causal else None
    return attend(_rounded(x), words, mask)


def recurrent(sentence: str) -> Tensor:
    """The states h_t = x_t + 0.5 h_(t-1) of a sentence, (T, 4)."""
    h, states = torch.zeros(D_MODEL), []
    for x in vectors(sentence):
        h = x + KEPT * h
        states.append(h)
    return torch.stack(states)


def convolution(x: Tensor) -> Tensor:
    """The token before minus the token after, zeros beyond the edges: (T, 4) -> (T, 4)."""
    edge = torch.zeros(1, x.shape[1])
    padded = torch.cat([edge, x, edge])
    return padded[:-2] - padded[2:]


def turned(vector: Tensor, position: int) -> Tensor:
    """A vector (4,) whose pairs of neighbours are turned by the position's angles."""
    sin, cos = (codes(position + 1)[position].view(2, 2)[:, i] for i in (0, 1))
    a, b = vector.view(2, 2).unbind(1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], 1).flatten()


def scores_by_family(sentence: str) -> dict[str, tuple[float, float]]:
    """The scores of «bit» for the noun before it and the noun after it, in every family."""
    words, x = sentence.split(), vectors(sentence)
    m = words.index("bit")
    root = math.sqrt(D_MODEL)
    plain, absolute = example(sentence).scores[m], example(sentence, code=True).scores[m]

    def pair(value: Mapping[int, float]) -> tuple[float, float]:
        first, second = (round(float(value[n]), 2) + 0.0 for n in (1, 4))
        return first, second

    return {
        "no positions": pair({n: float(plain[n]) for n in (1, 4)}),
        "absolute": pair({n: float(absolute[n]) for n in (1, 4)}),
        "relative": pair({n: float(plain[n]) + LEARNED[n - m] for n in (1, 4)}),
        "ALiBi": pair({n: float(plain[n]) - SLOPE * abs(n - m) for n in (1, 4)}),
        "rotary": pair({n: float(turned(x[m], m) @ turned(x[n], n)) / root for n in (1, 4)}),
    }


@dataclass(frozen=True)
class Apart:
    """Shares of tokens and positions that a probe names from sums it has not seen.

    token, position: named by a linear map.
    position_after: the position whose code is nearest to what is left once the vector of the token
        that was named is subtracted.
    """

    token: float
    position: float
    position_after: float


def take_apart(tokens: Tensor, positions: Tensor, seed: int = 0) -> Apart:
    """How well one linear map names the token and the position of a sum of their vectors.

    The map is the least-squares fit to one-hot answers; a tenth of all pairs, chosen by the seed,
    is kept out of the fit and used for the measurement.

    Args:
        tokens: (V, D). positions: (L, D).
    """
    count, length = len(tokens), len(positions)
    pairs = torch.randperm(count * length, generator=torch.Generator().manual_seed(seed))
    held = len(pairs) // 10
    which, where = pairs // length, pairs % length
    sums = (tokens[which] + positions[where]).double()  # (V L, D)
    sums = torch.cat([sums, torch.ones(len(sums), 1, dtype=torch.float64)], 1)
    fit, test = sums[held:], sums[:held]
    answers = torch.zeros(count + length, fit.shape[1], dtype=torch.float64)
    answers.index_add_(0, which[held:], fit)
    answers.index_add_(0, count + where[held:], fit)
    ridge = 1e-6 * torch.eye(fit.shape[1], dtype=torch.float64)
    logits = test @ torch.linalg.solve(fit.T @ fit + ridge, answers.T)  # (held, V + L)
    which, where = which[:held], where[:held]
    named = logits[:, :count].argmax(1)
    rest = tokens[which] + positions[where] - tokens[named]  # (held, D)
    return Apart(
        (named == which).float().mean().item(),
        (logits[:, count:].argmax(1) == where).float().mean().item(),
        (torch.cdist(rest, positions).argmin(1) == where).float().mean().item(),
    )


# --------------------------------------------------------------------------- HTML


def table(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], caption: str, form: str = ".2f"
) -> str:
    """Numbers as an HTML table, blue for positive and orange for negative ones.

    Raises:
        ValueError: if the labels do not fit the values.
    """
    if values.shape != (len(rows), len(columns)):
        raise ValueError(f"{len(rows)} rows, {len(columns)} columns for {tuple(values.shape)}")
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in columns)
    lines = []
    for name, line in zip(rows, values.tolist(), strict=True):
        cells = "".join(f"<td style=--c:{_colour(v)}>{_number(v, form)}</td>" for v in line)
        lines.append(f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>")
    corner = "<td style='--c:none'></td>"
    return (
        f"<table class=heat style='font-size:13px'><caption>{html.escape(caption)}</caption>"
        f"<tr>{corner}{head}</tr>{''.join(lines)}</table>"
    )


def _number(value: float, form: str) -> str:
    text = format(value, form)
    return "0" if not text.strip("-0.") else text.replace("-", "−")


def _colour(value: float) -> str:
    """Nearly white for 0, light blue for 2 and light orange for -2 and beyond."""
    share = min(abs(value) / 2, 1.0)
    strong = (122, 173, 220) if value > 0 else (236, 160, 100)
    red, green, blue = (round(250 + (c - 250) * share) for c in strong)
    return f"#{red:02x}{green:02x}{blue:02x}"


def sum_page(sentence: str) -> str:
    """Embeddings, codes and their sum, side by side, as HTML."""
    words = sentence.split()
    x, p = vectors(sentence), codes(len(words))
    positions = [str(t) for t in range(len(words))]
    both = [f"{word}, {t}" for t, word in enumerate(words)]
    entries = [str(i) for i in range(D_MODEL)]
    return widgets.side_by_side(
        table(x, words, entries, "word: x", ".0f"),
        table(p, positions, entries, "+ position: p"),
        table(x + p, both, entries, "= input: x + p"),
    )


def order_page(sentence: str, code: bool, causal: bool) -> str:
    """Weights of all tokens of a sentence, and the outputs, as HTML."""
    found = example(sentence, code=code, causal=causal)
    rows = [f"{word}, {t}" for t, word in enumerate(found.words)]
    entries = [str(i) for i in range(D_MODEL)]
    return widgets.side_by_side(
        widgets.heat_table(found.weights, rows, found.words, "weights: rows are queries"),
        table(found.output, rows, entries, "outputs"),
    )


def requirements_page(reports: Mapping[str, Report], asked: Mapping[str, str]) -> str:
    """Which code meets which requirement, a line a requirement, as HTML.

    Args:
        reports: measured codes, by name.
        asked: the requirements that `Report.holds` names, in a few words each.
    """
    # Written upwards, so that all codes fit beside the requirements on a phone
    upwards = "writing-mode:vertical-rl;transform:rotate(180deg);text-align:left"
    head = "".join(
        f"<th scope=col><span style='{upwards}'>{html.escape(code)}</span></th>" for code in reports
    )
    lines = []
    for name, words in asked.items():
        cells = ""
        for report in reports.values():
            met = report.holds()[name]
            number = getattr(report, name.replace(" ", "_"))
            cells += (
                f"<td title='{number:.2g}' style=--c:{'#c9dff2' if met else '#f3cfb0'}>"
                f"{'✓' if met else '✗'}</td>"
            )
        lines.append(
            f"<tr><th scope=row style='text-align:left'><b>{html.escape(name)}</b>: "
            f"{html.escape(words)}</th>{cells}</tr>"
        )
    corner = "<td style='--c:none'></td>"
    return widgets.side_by_side(
        f"<table class=heat style='font-size:13px'><tr>{corner}{head}</tr>{''.join(lines)}</table>"
    )


# --------------------------------------------------------------------------- figures


def grid(
    ax: Axes, values: Tensor, rows: Sequence[str], columns: Sequence[str], title: str = "",
    form: str = ".0f",
) -> None:  # fmt: skip
    """A matrix with its numbers, negative ones in orange; nan is an empty column."""
    size = values.nan_to_num().abs()
    plots.attention_map(
        ax, size, rows, columns, title=title, limits=_LIMITS, row_label="", column_label=""
    )
    ax.set_aspect("auto")
    ax.tick_params(labelsize=10.5, labelrotation=0)
    for label in ax.get_xticklabels():
        label.set_horizontalalignment("center")
    for i, line in enumerate(values.tolist()):
        for j, value in enumerate(line):
            if math.isnan(value):
                ax.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fc=plots.SHEET, ec="none"))
                continue
            dark = abs(value) > 0.9
            if value < 0:
                ax.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fc="#f3cfb0", ec="none"))
            ax.text(
                j, i, _number(value, form), ha="center", va="center", fontsize=10,
                color="white" if dark and value > 0 else INK,
            )  # fmt: skip


def two_orders() -> Figure:
    """The vectors of both sentences, a row a token, and their sums."""
    figure, axes = plt.subplots(1, 2, figsize=(5.0, 2.6), gridspec_kw={"wspace": 0.1})
    for ax, sentence in zip(axes, SENTENCES, strict=True):
        x = vectors(sentence)
        summed = torch.cat([x, x.sum(0, keepdim=True)])
        grid(ax, summed, [*sentence.split(), "sum"], ["0", "1", "2", "3"], sentence)
        ax.axhline(len(x) - 0.5, color=INK, lw=1.2)
        ax.get_yticklabels()[-1].set_weight("bold")
    return figure


def attending(*found: Example, marked: Sequence[int] = ()) -> Figure:
    """Weights and outputs of examples, one below the other.

    Args:
        marked: rows with a frame.
    """
    figure, axes = plt.subplots(
        len(found), 1, figsize=(5.2, 0.3 + 2.0 * len(found)), squeeze=False,
        gridspec_kw={"hspace": 0.12},
    )  # fmt: skip
    for ax, one in zip(axes[:, 0], found, strict=True):
        length = len(one.words)
        gap = torch.full((length, 1), math.nan)
        values = torch.cat([one.weights, gap, one.output], 1)  # (T, T + 1 + 4)
        hidden = one.scores == -math.inf
        values[:, :length].masked_fill_(hidden, math.nan)
        columns = [*one.words, "", "0", "1", "2", "3"]
        grid(ax, values, one.words, columns, "", ".2f")
        ax.set_title("weights (rows are queries)", fontsize=10.5)
        ax.text(length + 2.5, -0.82, "outputs", ha="center", fontsize=10.5)
        for i, j in hidden.nonzero().tolist():
            ax.add_patch(
                plt.Rectangle(
                    (j - 0.5, i - 0.5), 1, 1, fc="#e6e3dc", ec="#bdb8ad", hatch="////", lw=0
                )
            )
        for row in marked:
            ax.add_patch(
                plt.Rectangle(
                    (length + 0.52, row - 0.48), 3.96, 0.96, fill=False, ec=PALETTE[1], lw=2
                )
            )
    return figure


def by_construction() -> Figure:
    """Entries 1 and 2 of a recurrent network's states and a convolution's outputs."""
    figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.3), gridspec_kw={"wspace": 0.1})
    for ax, sentence in zip(axes, SENTENCES, strict=True):
        h, y = recurrent(sentence)[:, 1:3], convolution(vectors(sentence))[:, 1:3]
        values = torch.cat([h, torch.full((len(h), 1), math.nan), y], 1)
        grid(ax, values, sentence.split(), ["1", "2", "", "1", "2"], "", ".3g")
        for x, text in ((0.5, "recurrent"), (3.5, "convolution")):
            ax.text(x, -0.75, text, ha="center", fontsize=10.5)
    return figure


def shares(found: Mapping[str, tuple[float, float]], chance: float) -> Figure:
    """Right answers, mean and spread, as bars beside their names, with a line for chance."""
    figure, ax = plt.subplots(figsize=(4.4, 0.8 + 0.32 * len(found)))
    for row, (name, (mean, spread)) in enumerate(found.items()):
        ax.barh(-row, 100 * mean, 0.62, xerr=100 * spread, color=PALETTE[0], ecolor=INK, alpha=0.85)
        ax.text(2, -row, f"{100 * mean:.0f} %", va="center", color="white", fontsize=10.5)
        ax.text(-2, -row, name, ha="right", va="center", fontsize=10.5)
    ax.axvline(100 * chance, color=INK, lw=1, ls="--")
    ax.text(100 * chance + 1, 0.5, "chance", fontsize=9.5, va="bottom")
    ax.set(xlim=(0, 104), ylim=(-len(found) + 0.4, 0.95), xlabel="right answers (%)")
    ax.set_yticks([])
    return figure


def families() -> Figure:
    """From a token to its output in attention, and where each family of positions comes in."""
    sheet = Sheet(13.6, 9.3)
    steps = (
        ("x", 8.65, "embedding $x_t$", "plain"),
        ("qk", 6.2, "query and key\n$q_t = x_tW_Q,\\ \\ k_t = x_tW_K$", "query"),
        ("score", 3.85, "score $e_{ij}=q_i\\cdot k_j/\\sqrt{d_k}$", "key"),
        ("weight", 2.0, "softmax: weights $A_{ij}$", "weights"),
        ("out", 0.55, "output $\\sum_j A_{ij}\\,v_j$", "output"),
    )
    for name, y, text, kind in steps:
        sheet.node(
            name, 3.2, y, text, kind, width=5.8, height=1.4 if name == "qk" else 0.95, size=11
        )
    for one, other in (("x", "qk"), ("qk", "score"), ("score", "weight"), ("weight", "out")):
        sheet.link(one, other, start="bottom", end="top")
    arrivals = (
        (7.55, "absolute: sinusoids, learned", "$x_t + p_t$", 0),
        (4.95, "rotary (RoPE)", "$R_tq_t,\\ \\ R_tk_t$", 2),
        (2.95, "relative, ALiBi", "$e_{ij} + b_{j-i}$", 1),
    )
    for y, name, formula, colour in arrivals:
        sheet.text(10.3, y + 0.4, name, 11, color=PALETTE[colour], weight="bold")
        sheet.text(10.3, y - 0.4, formula, 12.5)
        sheet.arrow((6.9, y), (3.35, y), color=PALETTE[colour])
        sheet.dot(3.2, y, PALETTE[colour])
    return sheet.figure


def ratios(found: Mapping[str, tuple[float, float]]) -> Figure:
    """Size of embeddings relative to the codes, as initialised and times the root of the width."""
    figure, ax = plt.subplots(figsize=(4.4, 0.8 + 0.42 * len(found)))
    for row, (plain, scaled) in enumerate(found.values()):
        ax.annotate(
            "", (scaled, -row), (plain, -row),
            arrowprops={"arrowstyle": "-|>", "color": PALETTE[0], "lw": 1.8, "shrinkA": 4},
        )  # fmt: skip
        ax.plot([plain], [-row], "o", color=PALETTE[0])
        for size in (plain, scaled):
            ax.text(
                size, -row + 0.2, f"{size:.2g}", ha="center", va="bottom", fontsize=10,
                bbox={"fc": plots.SHEET, "ec": "none", "pad": 0.6},
            )  # fmt: skip
    ax.axvline(1, color=INK, lw=1, ls="--")
    ax.set_xscale("log")
    ax.set(
        xlim=(0.004, 90), ylim=(-len(found) + 0.5, 0.75),
        xlabel="embedding / code, without and with √D",
    )  # fmt: skip
    ax.set_yticks([-row for row in range(len(found))], list(found))
    ax.tick_params(axis="y", length=0, labelsize=10.5)
    ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
    return figure


def spreads(found: Mapping[str, Tensor]) -> Figure:
    """Histograms of entries, a panel each, with what lies outside [-1, 1] in another colour."""
    figure, axes = plt.subplots(1, len(found), figsize=(5.0, 2.1), sharey=True)
    for ax, (name, values) in zip(axes, found.items(), strict=True):
        entries = values.flatten()
        _, _, bars = ax.hist(plots.array(entries), bins=40, range=(-5, 5), density=True)
        for bar in bars:
            outside = bar.get_x() < -1.01 or bar.get_x() > 0.99
            bar.set_facecolor(PALETTE[1 if outside else 0])
        share = (entries.abs() > 1).float().mean().item()
        ax.set_title(f"{name}\n{100 * share:.0f} % outside", fontsize=10.5)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.set_xticks([-4, -1, 1, 4])
    return figure


def matrix(
    values: Tensor, rows: Sequence[str], columns: Sequence[str], form: str = ".1f"
) -> Figure:
    """One matrix with its numbers."""
    figure, ax = plt.subplots(figsize=(1.4 + 0.6 * len(columns), 0.4 + 0.33 * len(rows)))
    grid(ax, values, rows, columns, "", form)
    return figure


def gradients(right: Tensor, wrong: Tensor) -> Figure:
    """The gradient of the embedding matrix (4, 4), right and wrong."""
    figure, axes = plt.subplots(1, 2, figsize=(4.8, 1.8), gridspec_kw={"wspace": 0.1})
    names = [f"{i} {word}" for i, word in enumerate(VOCABULARY)]
    entries = [str(i) for i in range(D_MODEL)]
    for ax, values, title in zip(axes, (right, wrong), ("right", "padding_idx=0"), strict=True):
        grid(ax, values, names, entries, title)
    return figure


def sizes(found: Mapping[str, float], code: float) -> Figure:
    """Lengths of one embedding by version, beside the length of a position code."""
    figure, ax = plt.subplots(figsize=(4.4, 0.75 + 0.32 * len(found)))
    for row, (name, size) in enumerate(found.items()):
        ax.barh(-row, size, 0.62, color=PALETTE[0 if row == 0 else 1], alpha=0.85)
        ax.text(size + 0.04, -row, f"{size:.2f}", va="center", fontsize=10.5)
        ax.text(-0.06, -row, name, ha="right", va="center", fontsize=10.5)
    ax.axvline(code, color=INK, lw=1.2, ls="--")
    ax.text(code + 0.04, 0.48, "a position code", fontsize=10, va="bottom")
    ax.set(ylim=(-len(found) + 0.4, 1.0), xlabel="length of the vector of «dog»")
    ax.set_xlim(0, 1.15 * max(found.values()))
    ax.set_yticks([])
    return figure
