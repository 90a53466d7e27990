"""The BERT chapter in pictures: a pair of sentences with a gap goes through the shipped model.

«the [MASK] is open», «close it»: every number is one of the trained model, rounded to two places.
The feature that the table shows is one of those whose printed numbers add up as printed.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from toolkit import widgets
from toolkit.attention.example_pictures import bars
from toolkit.bert.attention_heads import weights
from toolkit.bert.fine_tuning import masked_input
from toolkit.diagrams import FILL, SOFT, Sheet, through_layers
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE, SHEET
from toolkit.positional_encoding.example_pictures import table

FIRST, SECOND = "the [MASK] is open", "close it"
FEATURE = 57
HEADS = ((0, 2), (0, 3), (0, 1), (1, 1))  # (layer, head)
WORDS = ("open", "closed", "released", "raised")


@dataclass(frozen=True)
class Followed:
    """What BERT with N layers and H heads makes of one input of T tokens with one gap.

    tokens, ids, segments: T. gap: the position of [MASK].
    parts: token, segment and position embeddings, (T, D) each, by name.
    total: their sum (T, D). gamma, beta: (D,), of the norm after it. embedded: (T, D).
    weights: (N, H, T, T). hidden: (T, D), what the last layer returns.
    transformed: (D,), what the head for masked tokens makes of the vector at the gap.
    logits: (V,), at the gap. bias: (V,), the part of them that is the same for every input.
    next_logits: (2,): B follows A, B is a random sentence. vocabulary: V tokens.
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    gap: int
    parts: dict[str, Tensor]
    total: Tensor
    gamma: Tensor
    beta: Tensor
    embedded: Tensor
    weights: Tensor
    hidden: Tensor
    transformed: Tensor
    logits: Tensor
    bias: Tensor
    next_logits: Tensor
    vocabulary: tuple[str, ...]

    def logit(self, word: str) -> float:
        """The logit of a word at the gap."""
        return float(self.logits[self.vocabulary.index(word)])

    def best(self, most: int) -> dict[str, float]:
        """The most probable tokens at the gap and their probabilities."""
        chances, ids = self.logits.softmax(-1).topk(most)
        return {self.vocabulary[i]: p for i, p in zip(ids.tolist(), chances.tolist(), strict=True)}


@torch.no_grad()
def follow(shipped: Shipped, first: str = FIRST, second: str | None = SECOND) -> Followed:
    """Run the shipped BERT on one or two sentences with one [MASK], and keep every step."""
    model, pieces = shipped.model, shipped.tokenizer
    texts = (first,) if second is None else (first, second)
    ids, segments = masked_input(pieces, *texts)
    gap = ids[0].tolist().index(pieces.special.mask)
    embeddings = model.bert.embeddings
    length = ids.shape[1]
    parts = {
        "token": embeddings.token(ids)[0],
        "segment": embeddings.segment(segments)[0],
        "position": embeddings.position.weight[:length],
    }
    with weights(model) as seen:
        hidden, pooled = model.bert(ids, segments)
    head = model.mlm
    transformed = head.norm(nn.functional.gelu(head.dense(hidden[0, gap])))  # (D,)
    return Followed(
        tuple(pieces.tokens(ids[0].tolist())), tuple(ids[0].tolist()),
        tuple(segments[0].tolist()), gap, parts, torch.stack(list(parts.values())).sum(0),
        embeddings.norm.weight, embeddings.norm.bias, embeddings(ids, segments)[0],
        torch.stack(seen)[:, 0], hidden[0],
        transformed, head(hidden[0, gap]), head.bias, model.nsp(pooled)[0], tuple(pieces.names),
    )  # fmt: skip


@torch.no_grad()
def guesses(
    shipped: Shipped, word: str, most: int = 4, *, left_only: bool = False
) -> dict[str, float]:
    """The most probable tokens at the gap of «the [MASK] is …», «close it».

    Args:
        word: what stands in place of «open».
        left_only: whether no token may attend to what comes after the gap.
    """
    ids, segments = masked_input(shipped.tokenizer, f"the [MASK] is {word}", SECOND)
    gap = ids[0].tolist().index(shipped.tokenizer.special.mask)
    seen = torch.arange(ids.shape[1])[None] <= (gap if left_only else ids.shape[1])  # (1, T)
    chances = shipped.model(ids, segments, seen)[0][0, gap].softmax(-1)  # (V,)
    best, numbers = chances.topk(most)
    names = shipped.tokenizer.tokens(numbers.tolist())
    return dict(zip(names, best.tolist(), strict=True))


# --------------------------------------------------------------------------- HTML


def input_page(found: Followed, feature: int = FEATURE) -> str:
    """Each token's id, segment and position, and their embeddings in one feature, as HTML."""
    names = [f"{'+ ' if i else ''}{name}" for i, name in enumerate(found.parts)]
    values = [*found.parts.values(), found.total, found.embedded]
    columns = torch.stack([value[:, feature] for value in values], 1)  # (T, 5)
    caption = f"embeddings, feature {feature}"
    return widgets.side_by_side(
        numbers_table(
            list(zip(found.ids, found.segments, range(len(found.ids)), strict=True)),
            found.tokens, ["id", "segment", "position"], "three numbers a token",
        ),
        table(columns, found.tokens, [*names, "= sum", "norm"], caption),
    )  # fmt: skip


def numbers_table(
    values: Sequence[Sequence[object]], rows: Sequence[str], columns: Sequence[str], caption: str
) -> str:
    """Values as they are in the form of the other tables, without colours, as HTML."""
    head = "".join(f"<th scope=col>{html.escape(column)}</th>" for column in columns)
    lines = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in line)
        + "</tr>"
        for name, line in zip(rows, values, strict=True)
    )
    return (
        f"<table class=heat style='font-size:13px'><caption>{html.escape(caption)}</caption>"
        f"<tr><td style='--c:none'></td>{head}</tr>{lines}</table>"
    )


def heads_page(found: Followed, heads: Sequence[tuple[int, int]] = HEADS) -> str:
    """Where the gap looks in some heads: a row for each token, as HTML."""
    weights = torch.stack([found.weights[layer, head, found.gap] for layer, head in heads], 1)
    columns = [f"L{layer} H{head}" for layer, head in heads]
    caption = "from [MASK]: layer L, head H"
    shown = widgets.heat_table(weights, found.tokens, columns, caption)
    return widgets.side_by_side(shown.replace("class=heat", "class=heat style='font-size:13px'"))


def output_page(found: Followed, most: int = 5) -> str:
    """The most probable tokens at the gap, with their logits, as HTML."""
    best = found.best(most)
    notes = [f"{found.logit(word):.2f}" for word in best]
    caption = "the token at [MASK]: logit and probability"
    return bars(list(best), torch.tensor([*best.values()]), notes, caption)


def swapped_page(shipped: Shipped, word: str, left_only: bool) -> str:
    """What is most probable at the gap if another word stands after it, as HTML."""
    best = guesses(shipped, word, left_only=left_only)
    line = f"[CLS] the <b>[MASK]</b> is <b>{html.escape(word)}</b> [SEP] close it [SEP]"
    if left_only:
        line = "[CLS] the <b>[MASK]</b> <span style='opacity:.8'>(the rest is out of sight)</span>"
    return f"<p>{line}</p>" + bars(list(best), torch.tensor([*best.values()]))


def learned_page(answers: Mapping[str, Sequence[tuple[str, float]]], most: int = 2) -> str:
    """The most probable tokens at one gap after different parts of the training, as HTML."""
    rows = [[part for pair in best[:most] for part in pair] for best in answers.values()]
    shown = [[x if isinstance(x, str) else f"{x:.2f}" for x in row] for row in rows]
    columns = [name for i in range(1, most + 1) for name in (f"token {i}", "p")]
    return widgets.side_by_side(numbers_table(shown, list(answers), columns, ""))


# --------------------------------------------------------------------------- figures


def journey(found: Followed) -> Figure:
    """The whole model with the pair in it, from tokens to the two answers, with shapes."""
    layers, heads, length, _ = found.weights.shape
    width = found.hidden.shape[-1]
    shape = f"(1, {length}, {width})"
    text = "layer {}: attention (1, {}, {}, {}), feed-forward"
    sheet, across, y = through_layers(
        list(zip(found.tokens, found.ids, strict=True)), found.gap,
        "① input: token + segment + position, norm",
        [text.format(layer, heads, length, length) for layer in range(layers)], shape,
        height=15.5, narrower=0.7, size=13,
    )  # fmt: skip
    middle = sheet.nodes["input"].x
    top = y + 0.55
    sheet.text(middle + 0.3, top - 0.8, f"② encoder: {shape}", 12, ha="left")
    for t, x in enumerate(across):
        read = t in (0, found.gap)
        sheet.ax.add_patch(
            Rectangle((x - 0.5, top - 0.35), 1.0, 0.7, facecolor=FILL["value" if read else "plain"],
                      edgecolor=INK, linewidth=1.6 if read else 0.7, gid=f"vector:{t}")
        )  # fmt: skip
    sheet.arrow((middle, y - 1.0), (middle, top - 0.35))
    best, chance = next(iter(found.best(1).items()))
    follows = float(found.next_logits.softmax(-1)[0])
    for t, x, text, answer in (
        (0, 2.65, "④ pooler and\nnext-sentence head", f"B follows A: {follows:.2f}"),
        (found.gap, 8.6, "③ head for\nmasked tokens", f"«{best}»: {chance:.2f}"),
    ):
        name = f"head:{t}"
        sheet.node(name, x, top + 2.1, text, "output", width=4.9, height=1.5, size=13)
        start = (across[t], top + 0.35)
        sheet.arrow(start, (max(across[t], x - 1.9) if t else across[t], top + 1.35))
        sheet.text(x, top + 3.6, answer, 13, weight="bold")
        sheet.arrow((x, top + 2.85), (x, top + 3.25))
    return sheet.figure


def both_masks(tokens: Sequence[str], gap: int) -> Figure:
    """Which keys each query may attend to, in BERT and with a causal mask; the gap is framed."""
    size = len(tokens)
    figure, axes = plt.subplots(1, 2, figsize=(4.9, 2.8))
    for ax, name in zip(axes, ("BERT", "left to right"), strict=True):
        for i in range(size):
            for j in range(size):
                seen = name == "BERT" or j <= i
                colour = PALETTE[0] if seen else "#eceae4"
                ax.add_patch(
                    Rectangle((j, i), 1, 1, facecolor=colour, edgecolor=SHEET, linewidth=1.5,
                              alpha=0.85 if i == gap or not seen else 0.45,
                              gid=f"{name}:{i}:{j}:{seen}")
                )  # fmt: skip
        ax.add_patch(Rectangle((0, gap), size, 1, fill=False, edgecolor=PALETTE[1], linewidth=2.4))
        ax.set(xlim=(-0.05, size + 0.05), ylim=(size + 0.05, -0.05), title=name, aspect="equal")
        ax.set_xticks([t + 0.5 for t in range(size)], tokens, rotation=60, ha="right",
                      rotation_mode="anchor", fontsize=10.5)  # fmt: skip
        ax.set_yticks([t + 0.5 for t in range(size)], tokens if ax is axes[0] else [""] * size,
                      fontsize=10.5)  # fmt: skip
        ax.tick_params(length=0)
        for spine in ax.spines.values():
            spine.set_visible(False)
    return figure


def stages() -> Figure:
    """Pre-training once on plain text, then fine-tuning for each task with a new small head."""
    sheet = Sheet(12.4, 16.4)
    middle = 5.4
    for y, title, name, below, inside in (
        (15.9, "1  pre-training, once", "pre", "plain text, no labels", "weights random at first"),
        (7.7, "2  fine-tuning, once for each task", "fine", "some labelled examples",
         "all weights go on learning"),
    ):  # fmt: skip
        sheet.text(0.1, y, title, 13, ha="left", weight="bold")
        sheet.node(name, middle, y - 4.8, f"encoder\n{inside}", "weights", width=7.0, height=1.6,
                   size=12)  # fmt: skip
        sheet.words(f"{name} text", middle, y - 7.0, below, size=12)
        sheet.link(f"{name} text", name)
    sheet.ax.plot([0.1, 12.3], [8.4, 8.4], color=SOFT, linewidth=0.8, linestyle=":")
    first = ((2.9, "next\nsentence?", "[CLS]"), (7.9, "masked\ntokens", "chosen tokens"))
    second = tuple(
        (1.35 + 2.7 * i, name, reads)
        for i, (name, reads) in enumerate((
            ("class of\na text", "[CLS]"), ("class of\na pair", "[CLS]"),
            ("answer\nin a text", "all tokens"), ("tag of\neach token", "all tokens"),
        ))
    )  # fmt: skip
    for y, heads in ((15.9, first), (7.7, second)):
        for x, name, reads in heads:
            box = sheet.box(x, y - 2.1, name, "output", width=2.5, height=1.5, size=11.5)
            sheet.text(x, y - 0.95, reads, 10.5, color=SOFT)
            sheet.arrow((min(max(x, 2.2), 8.6), y - 4.0), box.side("bottom"))
    sheet.link("pre", "fine", start="right", via=((11.4, 11.1), (11.4, 2.9)), end="right",
               color=PALETTE[1])  # fmt: skip
    sheet.text(11.75, 7.0, "copied", 11.5, color=PALETTE[1], rotation=90)
    return sheet.figure
