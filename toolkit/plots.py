"""Figures used throughout the book: attention maps, masks, curves.

Every figure is drawn on an opaque, near-white sheet, because the page behind it may be white or
nearly black. Colours come from palettes that stay distinguishable to colour-blind readers, and
every number that matters is printed as well as coloured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

INK = "#22252b"
SHEET = "#fbfaf7"
PALETTE = ("#1f6fb2", "#d1651c", "#3c8d5a", "#8b4fa8", "#b03a48", "#7a6a1f")
MAP = "Blues"

_STYLE = {
    "figure.facecolor": SHEET,
    "savefig.facecolor": SHEET,
    "axes.facecolor": SHEET,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.12,
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": plt.cycler(color=PALETTE),
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def use_style() -> None:
    """Set the book's look for every figure drawn from now on."""
    plt.rcParams.update(_STYLE)


def array(values: Any) -> np.ndarray:
    """A float array from a tensor (any device, with or without gradient) or from anything else."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    return np.asarray(values, dtype=float)


def attention_map(
    ax: Axes,
    weights: Any,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    title: str = "",
    numbers: bool | str = False,
    limits: tuple[float, float] | None = (0.0, 1.0),
    cmap: str = MAP,
    row_label: str = "query",
    column_label: str = "key",
) -> Axes:
    """Draw one attention map, queries down, keys across.

    Args:
        ax: where to draw.
        weights: (Tq, Tk); entries of -inf are drawn hatched and printed as «−∞».
        rows, columns: tokens; their numbers if not given.
        numbers: print each entry; a string is its format, such as ".2f".
        limits: colour range, None for the range of the finite entries.

    Raises:
        ValueError: if `weights` is not a matrix or the labels do not fit it.
    """
    matrix = array(weights)
    if matrix.ndim != 2:
        raise ValueError(f"an attention map is a matrix; this has shape {matrix.shape}")
    rows = [str(i) for i in range(matrix.shape[0])] if rows is None else list(rows)
    columns = [str(j) for j in range(matrix.shape[1])] if columns is None else list(columns)
    if (len(rows), len(columns)) != matrix.shape:
        raise ValueError(
            f"{len(rows)} row and {len(columns)} column labels for a map of shape {matrix.shape}"
        )
    shown = np.ma.masked_invalid(matrix)
    low, high = limits if limits is not None else (float(shown.min()), float(shown.max()))
    image = ax.imshow(shown, cmap=cmap, vmin=low, vmax=high, aspect="equal")
    ax.patch.set_facecolor("#e6e3dc")  # what shows through where an entry is -inf
    ax.patch.set_hatch("////")
    ax.patch.set_edgecolor("#bdb8ad")
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    if max((len(c) for c in columns), default=0) > 2:
        ax.tick_params(axis="x", labelrotation=60)
        for label in ax.get_xticklabels():
            label.set_horizontalalignment("right")
            label.set_rotation_mode("anchor")
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set_xlabel(column_label)
    ax.set_ylabel(row_label)
    ax.set_title(title)
    if numbers:
        form = numbers if isinstance(numbers, str) else ".2f"
        for i, j in np.ndindex(*matrix.shape):
            value = matrix[i, j]
            text = format(value, form) if np.isfinite(value) else "−∞"
            # Luminance of the cell decides between dark and light text.
            red, green, blue, _ = image.cmap(image.norm(value)) if np.isfinite(value) else (1,) * 4
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
            ax.text(
                j, i, text.replace("-", "−"), ha="center", va="center", fontsize=8.5,
                color="white" if dark else INK,
            )  # fmt: skip
    return ax


def mask_map(
    ax: Axes, mask: Any, *, title: str = "", row_label: str = "query position",
    column_label: str = "key position",
) -> Axes:  # fmt: skip
    """Draw a boolean mask (Tq, Tk): dark where the query may attend."""
    matrix = array(mask)
    attention_map(
        ax, matrix, title=title, row_label=row_label, column_label=column_label, cmap="Blues",
        limits=(0.0, 1.25),
    )  # fmt: skip
    ax.set_xticks(np.arange(-0.5, matrix.shape[1]), minor=True)
    ax.set_yticks(np.arange(-0.5, matrix.shape[0]), minor=True)
    ax.grid(which="minor", color=SHEET, linewidth=1.2)
    ax.tick_params(which="minor", length=0)
    return ax


def curves(
    ax: Axes,
    x: Any,
    series: Mapping[str, Any],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    dashed: Sequence[str] = (),
) -> Axes:
    """Labelled lines over a common x; names in `dashed` are drawn as references.

    Raises:
        ValueError: if a series has another length than x.
    """
    across = array(x)
    for index, (name, values) in enumerate(series.items()):
        heights = array(values)
        if heights.shape != across.shape:
            raise ValueError(f"{name!r} has {heights.size} values for {across.size} of x")
        marker, line = ("", "--") if name in dashed else ("o", "-")
        ax.plot(across, heights, line, marker=marker, label=name, color=PALETTE[index % 6])
    if log_x:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
    if log_y:
        ax.set_yscale("log")
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.set_title(title)
    if len(series) > 1:
        ax.legend()
    return ax
