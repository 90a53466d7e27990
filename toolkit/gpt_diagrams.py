"""Diagrams of the chapter on GPT.

What can be read from a model or from tokens is read from them. Boxes and arrows carry names as
`gid`, so that what is drawn can be read back: an arrow from a to b is called `a>b:part`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from toolkit.diagrams import FAINT, FILL, SOFT, Canvas, Sheet, millions, weigh
from toolkit.plots import INK, PALETTE

SKIP, ROUTE = PALETTE[0], PALETTE[1]


# --------------------------------------------------------------------------- the block


def three_blocks() -> Figure:
    """The Transformer's encoder and decoder layer beside GPT's block, each with its masks.

    All three are drawn post-norm, as in the Transformer and in GPT-1, so that they differ only in
    what they attend to.
    """
    sheet = Sheet(30.6, 16.0)
    columns = (
        ("encoder layer", "encoder", (("self-attention", "full"),)),
        ("decoder layer", "decoder", (("self-attention", "causal"), ("cross-attention", "cross"))),
        ("GPT block", "gpt", (("self-attention", "causal"),)),
    )
    for number, (title, name, attentions) in enumerate(columns):
        left = 0.3 + 10.1 * number
        x, skip, masks = left + 3.4, left + 0.75, left + 6.4
        sheet.text(x, 15.4, title, 13)
        sheet.panel(left + 0.1, 2.0, left + 9.6, 2.6 + 3.95 * (len(attentions) + 1))
        sheet.words(f"{name}.in", x, 0.8, "target" if name == "decoder" else "tokens so far"
                    if name == "gpt" else "source", height=0.7)  # fmt: skip
        last, y = f"{name}.in", 2.3
        for index, (kind, mask) in enumerate((*attentions, ("feed-forward", ""))):
            sub, add, norm = (f"{name}.{part}{index}" for part in ("sub", "add", "norm"))
            colour = "value" if not mask else "key" if mask == "cross" else "weights"
            sheet.node(sub, x, y + 1.3, kind, colour, height=1.0)
            sheet.link(last, sub)
            sheet.plus(add, x, y + 2.4)
            sheet.link(sub, add)
            sheet.link(
                last, add, "skip", start=(x, y + 0.35), via=((skip, y + 0.35), (skip, y + 2.4)),
                end="left", color=SKIP,
            )  # fmt: skip
            sheet.dot(x, y + 0.35, SKIP)
            sheet.node(norm, x, y + 3.35, "norm", "output", height=0.75)
            sheet.link(add, norm)
            if mask:
                _small_mask(
                    sheet, masks, y + (1.7 if mask == "cross" else 0.4), mask, f"{name}.{index}"
                )
            last, y = norm, y + 3.95
        if name == "decoder":
            aside, height = left + 9.0, sheet.nodes["decoder.sub1"].y
            sheet.words("memory", aside, 0.8, "memory", height=0.7)
            sheet.link(
                "memory", "decoder.sub1", "memory", via=((aside, height),), end="right",
                color=ROUTE,
            )  # fmt: skip
    return sheet.figure


def _small_mask(sheet: Sheet, left: float, low: float, kind: str, name: str) -> None:
    """A mask of five places with what may be seen filled, and its name above."""
    count, side = 5, 0.42
    for row in range(count):
        for column in range(count):
            seen = kind != "causal" or column <= row
            sheet.ax.add_patch(
                Rectangle(
                    (left + column * side, low + (count - 1 - row) * side), side - 0.05,
                    side - 0.05, facecolor=PALETTE[0] if seen else FILL["plain"],
                    edgecolor="none", gid=f"mask:{name}:{row}:{column}:{int(seen)}",
                )
            )  # fmt: skip
    names = {"full": "sees all", "causal": "sees j ≤ i", "cross": "sees memory"}
    sheet.text(left + count * side / 2, low + count * side + 0.35, names[kind], 9.5, color=SOFT)


def gpt1(model: Any) -> Figure:
    """GPT from ids to its heads, with the sizes and the norm order of the model that is given.

    Args:
        model: a `GPTClassifier` of the chapter, drawn with both heads, or a `GPT` alone.
    """
    heads = hasattr(model, "gpt")
    gpt = model.gpt if heads else model
    vocabulary, width = gpt.token.weight.shape
    pre = weigh(gpt.final_norm) > 0
    count, block = len(gpt.blocks), gpt.blocks[0]
    inner, number = len(block.feed_forward.w_1.weight), block.attention.num_heads
    sheet = Sheet(18.4, 17.8 + 1.3 * pre)
    x, skip = 5.6, 2.5
    for name, across, text in (
        ("token", 3.2, f"token $W_e$\n{vocabulary} × {width}"),
        ("position", 8.0, f"position $W_p$\n{gpt.max_length} × {width}"),
    ):
        sheet.words(f"{name}.ids", across, 0.5, "ids (B, T)" if name == "token" else "0 … T − 1",
                    height=0.7)  # fmt: skip
        sheet.node(name, across, 1.9, text, "query", width=3.9)
        sheet.link(f"{name}.ids", name)
    sheet.plus("sum", x, 3.4)
    sheet.link("token", "sum", via=((3.2, 3.4),), end="left")
    sheet.link("position", "sum", via=((8.0, 3.4),), end="right")
    low = 4.4
    sheet.panel(x - 3.5, low - 0.35, x + 2.9, low + 8.05)
    sheet.text(x + 3.6, low + 3.9, f"{count} ×", 13)
    parts = (
        ("attention", f"masked self-attention\n{number} head{'s' if number > 1 else ''} of "
                      f"{width // number}", "weights"),
        ("feed_forward", f"feed-forward, GELU\n{width} → {inner} → {width}", "value"),
    )  # fmt: skip
    last = "sum"
    for index, (name, text, kind) in enumerate(parts):
        base = low + 4.0 * index
        add, norm, begin = f"add{index}", f"norm{index}", (x, base - 0.05)
        at = {"norm": base + 0.65, name: base + 1.9, add: base + 3.0} if pre else {
            name: base + 0.95, add: base + 2.1, "norm": base + 3.05}  # fmt: skip
        sheet.node(norm, x, at["norm"], "norm", "output", width=4.8, height=0.75)
        sheet.node(name, x, at[name], text, kind, width=4.8)
        sheet.plus(add, x, at[add])
        order = (norm, name, add) if pre else (name, add, norm)
        for source, target in zip((last, *order), order, strict=False):
            sheet.link(source, target)
        sheet.link(
            last, add, "skip", start=begin, via=((skip, begin[1]), (skip, at[add])), end="left",
            color=SKIP,
        )  # fmt: skip
        sheet.dot(*begin, SKIP)
        last = order[-1]
    y = low + 8.3
    if pre:
        sheet.node("final_norm", x, y + 0.5, "final norm", "output", width=4.8, height=0.75)
        sheet.link(last, "final_norm")
        last, y = "final_norm", y + 1.3
    sheet.words("features", x, y + 0.5, f"features (B, T, {width})", width=5.4, height=0.7)
    sheet.link(last, "features")
    sheet.node(
        "text", x, y + 2.4, f"text prediction: $W_e^T$, tied\n{width} → {vocabulary}", "plain",
        width=5.8,
    )  # fmt: skip
    sheet.link("features", "text")
    sheet.words("logits", x, y + 4.0, f"logits (B, T, {vocabulary})", width=5.4, height=0.7)
    sheet.link("text", "logits")
    side = 14.1
    if heads:
        labels = len(model.classifier.weight)
        sheet.node(
            "task", side, y + 2.4, f"task classifier: $W_y$\n{width} → {labels}", "key", width=5.2
        )  # fmt: skip
        sheet.link("features", "task", start="right", via=((side, y + 0.5),))
        sheet.text(side, y + 0.05, "only at the extract token", 9.5, color=SOFT)
        sheet.words("scores", side, y + 4.0, f"scores (B, {labels})", height=0.7)
        sheet.link("task", "scores")
    kind = "pre-norm, as GPT-2" if pre else "post-norm, as GPT-1"
    sheet.text(side, 1.6, f"{kind}\n{millions(weigh(model))} parameters", 10.5, linespacing=1.6)
    return sheet.figure


# --------------------------------------------------------------------------- context


def context_of_blocks(context: int = 6, blocks: int = 2) -> Figure:
    """What each place of a text sees: cut into blocks, or through a window that slides.

    Args:
        context: k, the length of a block and of the window.
        blocks: how many blocks of text are drawn.

    Raises:
        ValueError: if a number is below 1.
    """
    if min(context, blocks) < 1:
        raise ValueError("context and blocks must be at least 1")
    total = context * blocks
    i, j = np.indices((total, total))
    cut = (j <= i) & (i // context == j // context)
    slid = (j <= i) & (j > i - context)
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 4.5), sharey=True)
    for ax, seen, title in zip(
        axes, (cut, slid), ("blocks, as in training", "a window that slides"), strict=True
    ):
        own = np.eye(total)
        ax.imshow(seen * (0.45 + 0.55 * own), cmap="Blues", vmin=0, vmax=1.15)
        ax.set_title(title, loc="left")
        ax.set_xlabel("place that is read")
        ax.set_xticks(range(0, total, max(1, context // 2)))
        ax.set_yticks(range(0, total, max(1, context // 2)))
        ax.set_xlim(-0.5, total + 1.9)
        ax.set_ylim(total - 0.5, -1.9)
        ax.grid(visible=False)
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
        ax.text(total + 0.6, -1.2, "before it", ha="center", fontsize=8.5, color=SOFT)
        for row in range(total):
            before = int(seen[row].sum()) - 1
            ax.text(total + 0.6, row, str(before), ha="center", va="center", fontsize=8.5,
                    gid=f"{title[0]}:{row}")  # fmt: skip
    axes[0].set_ylabel("place that reads")
    return figure


# --------------------------------------------------------------------------- inputs


def task_inputs() -> Figure:
    """How GPT-1 makes one row of tokens of every task, and where the answer is read."""
    canvas = Canvas(27.4, 14.2)
    text, end = "value", "plain"
    tasks = (
        ("classification", ((("Start", end), ("Text", text), ("Extract", end)),)),
        ("entailment",
         ((("Start", end), ("Premise", text), ("Delim", end), ("Hypothesis", text),
           ("Extract", end)),)),
        ("similarity",
         ((("Start", end), ("Text 1", text), ("Delim", end), ("Text 2", text), ("Extract", end)),
          (("Start", end), ("Text 2", text), ("Delim", end), ("Text 1", text),
           ("Extract", end)))),
        ("multiple choice",
         tuple((("Start", end), ("Context", text), ("Delim", end), (f"Answer {n}", text),
                ("Extract", end)) for n in "12N")),
    )  # fmt: skip
    y = 13.5
    for task, rows in tasks:
        middle = y - 1.45 * (len(rows) - 1) / 2
        canvas.text(0.2, middle, task, 10.5, ha="left")
        for number, row in enumerate(rows):
            x, high = 4.9, y - 1.45 * number
            for name, kind in row:
                wide = 2.0 if kind == end else 3.0
                wide = 8.0 if name == "Text" else wide
                canvas.box(x + wide / 2, high, name, kind, width=wide - 0.1, height=0.95, size=9.5)
                canvas.ax.patches[-1].set_gid(f"{task}:{number}:{name}")
                x += wide
            canvas.arrow((x, high), (x + 0.9, high))
            canvas.box(x + 2.2, high, "GPT", "weights", width=2.5, height=0.95, size=9.5)
            after = x + 3.45
            if task == "multiple choice":
                canvas.arrow((after, high), (after + 0.7, high))
                canvas.box(after + 1.8, high, "linear", "key", width=2.2, height=0.95, size=9.5)
                after += 2.9
        if task == "similarity":
            canvas.text(after + 0.75, middle, "+", 15)
            for number in range(2):
                high = y - 1.45 * number
                canvas.arrow((after, high), (after + 0.5, middle + (0.2 if not number else -0.2)))
            canvas.arrow((after + 1.05, middle), (after + 1.9, middle))
            canvas.box(after + 3.0, middle, "linear", "key", width=2.2, height=0.95, size=9.5)
        elif task == "multiple choice":
            canvas.text(after + 0.25, middle, "softmax over\nthe answers", 9.5, ha="left")
        else:
            canvas.arrow((after, middle), (after + 0.7, middle))
            canvas.box(after + 1.8, middle, "linear", "key", width=2.2, height=0.95, size=9.5)
        y -= 1.45 * len(rows) + 0.75
    canvas.text(
        4.9, 0.5, "what a linear layer reads is the state at the Extract token alone", 9.5,
        ha="left", color=SOFT,
    )  # fmt: skip
    return canvas.figure


def prompt_and_response_row(prompt: Sequence[str], response: Sequence[str]) -> Figure:
    """One row of prompt and response: what is read, what is asked for, and what counts.

    Args:
        prompt, response: their tokens, without special ones.

    Raises:
        ValueError: if either is empty.
    """
    if not prompt or not response:
        raise ValueError("prompt and response need at least one token each")
    row = ["START", *prompt, "DELIMITER", *response, "END"]
    counted = [place > len(prompt) + 1 for place in range(len(row))]
    wide = [max(1.5, 0.24 * len(token) + 0.7) for token in row]
    left = 3.0
    canvas = Canvas(left + sum(wide) + 0.2, 5.6)
    for y, name in ((4.7, "input"), (1.2, "target")):
        canvas.text(left - 0.3, y, name, 10.5, ha="right")
    x = left
    for place, (token, width) in enumerate(zip(row, wide, strict=True)):
        special = place in (0, len(prompt) + 1, len(row) - 1)
        kind = "plain" if special else "query" if place <= len(prompt) else "value"
        middle = x + width / 2
        if place < len(row) - 1:
            counts = counted[place + 1]
            canvas.box(middle, 4.7, token.replace("$", r"\$"), kind, width=width - 0.12, size=9)
            canvas.arrow((middle, 4.1), (middle, 1.8), color=ROUTE if counts else FAINT)
            target = row[place + 1].replace("$", r"\$")
            canvas.text(middle, 1.2, target, 9, color=INK if counts else SOFT)
            canvas.ax.texts[-1].set_gid(f"{'counts' if counts else 'free'}:{place + 1}")
            canvas.text(
                middle, 0.4, "counts" if counts else "—", 8.5, color=ROUTE if counts else SOFT
            )
        x += width
    return canvas.figure


def cache_steps(prompt: int = 3, steps: int = 3) -> Figure:
    """Which keys and values are computed at each step of writing, and which are read again.

    Args:
        prompt: tokens given at first.
        steps: how many tokens are written, one at a time.

    Raises:
        ValueError: if a number is below 1.
    """
    if min(prompt, steps) < 1:
        raise ValueError("prompt and steps must be at least 1")
    side, gap = 0.72, 0.95
    total = prompt + steps - 1
    left, between = 3.4, side * total + 2.6
    canvas = Canvas(left + 2 * between - 1.4, gap * steps + 3.4)
    top = gap * steps + 1.2
    for number, (title, cached) in enumerate((("without a cache", False), ("with a cache", True))):
        start = left + number * between
        canvas.text(start, top + 1.1, title, 11.5, ha="left")
        new = 0
        for step in range(steps):
            y = top - gap * (step + 0.5)
            if not number:
                what = "prompt" if not step else f"token {step}"
                canvas.text(left - 0.4, y, what, 10, ha="right", color=SOFT)
            for place in range(prompt + step):
                fresh = not cached or (place >= prompt + step - 1 if step else True)
                new += fresh
                canvas.ax.add_patch(
                    Rectangle(
                        (start + side * place, y - side / 2 + 0.06), side - 0.1, side - 0.1,
                        facecolor=FILL["key"] if fresh else "none",
                        edgecolor=ROUTE if fresh else FAINT, linewidth=1.1,
                        gid=f"{'cached' if cached else 'plain'}:{step}:{place}:"
                            f"{'new' if fresh else 'read'}",
                    )
                )  # fmt: skip
        canvas.text(start, 1.0, f"{new} places computed", 10, ha="left")
    canvas.text(left, 0.05, "filled: keys and values computed now; empty: read from the cache", 9,
                ha="left", va="bottom", color=SOFT)  # fmt: skip
    return canvas.figure
