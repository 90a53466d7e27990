"""Pictures of the pages on fine-tuning GPT: inputs of tasks, prompt and response, two losses.

The pages' example is a `def` line and the body that may belong to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit.corpora.code_corpus import SPECIAL, START
from toolkit.diagrams import SOFT, Sheet
from toolkit.gpt import auxiliary_experiments as experiments
from toolkit.gpt.auxiliary_experiments import BAG, RANDOM, Found
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE, SHEET

GREY = "#7b7f86"
Results = Mapping[tuple[str, str, int], Found]

# GPT-1, table 5 (Radford et al. 2018): task -> metric, with the auxiliary loss, without it, without
# pre-training; thousands of labelled examples from GLUE, table 1 (Wang et al. 2019).
TABLE_5 = {
    "RTE": ("accuracy", 56.0, 54.4, 53.8, 2.5),
    "MRPC": ("F1", 82.3, 84.9, 79.4, 3.7),
    "STS-B": ("Pearson r", 82.0, 83.2, 30.9, 7),
    "CoLA": ("Matthews", 45.4, 47.9, 18.9, 8.5),
    "SST-2": ("accuracy", 91.3, 92.0, 84.0, 67),
    "QNLI": ("accuracy", 88.1, 86.9, 71.2, 105),
    "QQP": ("F1", 70.3, 69.8, 65.5, 364),
    "MNLI": ("accuracy", 81.8, 81.1, 75.7, 393),
}


# --------------------------------------------------------------------------- inputs of tasks

FORMATS: tuple[tuple[str, tuple[tuple[str, ...], ...], str], ...] = (
    ("classification", (("text",),), "linear"),
    ("entailment", (("premise", "hypothesis"),), "linear"),
    ("similarity", (("text A", "text B"), ("text B", "text A")), "add, linear"),
    ("multiple choice", (("context", "answer 1"), ("context", "answer 2"),
                         ("context", "answer 3")), "linear, softmax"),
)  # fmt: skip


def input_formats() -> Figure:
    """The rows of tokens of each kind of task, and what is done with the vector at EXTRACT."""
    sheet = Sheet(14.8, 14.5)
    y = 14.0
    for task, rows, after in FORMATS:
        sheet.text(0.1, y, task, 12, ha="left", weight="bold")
        first = y - 1.15
        for number, texts in enumerate(rows):
            x, high = 0.1, first - 1.25 * number
            boxes = [("S", "plain", 0.8)]
            for place, text in enumerate(texts):
                wide = 6.6 if len(texts) == 1 else 2.9
                boxes += [("D", "plain", 0.8)] if place else []
                boxes += [(text, "value" if place else "query", wide)]
            boxes += [("E", "output", 0.8)]
            for place, (text, kind, wide) in enumerate(boxes):
                sheet.node(f"{task}.{number}.{place}", x + wide / 2, high, text, kind,
                           width=wide - 0.06, height=1.0, size=11)  # fmt: skip
                x += wide
            sheet.arrow((x, high), (10.7, high))
            sheet.text((x + 10.7) / 2, high + 0.34, "GPT", 10, color=SOFT)
        middle, tall = first - 0.625 * (len(rows) - 1), 1.25 * len(rows) - 0.25
        sheet.node(f"{task}.head", 12.4, middle, after.replace(", ", ",\n"), "key", width=3.4,
                   height=max(1.0, tall), size=11)  # fmt: skip
        y = first - 1.25 * len(rows) - 0.1
    sheet.figure.set_size_inches(0.88 * sheet.figure.get_size_inches())
    sheet.text(0.1, 0.35, "S start, D delimiter, E extract", 10.5, ha="left", color=SOFT)
    return sheet.figure


def two_heads(model: Any) -> Figure:
    """A post-norm GPT with both heads, with the sizes of the `GPTClassifier` that is given."""
    gpt, labels = model.gpt, len(model.classifier.weight)
    vocabulary, width = gpt.token.weight.shape
    inner, heads = len(gpt.blocks[0].feed_forward.w_1.weight), gpt.blocks[0].attention.num_heads
    sheet = Sheet(14.8, 15.2)
    x, skip = 5.3, 1.5
    sheet.node("token", 3.0, 0.9, f"token $W_e$\n{vocabulary:,} × {width}", "query", width=5.2,
               height=1.5, size=12)  # fmt: skip
    sheet.node("position", 9.2, 0.9, f"position $W_p$\n{gpt.max_length} × {width}", "query",
               width=5.2, height=1.5, size=12)  # fmt: skip
    sheet.plus("sum", x, 2.5)
    sheet.link("token", "sum", via=((3.0, 2.5),), end="left")
    sheet.link("position", "sum", via=((9.2, 2.5),), end="right")
    sheet.panel(0.6, 3.0, 9.4, 11.35)
    sheet.text(10.7, 7.6, f"{len(gpt.blocks)} ×", 15)
    last = "sum"
    for number, (name, text, kind) in enumerate((
        ("attention", f"masked self-attention\n{heads} heads of {width // heads}", "weights"),
        ("feed_forward", f"feed-forward\n{width} → {inner:,} → {width}", "value"),
    )):  # fmt: skip
        low = 3.4 + 3.95 * number
        sheet.node(name, x, low + 0.95, text, kind, width=6.4, height=1.4, size=12)
        sheet.plus(f"add{number}", x, low + 2.2)
        sheet.node(f"norm{number}", x, low + 3.15, "norm", "output", width=6.4, height=0.9, size=12)
        for source, target in ((last, name), (name, f"add{number}"),
                               (f"add{number}", f"norm{number}")):  # fmt: skip
            sheet.link(source, target)
        sheet.link(last, f"add{number}", "skip", start=(x, low - 0.1),
                   via=((skip, low - 0.1), (skip, low + 2.2)), end="left",
                   color=PALETTE[0])  # fmt: skip
        sheet.dot(x, low - 0.1, PALETTE[0])
        last = f"norm{number}"
    sheet.node("text", 3.9, 13.4, f"text prediction\n{width} → {vocabulary:,}", "plain",
               width=6.2, height=1.6, size=12)  # fmt: skip
    sheet.node("task", 11.3, 13.4, f"task classifier $W_y$\n{width} → {labels}", "key", width=6.2,
               height=1.6, size=12)  # fmt: skip
    sheet.link(last, "text", via=((x, 11.9), (3.9, 11.9)))
    sheet.link(last, "task", via=((x, 11.9), (11.3, 11.9)))
    sheet.figure.set_size_inches(0.88 * sheet.figure.get_size_inches())
    sheet.text(3.9, 14.75, "every position", 12, color=SOFT)
    sheet.text(11.3, 14.75, "only at EXTRACT", 12, color=SOFT)
    return sheet.figure


@torch.no_grad()
def spread_by_position(shipped: Shipped, length: int = 16, count: int = 64) -> Tensor:
    """How much the last layer's vectors differ between texts, by position: (length,).

    The standard deviation over `count` held-out functions, cut to `length` tokens with START,
    as a mean over the vector's entries.
    """
    texts = [shipped.tokenizer.encode(text) for text in shipped.held_out()]
    texts = [ids for ids in texts if len(ids) >= length]
    rows = torch.tensor([[START, *ids[: length - 1]] for ids in texts[:count]])  # (N, T)
    return shipped.model.features(rows).std(0).mean(-1)  # (T,)


def read_where(spread: Tensor) -> Figure:
    """Bars of `spread_by_position`: what a classifier could tell apart at each position."""
    figure, ax = plt.subplots(figsize=(5.6, 2.3))
    colours = [PALETTE[1], *[GREY] * (len(spread) - 2), PALETTE[0]]
    ax.bar(range(len(spread)), spread.tolist(), color=colours)
    ticks = range(0, len(spread), 3)
    ax.set_xticks(ticks, ["START", *map(str, ticks[1:])])
    ax.set(xlabel="position", ylabel="spread over texts")
    return figure


def stored_answers() -> dict[str, Any]:
    """What a fine-tuned classifier said of test functions: `auxiliary_experiments answers`."""
    found: dict[str, Any] = json.loads(experiments.ANSWERS.read_text(encoding="utf-8"))
    return found


# --------------------------------------------------------------------------- prompt and response


def response_gradients(
    model: nn.Module, ids: Sequence[int], mask: Sequence[bool], loss: Any
) -> dict[str, Tensor]:
    """How large the loss's gradient is at each position: at its logits, and at its embedding.

    Args:
        model: a GPT, which stays as it is.
        ids, mask: of one sequence, the mask over targets.
        loss: a function of logits (1, T, V), ids (1, T) and mask (1, T).

    Returns:
        "logits" and "embedding": the norm at each position, (T,) both; "loss": a scalar;
        "terms": −log P of each target, (T - 1,).
    """
    seen: dict[str, Tensor] = {}

    def keep(_: nn.Module, __: Any, out: Tensor) -> Tensor:
        seen["embedding"] = out
        out.retain_grad()
        return out

    hook = model.token.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            row, counted = torch.tensor([list(ids)]), torch.tensor([list(mask)])
            logits = model(row)  # (1, T, V)
            logits.retain_grad()
            value = loss(logits, row, counted)
            value.backward()
    finally:
        hook.remove()
        model.zero_grad()
    chances = logits.detach()[0, :-1].log_softmax(-1)
    return {
        "logits": logits.grad[0].norm(dim=-1),
        "embedding": seen["embedding"].grad[0].norm(dim=-1),
        "loss": value.detach(),
        "terms": -chances.gather(1, row[0, 1:, None])[:, 0],
    }


def gradients(names: Sequence[str], found: Mapping[str, Tensor], counted: Sequence[bool]) -> Figure:
    """Bars of `response_gradients`: at the logits above, at the input vectors below.

    Args:
        names: the tokens.
        counted: whether each position's target counts, (T,).
    """
    figure, axes = plt.subplots(2, 1, figsize=(5.8, 4.0), sharex=True)
    colours = [PALETTE[0] if each else PALETTE[1] for each in counted]
    for ax, what, title in (
        (axes[0], "logits", "gradient at the logits"),
        (axes[1], "embedding", "gradient at the input vectors"),
    ):
        ax.bar(range(len(names)), found[what].tolist(), color=colours)
        ax.set(title=title, ylabel="norm")
    axes[1].set_xticks(range(len(names)), [n.replace("$", r"\$") for n in names], rotation=60,
                       ha="right", rotation_mode="anchor")  # fmt: skip
    for name, colour in (("its target counts", PALETTE[0]), ("its target does not", PALETTE[1])):
        axes[0].bar(0, 0, color=colour, label=name)
    axes[0].legend(fontsize=9.5, loc="upper left")
    return figure


# --------------------------------------------------------------------------- the auxiliary loss


def table_5() -> Figure:
    """Points gained with the auxiliary loss against the number of labelled examples."""
    figure, ax = plt.subplots(figsize=(5.8, 3.3))
    for name, (_, with_it, without, _, thousands) in TABLE_5.items():
        gain = with_it - without
        ax.plot(thousands, gain, "o", color=PALETTE[0 if gain > 0 else 1], markersize=6)
        last = name in ("QQP", "MNLI")
        ax.annotate(name, (thousands, gain), (-7 if last else 7, 4 if name != "QQP" else -10),
                    textcoords="offset points", ha="right" if last else "left")  # fmt: skip
    ax.axhline(0, color=INK, lw=1, ls=":")
    ax.set(xscale="log", xlim=(1.8, 600), ylim=(-3.2, 2.2), ylabel="points gained, λ = 0.5",
           xlabel="labelled examples, thousands")  # fmt: skip
    ax.set_xticks([3, 10, 30, 100, 300], ["3", "10", "30", "100", "300"])
    ax.minorticks_off()
    return figure


def gains(results: Results, tasks: Sequence[str], sizes: Sequence[int]) -> Figure:
    """Test accuracy of each λ minus that of λ = 0, seed by seed, with mean and standard error."""
    weights = [w for w in experiments.WEIGHTS if w]
    figure, axes = plt.subplots(
        len(tasks), 1, figsize=(5.8, 0.5 + 2.5 * len(tasks)), sharex=True, squeeze=False
    )
    for ax, name in zip(axes[:, 0], tasks, strict=True):
        for number, weight in enumerate(weights):
            for place, size in enumerate(sizes):
                apart = paired(results, name, weight, size)
                x = place + 0.24 * (number - 1)
                ax.plot([x] * len(apart), apart.tolist(), "o", color=PALETTE[number], alpha=0.35)
                error = float(apart.std() / len(apart) ** 0.5)
                ax.errorbar(x, float(apart.mean()), error, color=PALETTE[number], fmt="_", ms=14,
                            capsize=4, label=f"λ = {weight:g}" if not place else None)  # fmt: skip
        ax.axhline(0, color=INK, lw=1, ls=":")
        ax.set(title=name if len(tasks) > 1 else "", ylabel="points gained over λ = 0")
        ax.set_xticks(range(len(sizes)), [f"{size} labels" for size in sizes])
    axes[0, 0].legend(ncols=3, fontsize=9.5, loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def paired(results: Results, task: str, weight: float, size: int) -> Tensor:
    """Points that λ gains over λ = 0, one for each seed: both have the same labelled examples."""
    one, none = (
        torch.tensor(results[task, experiments.way_of(w), size].scores) for w in (weight, 0.0)
    )
    both = min(len(one), len(none))
    return 100 * (one[:both] - none[:both])


def by_labels(results: Results, task: str, sizes: Sequence[int]) -> Figure:
    """Test accuracy against the number of labels: pre-trained, random, bag of tokens, constant."""
    figure, ax = plt.subplots(figsize=(5.8, 3.2))
    ways = {
        experiments.way_of(0.0): "pre-trained, λ = 0",
        experiments.way_of(0.5): "pre-trained, λ = 0.5",
        RANDOM: "random initialisation", BAG: "bag of tokens",
    }  # fmt: skip
    for number, (way, label) in enumerate(ways.items()):
        found = [results[task, way, size] for size in sizes]
        means = [100 * f.mean for f in found]
        ax.plot(sizes, means, "o-", color=PALETTE[number], label=label)
        ax.fill_between(
            sizes, [100 * (f.mean - f.spread) for f in found],
            [100 * (f.mean + f.spread) for f in found], color=PALETTE[number], alpha=0.13, lw=0,
        )  # fmt: skip
    constant = 100 * results[task, experiments.CONSTANT, 0].mean
    ax.axhline(constant, color=GREY, lw=1, ls=":")
    ax.text(sizes[-1], constant + 1, "constant answer", ha="right", color=GREY)
    ax.set(xscale="log", xlabel="labelled examples", ylabel="accuracy on test functions (%)")
    ax.set_xticks(list(sizes), list(map(str, sizes)))
    ax.minorticks_off()
    longer = results.get((task, experiments.LONG, experiments.MAIN))
    if longer:
        ax.errorbar(experiments.MAIN, 100 * longer.mean, 100 * longer.spread, fmt="o", mfc=SHEET,
                    color=PALETTE[2], capsize=4, label="random, 3 × the steps")  # fmt: skip
    ax.legend(fontsize=9.5, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def language_kept(results: Results, task: str, sizes: Sequence[int], before: float) -> Figure:
    """The language model's loss on test functions after fine-tuning, for each λ.

    Args:
        before: the same loss, EXTRACT included, of the model before fine-tuning.
    """
    figure, ax = plt.subplots(figsize=(5.8, 2.6))
    for number, weight in enumerate(experiments.WEIGHTS):
        found = [results[task, experiments.way_of(weight), size].text for size in sizes]
        for place, values in enumerate(found):
            ax.plot([place + 0.18 * (number - 1.5)] * len(values), values, "o",
                    color=PALETTE[(number - 1) % 4], alpha=0.6,
                    label=f"λ = {weight:g}" if not place else None)  # fmt: skip
    ax.axhline(before, color=GREY, lw=1, ls=":")
    ax.text(len(sizes) - 1.5, before + 0.1, "before fine-tuning", ha="center", color=GREY)
    ax.set(ylabel="L1, nats per token", ylim=(0, None))
    ax.set_xticks(range(len(sizes)), [f"{size} labels" for size in sizes])
    ax.legend(ncols=4, fontsize=9.5, loc="lower left", bbox_to_anchor=(0, 1), columnspacing=1)
    return figure


def special_norms(shipped: Shipped) -> tuple[Tensor, float]:
    """Lengths of the embeddings of the special tokens, and the mean of all others."""
    norms = shipped.model.token.weight.detach().norm(dim=1)  # (V,)
    return norms[:SPECIAL], float(norms[SPECIAL:].mean())
