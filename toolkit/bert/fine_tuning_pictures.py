"""Pictures of the pages on fine-tuning BERT, answer spans and token labels.

The pages' example is the pair «the file is open», «close it», and a passage of five tokens with
two candidates for an answer.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from toolkit import plots, widgets
from toolkit.bert.fine_tuning_experiments import ANSWERS, EVERY, LONG, Found
from toolkit.diagrams import Sheet
from toolkit.plots import INK, PALETTE

CHANCE = "#7b7f86"
METRIC = {"module": "accuracy", "pair": "accuracy", "span": "exact spans", "tagging": "F1"}

# «Which file is open?» has two candidates here; the scores are chosen.
PASSAGE = ("file", "one", "and", "file", "two")
START = torch.tensor([2.0, 0, -1, 3, 0])
END = torch.tensor([0.0, 4, 0, -1, 2])


def stored_answers(task: str) -> dict[str, Any]:
    """What a fine-tuned head answered to test examples: of `fine_tuning_experiments answers`."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))[task]
    return found


# --------------------------------------------------------------------------- diagrams


def two_stages(encoder: int, new: int) -> Figure:
    """Pre-training once, then a copy of the encoder with a new head for each task.

    Args:
        encoder, new: numbers of parameters.
    """
    sheet = Sheet(14.6, 7.7)
    for x, name, text, head, title in (
        (3.5, "pre", "text without labels", "MLM and NSP heads,\nthen left out",
         "pre-training, once"),
        (11.1, "fine", "labelled examples", "new head\n" + f"{new:,} parameters",
         "fine-tuning, for each task"),
    ):  # fmt: skip
        sheet.text(x, 7.3, title, 13)
        sheet.node(f"{name}.head", x, 5.8, head, "output" if name == "fine" else "plain",
                   width=6.0, height=1.7, size=12.5)  # fmt: skip
        sheet.node(f"{name}.bert", x, 2.95, f"encoder\n{encoder:,}\nparameters", "weights",
                   width=6.0, height=2.4, size=12.5)  # fmt: skip
        sheet.words(f"{name}.in", x, 0.55, text, width=6.0, size=12.5)
        sheet.link(f"{name}.in", f"{name}.bert", start="top", end="bottom")
        sheet.link(f"{name}.bert", f"{name}.head", start="top", end="bottom")
    sheet.link("pre.bert", "fine.bert", start="right", end="left", color=PALETTE[1])
    sheet.text(7.3, 3.45, "copy", 12.5, color=PALETTE[1])
    return sheet.figure


PANELS: tuple[tuple[str, str, tuple[str, ...], tuple[int, ...], str], ...] = (
    ("single sentence", "one label", ("[CLS]", "the", "file", "is", "open", "[SEP]"),
     (0,), "pooler, then C logits"),
    ("sentence pair", "one label",
     ("[CLS]", "the", "file", "is", "open", "[SEP]", "close", "it", "[SEP]"),
     (0,), "pooler, then C logits"),
    ("answer span", "a start and an end",
     ("[CLS]", "what", "?", "[SEP]", "the", "file", "is", "open", "[SEP]"),
     (4, 5, 6, 7), "2 logits for each token: start, end"),
    ("tagging", "a label for each word", ("[CLS]", "the", "file", "is", "open", "[SEP]"),
     (1, 2, 3, 4), "L logits for each token"),
)  # fmt: skip


def four_heads() -> Figure:
    """What is added to BERT for each kind of task, and which hidden states it reads."""
    sheet = Sheet(14.6, 17.2)
    wide = 1.58
    for number, (name, answer, tokens, read, added) in enumerate(PANELS):
        low = 17.2 - 4.3 * (number + 1)
        sheet.text(0.1, low + 3.95, f"{name}: {answer}", 13, ha="left")
        second = False
        for place, token in enumerate(tokens):
            x = 0.1 + wide * (place + 0.5)
            used = place in read
            special = token.startswith("[")
            sheet.node(f"{name}.{place}", x, low + 0.75, token,
                       "plain" if special else "value" if second else "query",
                       width=wide - 0.06, height=0.95, size=11.5)  # fmt: skip
            sheet.node(f"{name}.h{place}", x, low + 1.98, f"$h_{{{place}}}$",
                       "output" if used else "plain", width=wide - 0.3, height=0.85,
                       size=13)  # fmt: skip
            sheet.arrow((x, low + 1.22), (x, low + 1.55))
            if used:
                sheet.arrow((x, low + 2.4), (x, low + 2.73), color=PALETTE[1])
            second |= token == "[SEP]"
        left = 0.1 + wide * read[0]
        width = max(wide * len(read), 0.3 * len(added) + 0.5)
        left = min(left, 14.5 - width)
        sheet.node(f"{name}.head", left + width / 2, low + 3.15, added, "key", width=width,
                   height=0.85, size=12)  # fmt: skip
    return sheet.figure


def axes_of_softmax(tokens: Sequence[str], logits: Tensor) -> Figure:
    """Start and end logits (T, 2), their softmax over positions, and over the two columns."""
    figure, panels = plt.subplots(1, 3, figsize=(5.4, 2.6))
    for ax, values, title, high, form in (
        (panels[0], logits, "logits", 4.0, "g"),
        (panels[1], logits.softmax(0), "softmax over\npositions", 1.3, ".2f"),
        (panels[2], logits.softmax(1), "softmax over\nstart, end", 1.3, ".2f"),
    ):
        plots.attention_map(
            ax, values, list(tokens), ["start", "end"], title=title, numbers=form,
            limits=(0, high), row_label="", column_label="",
        )  # fmt: skip
        ax.set_xticks([0, 1], ["start", "end"], rotation=0, ha="center")
        ax.tick_params(labelsize=11.5)
        for text in ax.texts:
            text.set_fontsize(12)
        if ax is not panels[0]:
            ax.set_yticks([])
    return figure


def span_sums(
    tokens: Sequence[str], start: Tensor, end: Tensor, apart: tuple[int, int],
    best: tuple[int, int],
) -> Figure:  # fmt: skip
    """The sum of each pair of a start (row) and an end (column); impossible pairs are hatched.

    Args:
        apart, best: the pair of the two largest logits, and the best allowed pair; framed.
    """
    figure, ax = plt.subplots(figsize=(4.8, 3.5))
    sums = start[:, None] + end  # (T, T)
    allowed = sums.masked_fill(~torch.ones_like(sums).triu().bool(), -torch.inf)
    plots.attention_map(
        ax, allowed, [f"{t}  {s:g}" for t, s in zip(tokens, start.tolist(), strict=True)],
        [f"{t}\n{e:g}" for t, e in zip(tokens, end.tolist(), strict=True)], numbers="g",
        limits=(-4, 9), row_label="start", column_label="end",
    )  # fmt: skip
    labels = [label.get_text() for label in ax.get_xticklabels()]
    ax.set_xticks(
        range(len(tokens)), [x.replace("-", "−") for x in labels], rotation=0, ha="center"
    )
    ax.set_yticklabels([y.get_text().replace("-", "−") for y in ax.get_yticklabels()])
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.tick_params(labelsize=11)
    for text in ax.texts:
        text.set_fontsize(11.5)
    _frame(ax, best, PALETTE[2])
    _frame(ax, apart, PALETTE[1], ":")
    i, j = apart
    for text in ax.texts:
        if text.get_position() == (j, i):
            text.set_text(f"{sums[i, j]:g}")
    return figure


def _frame(ax: Axes, pair: tuple[int, int], colour: str, line: str = "-") -> None:
    i, j = pair
    ax.add_patch(
        Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, ec=colour, lw=2.6, ls=line)
    )


# --------------------------------------------------------------------------- stored answers


_BARS = (
    "<style>table.ends{width:auto!important;white-space:nowrap;border-collapse:collapse;"
    "margin:.3em 0}"
    "table.ends :is(td,th,caption){border:0!important;padding:.05em .6em;text-align:left;"
    "background:none!important;color:inherit;font-weight:normal;line-height:1.35;font-size:.9em}"
    "table.ends caption{caption-side:top}table.ends td{min-width:6.5em}"
    "table.ends td span{display:inline-block;width:2.9em;padding-right:.5em;text-align:right}"
    "table.ends i{display:inline-block;height:.75em;vertical-align:-.05em}"
    "table.ends tr.y th{font-weight:bold!important}</style>"
)


def _signed(value: float | Tensor) -> str:
    return f"{value:.2f}".replace("-", "−")


def span_page(answers: Mapping[str, Mapping[str, Any]]) -> Any:
    """Start and end logits in the passage and bars of their softmax, for several questions.

    Args:
        answers: stored answers by what the question asks for.
    """

    def draw(asked: str) -> str:
        one = answers[asked]
        start, end = (torch.tensor(one[side]) for side in ("start", "end"))  # (n,) both
        rows = []
        last = one["tokens"].index(":") if ":" in one["tokens"] else None
        for k, token in enumerate(one["tokens"][:last]):  # the signature
            right = one["right"] is not None and one["right"][0] <= k <= one["right"][1]
            cells = "".join(
                f"<td><span>{_signed(logits[k])}</span><i style='background:{colour};"
                f"width:{4.6 * logits.softmax(0)[k]:.2f}em'></i></td>"
                for logits, colour in ((start, PALETTE[0]), (end, PALETTE[1]))
            )
            rows.append(
                f"<tr{' class=y' if right else ''}><th scope=row>{html.escape(token)}</th>"
                f"{cells}</tr>"
            )
        sums = (start[:, None] + end).masked_fill(
            ~torch.ones(len(start), len(start)).triu().bool(), -torch.inf
        )
        i, j = divmod(int(sums.argmax()), len(start))
        said = " ".join(one["tokens"][i : j + 1])
        wanted = "no answer"
        if one["right"] is not None:
            wanted = " ".join(one["tokens"][one["right"][0] : one["right"][1] + 1])
        caption = (
            f"{html.escape(one['question'])}<br>best pair: <b>{html.escape(said)}</b>, sum "
            f"{_signed(sums.max())}<br>no answer: {_signed(one['null'])}<br>right: <b>{wanted}</b>"
        )
        head = "<tr><td></td><th scope=col>start</th><th scope=col>end</th></tr>"
        return f"{_BARS}<table class=ends><caption>{caption}</caption>{head}{''.join(rows)}</table>"

    return widgets.frames({"question": list(answers)}, draw)


_CHIPS = (
    "<style>.chips{line-height:2.9;max-width:44em}.chips span{display:inline-block;"
    "padding:.1em .4em;margin:.08em;border-radius:.3em;line-height:1.35;text-align:center;"
    "color:#22252b;background:var(--c);border:2px solid transparent}"
    ".chips span.y{border-color:#3c8d5a}.chips small{display:block;font-size:.72em}</style>"
)


def chips(answer: Mapping[str, Any]) -> str:
    """Words as chips: the darker, the more probably a parameter; a frame where it is one."""
    made = []
    for word, share, right in zip(answer["words"], answer["shares"], answer["right"], strict=True):
        red, green, blue = (
            round(low + (high - low) * share) for low, high in ((244, 240), (241, 160), (234, 90))
        )
        kind = " class=y" if right else ""
        made.append(
            f"<span{kind} style='--c:#{red:02x}{green:02x}{blue:02x}'>{html.escape(word)}"
            f"<small>{share:.2f}</small></span>"
        )
    return f"{_CHIPS}<div class=chips>{' '.join(made)}</div>"


def chips_page(answers: Sequence[Mapping[str, Any]]) -> Any:
    """Sentences to choose from, as `chips`."""
    return widgets.frames(
        {"sentence": [str(n + 1) for n in range(len(answers))]},
        lambda number: chips(answers[int(number) - 1]),
    )


# --------------------------------------------------------------------------- the experiment

COLOURS = {
    "pre-trained": PALETTE[0], "random": PALETTE[1], "bag of words": PALETTE[2], "constant": CHANCE
}  # fmt: skip
MARKS = {"pre-trained": "o", "random": "s", "bag of words": "^"}
LABELS = {"random": "random initialisation"}


def by_learning_rate(searches: Mapping[str, Mapping[float, float]], metric: str) -> Figure:
    """Validation metric against the learning rate, a line for each network."""
    figure, ax = plt.subplots(figsize=(5.4, 2.8))
    for way, found in searches.items():
        ax.plot(
            list(found), [100 * v for v in found.values()], f"{MARKS[way]}-", color=COLOURS[way],
            label=LABELS.get(way, way),
        )  # fmt: skip
        top = max(found, key=lambda lr: found[lr])
        ax.plot([top], [100 * found[top]], "o", ms=12, mfc="none", mec=COLOURS[way])
    lrs = sorted({lr for found in searches.values() for lr in found})
    ax.set(xscale="log", xlabel="learning rate", ylabel=f"validation {metric}, %", ylim=(0, None))
    ax.set_xticks(lrs, [f"{lr:g}" for lr in lrs])
    ax.minorticks_off()
    ax.legend(fontsize=10.5)
    return figure


def four_tasks(found: Mapping[tuple[str, str, int], Found], main: Mapping[str, int]) -> Figure:
    """Test metric of all ways on all tasks: a dot a seed, a bar for the mean."""
    figure, ax = plt.subplots(figsize=(5.8, 4.6))
    ways = ("pre-trained", "random", "bag of words")
    for row, (task, labelled) in enumerate(main.items()):
        for slot, way in enumerate(ways):
            long = (task, LONG, labelled)
            one = found[long if way == "random" and long in found else (task, way, labelled)]
            y = row + 0.25 * (slot - 1)
            ax.barh(y, 100 * one.mean, 0.22, color=COLOURS[way], alpha=0.35,
                    label=LABELS.get(way, way) if row == 0 else None)  # fmt: skip
            ax.plot([100 * s for s in one.scores], [y] * len(one.scores), "o", ms=4,
                    color=COLOURS[way])  # fmt: skip
            ax.text(100 * max(one.scores) + 2, y, f"{100 * one.mean:.0f}", va="center",
                    fontsize=10.5)  # fmt: skip
        level = 100 * found[task, "constant", labelled].mean
        ax.plot([level] * 2, [row - 0.4, row + 0.4], ":", color=INK, lw=1.4,
                label="constant answer" if row == 0 else None)  # fmt: skip
    ax.set_yticks(
        range(len(main)), [f"{t}\n{METRIC[t]}\n{n} labels" for t, n in main.items()], fontsize=10.5
    )
    ax.invert_yaxis()
    ax.set(xlim=(0, 108), xlabel="percent of the test examples")
    figure.legend(loc="outside lower center", ncols=2, fontsize=10.5)
    return figure


def by_labels(
    found: Mapping[tuple[str, str, int], Found], tasks: Sequence[str],
    rising: Sequence[tuple[str, int]] = (),
) -> Figure:  # fmt: skip
    """Test metric against the number of labelled examples; bands from lowest to highest seed.

    Args:
        rising: task and size where the random network was stopped while it still improved; drawn
            hollow.
    """
    figure, axes = plt.subplots(1, len(tasks), figsize=(5.8, 3.9))
    for ax, task in zip(axes, tasks, strict=True):
        sizes = sorted({n for t, _, n in found if t == task})
        for way in ("pre-trained", "random", "bag of words"):
            each = torch.tensor([found[task, way, n].scores for n in sizes]) * 100  # (sizes, seeds)
            means, colour = each.mean(1).tolist(), COLOURS[way]
            done = [way != "random" or (task, n) not in rising for n in sizes]
            kept = sum(done)  # the smaller sizes
            ax.plot(sizes[:kept], means[:kept], f"{MARKS[way]}-", color=colour,
                    label=LABELS.get(way, way))  # fmt: skip
            ax.fill_between(sizes, each.amin(1), each.amax(1), color=colour, alpha=0.15, lw=0)
            if kept < len(sizes):
                ax.plot(sizes[kept - 1 :], means[kept - 1 :], ":", color=colour)
                ax.plot(sizes[kept:], means[kept:], MARKS[way], color=colour, mfc="white", ms=6)
        level = 100 * found[task, "constant", sizes[0]].mean
        ax.axhline(level, color=INK, ls=":", lw=1.2, label="constant answer")
        ax.set(title=f"{task}, {METRIC[task]}", xscale="log", xlabel="labelled examples",
               ylim=(0, 100 if task == "module" else 75))  # fmt: skip
        ax.set_xticks(sizes, [str(n) for n in sizes])
        ax.minorticks_off()
    axes[0].set_ylabel("percent of the test examples")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10.5)
    return figure


def curves(found: Mapping[tuple[str, str, int], Found], shown: Mapping[str, int]) -> Figure:
    """Validation metric in the course of fine-tuning, a line a seed; dots: the weights kept.

    Where a random network was also trained on, a cross marks where early stopping would end it.

    Args:
        shown: number of labelled examples by task.
    """
    figure, axes = plt.subplots(len(shown), 1, figsize=(5.8, 5.6), sharex=True, sharey=True)
    for ax, (task, labelled) in zip(axes, shown.items(), strict=True):
        for way in ("pre-trained", "random"):
            long = found.get((task, LONG, labelled)) if way == "random" else None
            for seed, curve in enumerate((long or found[task, way, labelled]).curves):
                steps = [EVERY * (n + 1) for n in range(len(curve))]
                ax.plot(steps, [100 * v for v in curve], color=COLOURS[way], lw=1.1, alpha=0.75,
                        label=LABELS.get(way, way) if seed == 0 else None)  # fmt: skip
                top = max(range(len(curve)), key=lambda n: curve[n])
                ax.plot([steps[top]], [100 * curve[top]], "o", ms=5, color=COLOURS[way])
                if long:
                    end = len(found[task, way, labelled].curves[seed]) - 1
                    ax.plot([steps[end]], [100 * curve[end]], "x", ms=9, mew=2.4, color=INK,
                            zorder=3, label="early stop" if seed == 0 else None)  # fmt: skip
        ax.set(title=f"{task}, {labelled} labels", ylabel="validation, percent", ylim=(0, 80))
        ax.set_xlim(left=0)
    axes[-1].set_xlabel("step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=10.5)
    return figure
