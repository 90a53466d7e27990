"""The page on layer normalisation: a batch of four tokens whose numbers come out even, drawn."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import plots
from toolkit.diagrams import tint
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE, SHEET

# Two sentences, «cats sleep» and «it», the second filled up. Each real row, and the first column,
# has a standard deviation of 3.
TOKENS = ("cats", "sleep", "it", "<pad>")
VECTORS = ((8.0, 2, 2, 0), (2.0, 8, 2, 8), (2.0, 8, 8, 10))
KINDS = ("layer norm", "batch norm, training", "batch norm, evaluation")
_TABLE = (
    "<style>table.moved{width:auto!important;border-collapse:collapse;margin:.4em 0}"
    "table.moved :is(td,th,caption){border:0!important;padding:.15em .7em;text-align:right;"
    "background:none!important;color:inherit;font-weight:normal;line-height:1.5}"
    "table.moved caption{caption-side:top;text-align:left}"
    "table.moved td.m{background:#ffd9b8!important;color:#22252b!important;font-weight:bold}"
    "table.moved tr.p :is(td,th){opacity:.8}</style>"
)


def batch(pad: float = 0.0) -> Tensor:
    """The example (4, 4), a row a token; every entry of the padding is `pad`."""
    return torch.cat([torch.tensor(VECTORS), torch.full((1, 4), float(pad))])


def normalise(kind: str, x: Tensor) -> Tensor:
    """A normalisation without scale and shift: (N, 4) -> (N, 4).

    Args:
        kind: one of `KINDS`. In evaluation mode the running averages are those of `batch(0)`.

    Raises:
        ValueError: another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
    if kind == "layer norm":
        return F.layer_norm(x, x.shape[-1:])
    before = batch()
    mean, variance = before.mean(0), before.var(0, unbiased=False)
    return F.batch_norm(x, mean, variance, training=kind.endswith("training"), momentum=0.0)


def moved(kind: str, pad: float) -> str:
    """The normalised batch as an HTML table; entries that the padding has moved stand out."""
    found, before = normalise(kind, batch(pad)), normalise(kind, batch())
    rows = []
    for row, (token, entries) in enumerate(zip(TOKENS, found.tolist(), strict=True)):
        padding = row == len(TOKENS) - 1
        cells = ""
        for column, entry in enumerate(entries):
            shown, old = (f"{value + 0.0:.2f}" for value in (entry, before[row, column].item()))
            mark = "" if padding or shown == old else " class=m"
            cells += f"<td{mark}>{_minus(shown)}</td>"
        rows.append(
            f"<tr{' class=p' if padding else ''}><th scope=row>{html.escape(token)}</th>"
            f"{cells}</tr>"
        )
    head = "".join(f"<th scope=col>{i}</th>" for i in range(1, 5))
    caption = f"{kind}; the padding holds {pad:g}"
    return (
        f"{_TABLE}<table class=moved><caption>{caption}</caption>"
        f"<tr><th>feature</th>{head}</tr>{''.join(rows)}</table>"
    )


def _minus(text: str) -> str:
    return "0.00" if text == "-0.00" else text.replace("-", "−")


# --------------------------------------------------------------------------- figures


def axes_of(pad: float = 0.0) -> Figure:
    """What is averaged together: the features of a token, or one feature of all tokens."""
    x = batch(pad)
    figure, panels = plt.subplots(1, 2, figsize=(5.6, 2.75))
    for panel, (ax, title) in enumerate(zip(panels, ("layer norm", "batch norm"), strict=True)):
        ax.set(xlim=(-0.1, 6.0 if panel == 0 else 4.1), ylim=(-5.9, 0.2))
        ax.set_title(title, loc="center")
        ax.axis("off")
        for row, column in ((r, c) for r in range(4) for c in range(4)):
            group = column if panel else row
            ax.add_patch(
                Rectangle(
                    (column + (0.04 if panel else 0), -row - (1 if panel else 0.96)),
                    *((0.92, 1) if panel else (1, 0.92)),
                    fc=tint(PALETTE[group], 0.4), ec="none", gid=f"{panel}:{row}:{column}",
                )
            )  # fmt: skip
            ax.text(column + 0.5, -row - 0.5, f"{x[row, column]:g}", ha="center", va="center",
                    fontsize=11.5)  # fmt: skip
        for group in range(4):
            values = x[:, group] if panel else x[group]
            spread = math.sqrt(values.var(unbiased=False).item())
            if panel:
                ax.text(group + 0.5, -4.5, f"{values.mean():.3g}\n±{spread:.2g}", ha="center",
                        va="center", fontsize=10.5)  # fmt: skip
            else:
                ax.text(4.2, -group - 0.5, f"{values.mean():.2g} ± {spread:.2g}", ha="left",
                        va="center", fontsize=10.5)  # fmt: skip
                ax.text(-0.25, -group - 0.5, TOKENS[group], ha="right", va="center", fontsize=11)
        ax.text(2, -5.6, "a mean for each " + ("feature" if panel else "token"), ha="center",
                fontsize=10.5)  # fmt: skip
    return figure


def compared(results: Mapping[str, Tensor], columns: Sequence[str]) -> Figure:
    """Results (D,) of several norms, a row each, with their numbers; NaN is said in words."""
    values = torch.stack([one.detach() for one in results.values()])  # (N, D)
    figure, ax = plt.subplots(figsize=(5.4, 0.5 + 0.42 * len(results)))
    shown = plots.array(values)
    ax.imshow(shown, cmap="PuOr_r", vmin=-4, vmax=4, aspect="auto")
    for row, line in enumerate(shown):
        for column, value in enumerate(line):
            text = "NaN" if math.isnan(value) else _minus(f"{value:.2f}")
            ax.text(column, row, text, ha="center", va="center", fontsize=11)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(results)), list(results))
    ax.set_yticks([row + 0.5 for row in range(len(results) - 1)], minor=True)
    ax.grid(which="minor", axis="y", color=SHEET, lw=3)
    ax.tick_params(which="both", length=0, labelsize=10.5)
    ax.spines[:].set_visible(False)
    return figure


def strips(stages: Mapping[str, Tensor], marked: int) -> Figure:
    """The numbers of one token (D,) at several stages, a row of dots each, one feature marked."""
    figure, ax = plt.subplots(figsize=(5.6, 0.6 + 0.5 * len(stages)))
    for row, values in enumerate(stages.values()):
        numbers = values.tolist()
        ax.plot(numbers, [row] * len(numbers), "o", color=PALETTE[0], ms=6, alpha=0.3, mec="none")
        ax.plot([numbers[marked]], [row], "o", color=PALETTE[1], ms=8)
        ax.text(numbers[marked], row - 0.22, _minus(f"{numbers[marked]:.2f}"), ha="center",
                va="bottom", color="#a84c10", fontsize=10.5)  # fmt: skip
    ax.axvline(0, color=INK, lw=0.6, ls=":")
    ax.set_yticks(range(len(stages)), list(stages))
    ax.set_ylim(len(stages) - 0.6, -0.75)
    ax.tick_params(axis="y", length=0, labelsize=10.5)
    return figure


# --------------------------------------------------------------------------- a trained model


@torch.no_grad()
def at_norm(
    shipped: Shipped, text: str, layer: int = 0, sublayer: int = 0
) -> tuple[nn.Module, Tensor]:
    """A norm in the encoder of the shipped translator, and what it is given for a sentence.

    Returns:
        The norm and its input (S, D).
    """
    norm = shipped.model.encoder.layers[layer].sublayer[sublayer].norm
    given: list[Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    ids = torch.tensor([shipped.tokenizer.encode(text)])  # (1, S)
    try:
        shipped.model(ids, ids[:, :1])
    finally:
        handle.remove()
    return norm, given[0][0]
