"""The results of Vaswani et al. (2017), Table 2, as numbers, a table and a picture."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from toolkit import plots
from toolkit.transformer.translator_experiments import GROUPS, TRANSLATORS, Found


class System(NamedTuple):
    """A row of the table.

    what: what it is made of. path: the longest path between two source positions in the encoder.
    de, fr: BLEU on newstest2014, None where the table has none. cost_de, cost_fr: operations of the
    training, as the paper estimates them.
    """

    name: str
    what: str
    path: str
    de: float | None
    fr: float | None
    cost_de: float | None
    cost_fr: float | None


TABLE = (
    System("ByteNet", "dilated convolutions", "log n", 23.75, None, None, None),
    System("Deep-Att + PosUnk", "deep LSTM, attention", "n", None, 39.2, None, 1.0e20),
    System("GNMT + RL", "8-layer LSTM, attention", "n", 24.6, 39.92, 2.3e19, 1.4e20),
    System("ConvS2S", "gated convolutions, attention", "n/k", 25.16, 40.46, 9.6e18, 1.5e20),
    System("MoE", "LSTM, mixture of experts", "n", 26.03, 40.56, 2.0e19, 1.2e20),
    System("Deep-Att ensemble", "several of the above", "n", None, 40.4, None, 8.0e20),
    System("GNMT ensemble", "several of the above", "n", 26.30, 41.16, 1.8e20, 1.1e21),
    System("ConvS2S ensemble", "several of the above", "n/k", 26.36, 41.29, 7.7e19, 1.2e21),
    System("Transformer, base", "self-attention", "1", 27.3, 38.1, 3.3e18, 3.3e18),
    System("Transformer, big", "self-attention", "1", 28.4, 41.8, 2.3e19, 2.3e19),
)
_HEAD = (
    "system", "made of", "path", "EN-DE BLEU", "EN-FR BLEU", "EN-DE operations",
    "EN-FR operations",
)  # fmt: skip


def system(name: str) -> System:
    """The row of that name."""
    return next(row for row in TABLE if row.name == name)


def earlier() -> list[System]:
    """All rows but the Transformers."""
    return [row for row in TABLE if not row.name.startswith("Transformer")]


def power(x: float | None) -> str:
    """A number of operations as one reads it, in HTML."""
    if x is None:
        return ""
    digits, exponent = f"{x:.1e}".split("e+")
    return f"{digits}·10<sup>{int(exponent)}</sup>"


def table(rows: Sequence[System] = TABLE) -> str:
    """The table in HTML; it scrolls where the page is narrow."""
    lines = []
    for row in rows:
        cells = [row.what, row.path, row.de, row.fr]
        written = ["" if cell is None else html.escape(str(cell)) for cell in cells]
        written += [power(row.cost_de), power(row.cost_fr)]
        lines.append(
            f"<tr><th scope=row style='font-weight:normal;text-align:left'>{row.name}</th>"
            + "".join(f"<td>{cell}</td>" for cell in written)
            + "</tr>"
        )
    head = "".join(f"<th scope=col>{name}</th>" for name in _HEAD)
    return (
        "<div style='overflow-x:auto'><table style='font-size:13px'><thead><tr>"
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


# Where the label of a point stands, as a shift in points, and which side of it is at the point
_LABELS = {
    ("EN-DE", "ConvS2S ensemble"): (-6, 7, "right"),
    ("EN-DE", "GNMT ensemble"): (-2, -15, "right"),
    ("EN-DE", "MoE"): (-7, 3, "right"),
    ("EN-DE", "GNMT + RL"): (7, -4, "left"),
    ("EN-DE", "Transformer, big"): (7, -4, "left"),
    ("EN-FR", "MoE"): (-7, 3, "right"),
    ("EN-FR", "ConvS2S ensemble"): (4, 8, "right"),
    ("EN-FR", "GNMT ensemble"): (-8, -5, "right"),
    ("EN-FR", "Deep-Att ensemble"): (40, -16, "right"),
    ("EN-FR", "GNMT + RL"): (-7, -6, "right"),
    ("EN-FR", "Deep-Att + PosUnk"): (-7, -6, "right"),
    ("EN-FR", "ConvS2S"): (7, -7, "left"),
}


def scores_and_costs() -> Figure:
    """BLEU against operations, English-German above, English-French below."""
    figure, axes = plt.subplots(2, 1, figsize=(5.6, 6.2), sharex=True)
    for ax, pair in zip(axes, ("EN-DE", "EN-FR"), strict=True):
        for row in TABLE:
            score, cost = (row.de, row.cost_de) if pair == "EN-DE" else (row.fr, row.cost_fr)
            if score is None or cost is None:
                continue
            ours = row.name.startswith("Transformer")
            ax.semilogx(cost, score, "o", ms=6, color=plots.PALETTE[0 if ours else 1])
            across, up, side = _LABELS.get((pair, row.name), (7, -3, "left"))
            ax.annotate(
                row.name, (cost, score), (across, up), textcoords="offset points", ha=side,
                fontsize=10,
            )  # fmt: skip
        ax.set(ylabel="BLEU", title={"EN-DE": "English-German", "EN-FR": "English-French"}[pair])
        ax.margins(y=0.12)
    axes[1].set_xlim(1.5e18, 3e21)
    axes[1].set_xlabel("operations of the training")
    return figure


def by_length(found: Mapping[str, Found]) -> Figure:
    """Share of exact sentences by length, a line for each of the four translators.

    A line is the mean over the seeds, the band around it reaches from the least to the largest.
    """
    figure, ax = plt.subplots(figsize=(6.2, 3.0))
    at = range(len(GROUPS))
    for name, color in zip(TRANSLATORS, plots.PALETTE, strict=False):
        spans = [found[name].span(group) for group in GROUPS]
        low, high = ([100 * share for share in ends] for ends in zip(*spans, strict=True))
        ax.fill_between(at, low, high, color=color, alpha=0.2, lw=0)
        means = [100 * found[name].mean(group) for group in GROUPS]
        ax.plot(at, means, "o-", color=color, label=name)
    ax.set_xticks(at, ["shortest third", "middle third", "longest third"])
    ax.set(ylabel="exactly right, %", ylim=(-4, 104))
    ax.legend(fontsize=10.5)
    return figure
