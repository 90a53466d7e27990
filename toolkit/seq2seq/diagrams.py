"""Diagrams of the sequence-to-sequence chapter: the unrolled model, and an LSTM cell."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from matplotlib.figure import Figure

from toolkit.diagrams import Box, Canvas
from toolkit.plots import PALETTE

FED_BACK, BEST = PALETTE[1], PALETTE[2]
CONTEXT = PALETTE[5]


def unrolled(source: Sequence[str], target: Sequence[str]) -> Figure:
    """Encoder and decoder, one box per step: the state handed over, and the outputs fed back.

    The encoder's last state is the decoder's first one, and an input of each of its steps.

    Args:
        source: the words read, without special tokens.
        target: the words written, without special tokens; the start token goes in before them and
            the stop token comes out after them.

    Raises:
        ValueError: if one of them is empty.
    """
    if not source or not target:
        raise ValueError("the unrolled model needs at least one source word and one target word")
    step, low, cell, high, top = 3.0, 1.1, 3.2, 5.3, 6.8  # the encoder stands above the decoder
    inputs, outputs = ["<bos>", *target], [*target, "<eos>"]
    first = 2.6
    wide = max(first + step * len(outputs) - 1.2, 4.2 + step * len(source) - 0.2)
    canvas = Canvas(wide, 12.2)

    zero = canvas.box(1.1, top + cell, "$h_0=0$", width=1.9, size=10)
    states = [zero]
    for t, word in enumerate(source, 1):
        last = t == len(source)  # its state is the context
        x = 0.9 + step * t + 0.9 * last
        name, kind, width = (
            (f"h_{{{t}}}=h_T=C", "output", 3.5) if last else (f"h_{{{t}}}", "key", 1.7)
        )
        canvas.text(x, top + low, word, 11)
        states.append(
            canvas.box(x, top + cell, f"${name}$", kind, width=width, height=1.4, size=11)
        )
        canvas.arrow((x, top + low + 0.4), states[-1].side("bottom"))
    code = states[-1]
    for a, b in itertools.pairwise(states):
        canvas.arrow(a.side("right"), b.side("left"))

    written: list[Box] = []
    for t, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        x = first + step * t
        canvas.text(x, low, given, 11)
        box = canvas.box(x, cell, f"$s_{{{t + 1}}}$", "query", width=1.7, height=1.4, size=11)
        canvas.arrow((x, low + 0.4), box.side("bottom"))
        canvas.arrow(box.side("top"), (x, high - 0.4))
        canvas.text(x, high, made, 11)
        written.append(box)
    for a, b in itertools.pairwise(written):
        canvas.arrow(a.side("right"), b.side("left"))
    for t in range(len(target)):  # what was written is what is read next
        x, middle = first + step * t, first + step * (t + 0.5)
        canvas.ax.plot(
            [x + 0.85, middle, middle, middle + 0.3], [high, high, low, low], "--",
            color=FED_BACK, linewidth=1.1,
        )  # fmt: skip
        canvas.arrow((middle + 0.2, low), (middle + 0.55, low), color=FED_BACK)

    # The context is the first state, and an input of every step as well
    bus, left, down = 6.3, 0.6, code.x + 1.4
    canvas.ax.plot(
        [down, down, left, left], [code.side("bottom")[1], bus, bus, cell], color=CONTEXT,
        linewidth=1.2,
    )  # fmt: skip
    canvas.ax.plot([down, written[-1].x - 0.7], [bus, bus], color=CONTEXT, linewidth=1.2)
    canvas.arrow((left, cell), written[0].side("left"), color=CONTEXT)
    for box in written:
        canvas.arrow((box.x - 0.7, bus), (box.x - 0.7, box.side("top")[1]), color=CONTEXT)

    canvas.text(0.1, top + cell + 1.6, "encoder: reads, starts from zeros", 10.5, ha="left")
    canvas.text(0.1, 0.2, "decoder: writes, starts from $s_0=C$", 10.5, ha="left")
    return canvas.figure


def lstm_cell() -> Figure:
    """What happens inside an LSTM cell, from the inputs below to the state above."""
    canvas = Canvas(12.6, 11.0)
    old, new = "{t-1}", "{t}"
    placed = ((3.2, "x_t", "plain"), (6.0, f"h_{old}", "key"), (11.2, f"c_{old}", "value"))
    x, h, c = (canvas.box(at, 0.9, f"${name}$", kind, width=1.6) for at, name, kind in placed)
    named = (
        (1.4, "output $o$\n$\\sigma$", "weights"), (4.1, "cand. $g$\ntanh", "query"),
        (6.7, "input $i$\n$\\sigma$", "weights"), (9.3, "forget $f$\n$\\sigma$", "weights"),
    )  # fmt: skip
    boxes = [canvas.box(at, 3.6, name, kind, width=2.4, height=1.6) for at, name, kind in named]
    o, g, i, f = boxes
    for gate in boxes:
        for part in (x, h):
            canvas.arrow(part.side("top"), gate.side("bottom"))
    memory = canvas.box(8.2, 7.0, f"$c_{new}=f\\odot c_{old}+i\\odot g$", "value", width=6.0)
    out = canvas.box(3.6, 10.0, f"$h_{new}=o\\odot\\tanh c_{new}$", "output", width=5.2)
    for gate in (g, i, f):
        canvas.arrow(gate.side("top"), (max(gate.x, 5.6), memory.side("bottom")[1]))
    canvas.arrow((c.x, c.side("top")[1]), (10.8, memory.side("bottom")[1]), color=BEST)
    canvas.arrow(o.side("top"), (1.6, out.side("bottom")[1]))
    canvas.arrow((6.4, memory.side("top")[1]), (5.4, out.side("bottom")[1]))
    canvas.text(11.2, 10.0, f"$c_{new}$", 11)
    canvas.arrow((10.3, memory.side("top")[1]), (11.1, 9.6), color=BEST)
    return canvas.figure
