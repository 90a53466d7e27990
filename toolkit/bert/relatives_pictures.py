"""Pictures of the pages about BERT's relatives, from ELMo to ELECTRA.

The sentences are the chapter's: «the file is open» and «close it».
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from toolkit.bert.relatives_experiments import Found
from toolkit.diagrams import FAINT, SOFT, Sheet, tint
from toolkit.plots import INK, PALETTE, attention_map

FILE = ["the", "file", "is", "open"]
CLOSE = ["close", "it"]
# What the example's generator and discriminator say on the page about ELECTRA
GENERATOR = {"closed": 0.5, "open": 0.3, "empty": 0.2}
DRAWN = ["the", "file", "is", "closed"]
REPLACED = [0.1, 0.1, 0.2, 0.6]


def maskings(panels: Mapping[str, Tensor], tokens: Sequence[str]) -> Figure:
    """Which tokens of one sentence are chosen in which epoch: a panel of (epochs, T) each."""
    figure, axes = plt.subplots(1, len(panels), figsize=(6.0, 4.4), sharey=True)
    for ax, (name, chosen) in zip(axes, panels.items(), strict=True):
        ax.imshow(chosen.float(), cmap="Blues", vmin=0, vmax=1.25, aspect="auto")
        never = ~chosen.any(0)
        for t in range(len(tokens)):
            if never[t]:
                ax.axvspan(t - 0.5, t + 0.5, color=tint(PALETTE[1], 0.35), lw=0)
        ax.set_xticks(range(len(tokens)), tokens, rotation=75, fontsize=10)
        ax.set_title(name, fontsize=11.5)
        ax.set_yticks([0, 9, 19, 29, 39], ["1", "10", "20", "30", "40"])
        ax.tick_params(length=0)
    axes[0].set_ylabel("epoch", fontsize=11)
    return figure


def parameter_bars(parts: Mapping[str, Mapping[str, float]]) -> Figure:
    """Millions of parameters of models, as bars made of parts."""
    figure, ax = plt.subplots(figsize=(6.0, 2.5))
    names = list(parts)
    for y, name in enumerate(names):
        left = 0.0
        for number, (part, millions) in enumerate(parts[name].items()):
            ax.barh(y, millions, left=left, color=PALETTE[number], height=0.6,
                    label=part if y == 0 else None)  # fmt: skip
            left += millions
        ax.text(left + 1, y, f"{left:.1f} M", va="center", fontsize=11.5)
    ax.set_yticks(range(len(names)), names, fontsize=11.5)
    ax.invert_yaxis()
    ax.set_xlim(0, 128)
    ax.set_xlabel("millions of parameters")
    figure.legend(loc="outside lower center", ncols=3, fontsize=10.5)
    return figure


def _band(ax: Axes, x: Sequence[float], values: Tensor, label: str, colour: str, line: str) -> None:
    """Mean of the seeds (the first dimension), and the range from the lowest to the highest."""
    ax.plot(x, values.mean(0), line, color=colour, label=label, ms=4)
    ax.fill_between(x, values.amin(0), values.amax(0), color=colour, alpha=0.16, lw=0)


def seeds(found: Mapping[str, Found], prefix: str, *, x: str, y: str) -> Figure:
    """What the variants reached, a line each with the range of the seeds.

    Args:
        prefix: of the columns, such as "step ".
    """
    figure, ax = plt.subplots(figsize=(6.0, 3.5))
    for (name, one), colour, line in zip(
        found.items(), PALETTE, ("o-", "s--", "^-.", "D:"), strict=False
    ):
        numbers, values = one.curve(prefix)
        _band(ax, numbers, values, f"{name} ({one.lr:g})", colour, line)
    ax.set(xlabel=x, ylabel=y)
    figure.legend(loc="outside lower center", ncols=1 if len(found) > 3 else 2, fontsize=10.5)
    return figure


def electra_example() -> Figure:
    """«the file is open» through generator and discriminator, with the page's numbers."""
    sheet = Sheet(14.0, 8.6)
    columns = (4.6, 7.0, 9.4, 12.0)
    lines = {
        "text": (8.0, FILE),
        "masked": (6.5, [*FILE[:3], "[MASK]"]),
        "drawn": (4.2, DRAWN),
        "replaced?": (1.6, [f"{p}" for p in REPLACED]),
        "in truth": (0.5, ["no", "no", "no", "yes"]),
    }
    for name, (y, words) in lines.items():
        sheet.text(0.1, y, name, 12, ha="left", color=SOFT)
        for x, word in zip(columns, words, strict=True):
            changed = word in ("[MASK]", "closed", "0.6", "yes")
            sheet.text(x, y, word, 13, color=PALETTE[1] if changed else INK)
    sheet.node("g", 8.0, 5.35, "generator: closed 0.5, open 0.3, empty 0.2", "value", width=11.6,
               height=0.95, size=11.5)  # fmt: skip
    sheet.node("d", 8.0, 2.85, "discriminator: a probability for every token", "weights",
               width=11.6, height=0.95, size=11.5)  # fmt: skip
    for x in columns:
        sheet.arrow((x, 7.7), (x, 6.85), color=FAINT)
    sheet.arrow((columns[3], 6.2), (columns[3], 5.85))
    sheet.arrow((columns[3], 4.85), (columns[3], 4.5))
    for x in columns:
        sheet.arrow((x, 3.9), (x, 3.35))
        sheet.arrow((x, 2.35), (x, 1.95))
    return sheet.figure


def halves(
    maps: Mapping[str, Tensor],
    tokens: Sequence[str] = FILE,
    *,
    row_label: str = "vector of",
    column_label: str = "",
) -> Figure:
    """Which token moves which output: bool maps (T, T), a panel each."""
    figure, axes = plt.subplots(1, len(maps), figsize=(6.0, 2.8), sharey=True)
    for ax, (name, found) in zip(axes, maps.items(), strict=True):
        attention_map(ax, found.float(), tokens, tokens, title=name, limits=(0, 1.25),
                      row_label="", column_label=column_label)  # fmt: skip
        _grid(ax, found)
        ax.tick_params(labelsize=11)
    axes[0].set_ylabel(row_label, fontsize=11)
    return figure


def two_masks(order: Tensor, content: Tensor, query: Tensor) -> Figure:
    """XLNet's masks for «the file is open»; beside each row its number in the order."""
    figure, axes = plt.subplots(1, 2, figsize=(6.0, 3.2), sharey=True)
    rank = order.argsort().tolist()
    ordinals = ("1st", "2nd", "3rd", "4th")
    rows = [f"{word} ({ordinals[rank[i]]})" for i, word in enumerate(FILE)]
    for ax, (name, mask) in zip(axes, {"query mask": query, "content mask": content}.items(),
                                strict=True):  # fmt: skip
        attention_map(ax, mask.float(), rows, FILE, title=name, limits=(0, 1.25), row_label="",
                      column_label="may be seen")  # fmt: skip
        _grid(ax, mask)
        ax.tick_params(labelsize=11)
    return figure


def _grid(ax: Axes, matrix: Tensor) -> None:
    ax.set_xticks(np.arange(-0.5, matrix.shape[1]), minor=True)
    ax.set_yticks(np.arange(-0.5, matrix.shape[0]), minor=True)
    ax.grid(which="minor", color=FAINT, linewidth=1)
    ax.tick_params(which="minor", length=0)


ORDERS = {
    "from the left": (0, 1, 2, 3),
    "3 1 0 2": (3, 1, 0, 2),
    "from the right": (3, 2, 1, 0),
}


def prediction(name: str, step: str) -> str:
    """One step of predicting «the file is open» in one of `ORDERS`, as HTML."""
    order, k = ORDERS[name], int(step) - 1
    known, target = order[:k], order[k]
    cells = []
    for i, word in enumerate(FILE):
        if i == target:
            style, text = "background:#b3530f;color:#fff", f"predict: {word}"
        elif i in known:
            style, text = f"background:{PALETTE[0]};color:#fff", word
        else:
            style, text = "background:#e6e3dc;color:#22252b", "not seen"
        cells.append(f"<td style='{style};padding:.5em .7em;text-align:center'>{text}</td>")
    head = "".join(f"<th style='padding:.2em .7em'>position {i}</th>" for i in range(4))
    given = ", ".join(f"«{FILE[i]}» at {i}" for i in sorted(known)) or "nothing but the position"
    return (
        f"<table><tr>{head}</tr><tr>{''.join(cells)}</tr></table>"
        f"<p>«{FILE[target]}» is predicted at position {target}, given: {given}.</p>"
    )


def distances() -> Figure:
    """Keys, queries and distances of the segment «close it» with the memory «the file is open»."""
    words = [*FILE, *CLOSE]
    total, length = len(words), len(CLOSE)
    figure, ax = plt.subplots(figsize=(6.0, 2.5))
    for row in range(length):
        for column in range(total):
            distance = total - length + row - column
            inside = distance >= 0
            memory = column < total - length
            colour = tint(PALETTE[1], 0.30) if memory else tint(PALETTE[0], 0.30)
            ax.add_patch(plt.Rectangle((column, -row - 1), 0.96, 0.94, lw=0,
                                       color=colour if inside else "#e6e3dc"))  # fmt: skip
            ax.text(column + 0.48, -row - 0.53, str(distance) if inside else "–", ha="center",
                    va="center", fontsize=14)  # fmt: skip
    ax.set(xlim=(-0.05, total), ylim=(-length - 0.05, 0.75))
    ax.set_xticks(np.arange(total) + 0.48, words, fontsize=12)
    ax.set_yticks([-0.53 - r for r in range(length)], CLOSE, fontsize=12)
    ax.tick_params(length=0)
    ax.text(2, 0.2, "memory: no gradient", ha="center", fontsize=12, color=PALETTE[1])
    ax.text(5, 0.2, "segment", ha="center", fontsize=12, color=PALETTE[0])
    for spine in ax.spines.values():
        spine.set_visible(False)
    return figure


def reach(layers: int = 3, segment: int = 2, memory: int = 2) -> Figure:
    """States by layer (rows) and position (columns): what the last state of the top depends on."""
    total = 4 * segment
    begin = [t // segment * segment for t in range(total)]
    seen = [{total - 1}]
    for _ in range(layers):
        seen.append({j for t in seen[-1] for j in range(max(begin[t] - memory, 0), t + 1)})
    figure, ax = plt.subplots(figsize=(6.0, 3.0))
    for down, found in enumerate(seen):
        y = layers - down
        for t in range(total):
            on = t in found
            ax.plot(t, y, "o", ms=17, color=PALETTE[0] if on else "#e6e3dc")
        if down < layers:
            for t in found:
                for j in range(max(begin[t] - memory, 0), t + 1):
                    ax.plot([t, j], [y, y - 1], color=FAINT, lw=0.9, zorder=0)
    for border in range(segment, total, segment):
        ax.axvline(border - 0.5, color=INK, lw=0.9, ls=":")
    ax.set(xlim=(-0.6, total - 0.4), ylim=(-0.5, layers + 0.5))
    ax.set_yticks(range(layers + 1), ["input", *(f"layer {n}" for n in range(1, layers + 1))],
                  fontsize=11.5)  # fmt: skip
    ax.set_xticks([segment * k + (segment - 1) / 2 for k in range(4)],
                  [f"segment {k}" for k in range(1, 5)], fontsize=11.5)  # fmt: skip
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return figure
