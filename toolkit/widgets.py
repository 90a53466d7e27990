"""Widgets that move on a static page, without a kernel.

Every frame is computed beforehand. `frames` holds one for each combination of its controls in
nested `Stack`s, and `jsdlink` lets a control choose the page of a stack in the browser. Nothing
here calls back into Python. Frames are HTML tables: small, as wide as the screen allows, and
readable by a screen reader.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from toolkit.plots import array

# One style sheet per frame keeps the cells short. Dark text on light cells and the reverse, on a
# sheet of its own, so that the table reads the same on a light and on a dark page; !important,
# because the theme takes the background from every table.
_STYLE = (
    "<style>table.heat{border-collapse:collapse;font-size:11px;line-height:1.5;margin:.3em;"
    "width:auto!important;background:#fbfaf7!important;color:#22252b!important}"
    "table.heat :is(th,caption){padding:.15em .35em;font-weight:normal!important;border:0;"
    "color:#22252b!important;background:none!important}"
    "table.heat caption{caption-side:top;text-align:left}"
    "table.heat td{padding:.15em .3em;text-align:center;min-width:2.1em;border:0;"
    "color:#000!important;background:var(--c,#f7f9fc)!important}"
    "table.heat td.z{color:#5b6069!important}table.heat td.d{color:#fff!important}"
    ".heats{display:flex;flex-wrap:wrap;max-width:100%;overflow-x:auto}</style>"
)


def heat_table(
    weights: Any, rows: Sequence[str], columns: Sequence[str], caption: str, digits: int = 2
) -> str:
    """One attention map (Tq, Tk) as an HTML table, coloured and numbered.

    Raises:
        ValueError: if the labels do not fit the map.
    """
    matrix = array(weights)
    if matrix.shape != (len(rows), len(columns)):
        raise ValueError(f"{len(rows)} rows and {len(columns)} columns for {matrix.shape}")
    head = "".join(f"<th scope=col>{html.escape(c)}</th>" for c in columns)
    lines = []
    for name, line in zip(rows, matrix, strict=True):
        cells = "".join(_cell(value, digits) for value in line)
        lines.append(f"<tr><th scope=row>{html.escape(name)}</th>{cells}</tr>")
    return (
        f"<table class=heat><caption>{html.escape(caption)}</caption>"
        f"<tr><td></td>{head}</tr>{''.join(lines)}</table>"
    )


def side_by_side(*tables: str) -> str:
    """Tables in a row that wraps where the page is narrow and scrolls where one is too wide."""
    return f"{_STYLE}<div class=heats>{''.join(tables)}</div>"


def frames(
    controls: Mapping[str, Sequence[str]],
    draw: Callable[..., str],
    *,
    start: Mapping[str, int] | None = None,
) -> widgets.VBox:
    """A picture that follows several controls without a kernel.

    Args:
        controls: name of each control and what it offers, for example
            {"mask": ["none", "causal"], "heads": ["1", "2"]}. More than four numbers become a
            slider, anything else a row of buttons.
        draw: called with one offer per control, in order; returns the frame as HTML.
        start: which offer each control starts with, by index; the first if not named.

    Returns:
        The controls above the picture. Only the combination chosen is shown.

    Raises:
        ValueError: if there is no control or a control offers nothing.
    """
    if not controls or any(not offers for offers in controls.values()):
        raise ValueError("a widget needs at least one control, and each control an offer")
    names, start = list(controls), dict(start or {})
    pictures = {
        chosen: widgets.HTML(
            draw(*(controls[n][i] for n, i in zip(names, chosen, strict=True))),
        )
        for chosen in itertools.product(*(range(len(offers)) for offers in controls.values()))
    }
    levels: list[list[widgets.Stack]] = [[] for _ in names]

    def nest(chosen: tuple[int, ...]) -> widgets.DOMWidget:
        depth = len(chosen)
        if depth == len(names):
            return pictures[chosen]
        stack = widgets.Stack(
            [nest((*chosen, index)) for index in range(len(controls[names[depth]]))],
            selected_index=start.get(names[depth], 0),
        )
        levels[depth].append(stack)
        return stack

    tree = nest(())
    rows = []
    for name, stacks in zip(names, levels, strict=True):
        control, attribute, shown = _control(name, controls[name], start.get(name, 0))
        for stack in stacks:
            widgets.jsdlink((control, attribute), (stack, "selected_index"))
        rows.append(shown)
    return widgets.VBox([*rows, tree])


def _cell(value: float, digits: int = 2) -> str:
    """One coloured cell, from nearly white for 0 to dark blue for 1; NaN is said in words."""
    if math.isnan(value):
        return "<td class=z>NaN</td>"
    share = min(max(float(value), 0.0), 1.0)
    red, green, blue = (
        round(low + (high - low) * share) for low, high in ((247, 16), (249, 74), (252, 132))
    )
    if share == 0.0:
        return "<td class=z>0</td>"
    ink = " class=d" if _luminance(red, green, blue) < 0.179 else ""  # white reads better
    return f"<td{ink} style=--c:#{red:02x}{green:02x}{blue:02x}>{value:.{digits}f}</td>"


def _luminance(*colour: int) -> float:
    """Relative luminance of an sRGB colour, by the definition of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
              (channel / 255 for channel in colour)]  # fmt: skip
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _control(
    name: str, offers: Sequence[str], start: int
) -> tuple[widgets.DOMWidget, str, widgets.DOMWidget]:
    """The control, its attribute that holds the index, and what to put on the page."""
    style = {"description_width": "7em"}
    if len(offers) > 4 and all(_is_number(offer) for offer in offers):
        slider = widgets.IntSlider(
            value=start, min=0, max=len(offers) - 1, description=name, readout=False, style=style
        )
        labels = widgets.Stack(
            [widgets.Label(str(offer)) for offer in offers], selected_index=start
        )
        widgets.jsdlink((slider, "value"), (labels, "selected_index"))
        return slider, "value", widgets.HBox([slider, labels])
    buttons = widgets.ToggleButtons(
        options=[str(offer) for offer in offers], index=start, description=name, style=style
    )
    buttons.style.button_width = "auto"
    return buttons, "index", buttons


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
