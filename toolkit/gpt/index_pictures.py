"""The GPT chapter in pictures: the beginning of a function goes through the shipped model.

«def __len__(self): return»: every number is one of the trained model, rounded to two places. The
feature that the table shows is one of those whose printed numbers add up as printed.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from toolkit import widgets
from toolkit.attention.example_pictures import bars
from toolkit.bert.index_pictures import numbers_table
from toolkit.corpora.code_corpus import END, START
from toolkit.diagrams import FILL, SOFT, Sheet, through_layers
from toolkit.gpt.measures import attention_weights
from toolkit.models import Shipped
from toolkit.plots import INK, PALETTE

BEGINNING = "def __len__(self):"
TEXT = BEGINNING + "\n    return"
FEATURE = 103
HEADS = ((0, 3), (2, 1), (3, 1), (3, 3))  # (layer, head)
NAMES = ("__len__", "__repr__", "__hash__", "get_name")


@dataclass(frozen=True)
class Followed:
    """What a pre-norm GPT with N blocks and H heads makes of a text of T tokens.

    tokens, ids: T, the first is START. stages: the names of what is added to the vector of the last
    token: token, position, and attention and network of each block, 2 + 2N of them.
    added: (2 + 2N, D), what each adds. mean, deviation: of the sum's D entries. gamma, beta: (D,),
    of the final norm. features: (D,), what it returns. weights: (N, H, T, T).
    lens: the best next token and its probability if the model stopped after each stage, 2 + 2N of
    them; None after the token embedding alone. logits: (T, V). vocabulary: V tokens.
    """

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    stages: tuple[str, ...]
    added: Tensor
    mean: float
    deviation: float
    gamma: Tensor
    beta: Tensor
    features: Tensor
    weights: Tensor
    lens: tuple[tuple[str, float] | None, ...]
    logits: Tensor
    vocabulary: tuple[str, ...]

    def best(self, most: int, position: int = -1) -> dict[str, float]:
        """The most probable tokens after a position and their probabilities."""
        chances, ids = self.logits[position].softmax(-1).topk(most)
        return {self.vocabulary[i]: p for i, p in zip(ids.tolist(), chances.tolist(), strict=True)}


@torch.no_grad()
def follow(shipped: Shipped, text: str = TEXT) -> Followed:
    """Run the shipped GPT on a text, and keep every step of its last token."""
    model, pieces = shipped.model, shipped.tokenizer
    ids = [START, *pieces.encode(text)]
    vocabulary = pieces.names(range(len(pieces)))
    batch = torch.tensor([ids])  # (1, T)
    embedded, positions = model.token(batch), model.position(torch.arange(len(ids)))
    stages, added = ["token", "+ position"], [embedded[0, -1], positions[-1]]
    x = embedded + positions  # (1, T, D)
    lens: list[tuple[str, float] | None] = [None, _stopped(model, x, vocabulary)]
    for number, block in enumerate(model.blocks):
        for name, part, norm in (
            ("attention", block.attention, block.norm_1),
            ("network", block.feed_forward, block.norm_2),
        ):
            stages.append(f"+ {name} {number}")
            added.append(part(norm(x))[0, -1])
            x = x + part(norm(x))
            lens.append(_stopped(model, x, vocabulary))
    last, norm = x[0, -1], model.final_norm
    return Followed(
        tuple(pieces.names(ids)), tuple(ids), tuple(stages), torch.stack(added),
        last.mean().item(), last.std(unbiased=False).item(), norm.weight, norm.bias, norm(last),
        attention_weights(model, batch)[:, 0], tuple(lens), model(batch)[0], tuple(vocabulary),
    )  # fmt: skip


def _stopped(model: nn.Module, x: Tensor, vocabulary: Sequence[str]) -> tuple[str, float]:
    """The best next token if the final norm read x (1, T, D), and its probability."""
    chances = (model.final_norm(x[0, -1]) @ model.token.weight.T).softmax(-1)  # (V,)
    return vocabulary[int(chances.argmax())], float(chances.max())


@torch.no_grad()
def next_tokens(shipped: Shipped, text: str, most: int = 5) -> dict[str, float]:
    """The most probable tokens after a text and their probabilities."""
    pieces = shipped.tokenizer
    logits = shipped.model(torch.tensor([[START, *pieces.encode(text)]]))[0, -1]  # (V,)
    chances, ids = logits.softmax(-1).topk(most)
    return dict(zip(pieces.names(ids.tolist()), chances.tolist(), strict=True))


@torch.no_grad()
def without(shipped: Shipped, layer: int, head: int, text: str = TEXT) -> dict[str, float]:
    """What `next_tokens` says if one head returns zeros."""
    projection = shipped.model.blocks[layer].attention.out_proj
    width = projection.in_features // shipped.model.blocks[layer].attention.num_heads
    columns = slice(head * width, (head + 1) * width)
    kept = projection.weight[:, columns].clone()
    try:
        projection.weight[:, columns] = 0
        return next_tokens(shipped, text)
    finally:
        projection.weight[:, columns] = kept


@dataclass(frozen=True)
class Step:
    """One token that is written: what stood before, the best next tokens, and the chosen one."""

    before: str
    best: dict[str, float]
    token: str
    text: str
    chance: float


@torch.no_grad()
def write(shipped: Shipped, beginning: str = BEGINNING, most: int = 60) -> list[Step]:
    """Complete the beginning of a function with the most probable token each time, up to END."""
    pieces, steps = shipped.tokenizer, []
    ids = [START, *pieces.encode(beginning)]
    while ids[-1] != END and len(ids) < most:
        chances = shipped.model(torch.tensor([ids]))[0, -1].softmax(-1)  # (V,)
        values, found = chances.topk(5)
        best = dict(zip(pieces.names(found.tolist()), values.tolist(), strict=True))
        token = int(found[0])
        steps.append(
            Step(pieces.decode(ids), best, next(iter(best)), pieces.decode([token]),
                 float(values[0]))
        )  # fmt: skip
        ids.append(token)
    return steps


# --------------------------------------------------------------------------- HTML


def step_page(steps: Sequence[Step], number: int) -> str:
    """One step of writing: the code so far with the new token, and the best tokens, as HTML."""
    step = steps[number - 1]
    new = step.text or step.token
    marked = (
        f"{html.escape(step.before)}<mark style='background:#f9dcc4;color:#22252b'>"
        f"{html.escape(new)}</mark>"
    )
    caption = f"step {number} of {len(steps)}: the next token and its probability"
    return (
        "<pre style='min-height:4.2em;margin:.3em 0;white-space:pre-wrap'>"
        f"{marked}</pre>{bars(list(step.best), torch.tensor([*step.best.values()]), (), caption)}"
    )


def stream_page(found: Followed, feature: int = FEATURE) -> str:
    """What each part adds to the vector of the last token, and what would be said then, as HTML."""
    rows, sums = [], found.added[:, feature].cumsum(0).tolist()
    for value, total, said in zip(found.added[:, feature].tolist(), sums, found.lens, strict=True):
        token, chance = ("", "") if said is None else (said[0], f"{said[1]:.2f}")
        rows.append([_signed(value), _signed(total), token, chance])
    columns = ["adds", "sum", "next token", "p"]
    caption = f"the vector of «{found.tokens[-1]}», feature {feature}"
    return widgets.side_by_side(numbers_table(rows, found.stages, columns, caption))


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def heads_page(found: Followed, heads: Sequence[tuple[int, int]] = HEADS) -> str:
    """Where the last token looks in some heads: a row for each token, as HTML."""
    weights = torch.stack([found.weights[layer, head, -1] for layer, head in heads], 1)
    columns = [f"L{layer} H{head}" for layer, head in heads]
    caption = f"from «{found.tokens[-1]}»: layer L, head H"
    shown = widgets.heat_table(weights, found.tokens, columns, caption)
    return widgets.side_by_side(shown.replace("class=heat", "class=heat style='font-size:13px'"))


def swapped_page(shipped: Shipped, name: str) -> str:
    """What is most probable after «return» in a function of another name, as HTML."""
    best = next_tokens(shipped, f"def {name}(self):\n    return")
    line = f"def <b>{html.escape(name)}</b>(self):\n    return <b>?</b>"
    return f"<pre style='margin:.3em 0'>{line}</pre>" + bars(
        list(best), torch.tensor([*best.values()])
    )


def learned_text(answers: Mapping[str, Sequence[str]], beginning: str, index: int) -> str:
    """What was written after different parts of the training, its end cut off, as text."""
    parts = []
    for share, made in answers.items():
        text = made[index]
        cut = text if len(text) <= 44 else text[:41] + "..."
        parts.append(f"# after {share.replace('%', ' %')} of the steps\n{beginning}{cut}")
    return "\n\n".join(parts)


# --------------------------------------------------------------------------- figures


def journey(found: Followed) -> Figure:
    """The whole model with the text in it, from tokens to a prediction at each position."""
    layers, heads, length, _ = found.weights.shape
    width = len(found.features)
    shape = f"(1, {length}, {width})"
    names = [token.replace("[START]", "START") for token in found.tokens]
    text = "block {}: causal attention (1, {}, {}, {}), network"
    sheet, across, y = through_layers(
        list(zip(names, found.ids, strict=True)),
        length - 1, "① token + position",
        [text.format(layer, heads, length, length) for layer in range(layers)], shape,
        height=16.6, narrower=0.5, size=12,
    )  # fmt: skip
    middle, full = sheet.nodes["input"].x, sheet.nodes["input"].width
    sheet.text(middle + 0.3, y - 0.35, f"② blocks: {shape}", 12, ha="left")
    sheet.node("norm", middle, y + 0.75, f"③ final norm, logits (1, {length}, "
               f"{found.logits.shape[-1]:,}), softmax", "output", width=full, height=1.1,
               size=12.5)  # fmt: skip
    sheet.link(f"layer {layers - 1}", "norm")
    top = y + 3.3
    for t, x in enumerate(across):
        best, chance = next(iter(found.best(1, t).items()))
        sheet.arrow((x, y + 1.3), (x, top - 0.75))
        sheet.ax.add_patch(
            Rectangle((x - 0.62, top - 0.7), 1.24, 1.4, facecolor=FILL["value"], edgecolor=INK,
                      linewidth=1.8 if t == length - 1 else 0.7, gid=f"says:{t}")
        )  # fmt: skip
        sheet.text(
            x,
            top + 0.28,
            best,
            10.5 if len(best) < 7 else 9,
            weight="bold" if t == length - 1 else "normal",
        )
        sheet.text(x, top - 0.32, f"{chance:.2f}", 10.5, color=SOFT)
    sheet.text(0.15, top + 1.25, "④ the best next token after each position", 12.5, ha="left")
    return sheet.figure


def three_blocks() -> Figure:
    """An encoder layer, a decoder layer and a block of GPT-1, each with its own mask."""
    sheet = Sheet(12.4, 13.6)
    columns = (
        ("encoder layer", "encoder", False, ("self-attention", "feed-forward")),
        ("decoder layer", "decoder", True, ("self-attention", "cross-attention", "feed-forward")),
        ("GPT block", "gpt", True, ("self-attention", "feed-forward")),
    )
    kinds = {"self-attention": "weights", "cross-attention": "key", "feed-forward": "value"}
    for number, (title, name, causal, parts) in enumerate(columns):
        x = 2.1 + 4.1 * number
        sheet.text(x, 13.1, title, 13, weight="bold")
        side = 0.4
        for row in range(5):
            for column in range(5):
                seen = column <= row or not causal
                sheet.ax.add_patch(
                    Rectangle(
                        (x + side * (column - 2.5), 12.4 - side * (row + 1)), side - 0.06,
                        side - 0.06, facecolor=PALETTE[0] if seen else FILL["plain"],
                        gid=f"mask:{name}:{row}:{column}:{int(seen)}",
                    )
                )  # fmt: skip
        sheet.text(x, 9.95, "causal mask" if causal else "no mask", 11.5, color=SOFT)
        inputs = {"encoder": "source", "decoder": "target so far", "gpt": "text so far"}[name]
        below = f"{name}.in"
        sheet.words(below, x, 0.6, inputs, size=11.5, height=0.7)
        y = 2.1
        for part in parts:
            box, norm = f"{name}.{part}", f"{name}.norm {part}"
            sheet.node(box, x, y, part, kinds[part], width=3.7, height=1.05, size=11.5)
            sheet.node(norm, x, y + 1.25, "add, norm", "output", width=3.7, height=0.85, size=11)
            sheet.link(below, box)
            sheet.link(box, norm)
            below, y = norm, y + 2.7
        sheet.arrow((x, y - 1.02), (x, y - 0.55))
    cross = sheet.nodes["decoder.cross-attention"]
    source = sheet.nodes["encoder.norm feed-forward"].side("right")
    sheet.link("encoder.norm feed-forward", "decoder.cross-attention", "memory", start=source,
               via=((4.15, source[1]), (4.15, cross.y)), end="left",
               color=PALETTE[1])  # fmt: skip
    sheet.text(2.1, 7.55, "the encoder's output", 11, color=PALETTE[1])
    return sheet.figure


def ways() -> Figure:
    """Pre-training once, then two ways to a task: fine-tuning, which trains, and prompting."""
    sheet = Sheet(12.4, 14.9)
    sheet.text(0.1, 14.4, "1  pre-training, once", 13, ha="left", weight="bold")
    sheet.words("text", 6.2, 9.15, "plain text, cut into fixed-length chunks", size=12, height=0.7)
    sheet.node("pre", 6.2, 11.0, "GPT\nweights random at first", "weights", width=7.4, height=1.6,
               size=12)  # fmt: skip
    sheet.node("next", 6.2, 13.1, "the next token, at every position", "output", width=7.4,
               height=1.1, size=12)  # fmt: skip
    sheet.link("text", "pre")
    sheet.link("pre", "next")
    sheet.ax.plot([0.1, 12.3], [8.4, 8.4], color=SOFT, linewidth=0.8, linestyle=":")
    for x, title, name, below, inside, kind, above in (
        (3.1, "2a  fine-tuning", "tune", "labelled examples\n«text» → class 3",
         "GPT\nall weights go\non learning", "key", "new linear layer:\nclass 3"),
        (9.3, "2b  prompting", "prompt", "the task as text\n«a: 1, b: 2, c:»",
         "GPT\nno weight\nchanges", "output", "the next token:\n«3»"),
    ):  # fmt: skip
        sheet.text(x - 2.3, 7.75, title, 13, ha="left", weight="bold")
        sheet.words(f"{name}.in", x, 0.8, below, size=11.5, height=1.2)
        sheet.node(name, x, 3.4, inside, "weights", width=4.6, height=2.1, size=12)
        sheet.node(f"{name}.out", x, 6.0, above, kind, width=4.6, height=1.5, size=12)
        sheet.link(f"{name}.in", name)
        sheet.link(name, f"{name}.out")
        edge = x - 2.75 if x < 6 else x + 2.75
        side = "left" if x < 6 else "right"
        sheet.link("pre", name, start=side, via=((edge, 11.0), (edge, 3.4)), end=side,
                   color=PALETTE[1])  # fmt: skip
    sheet.text(1.0, 11.5, "copied", 11.5, color=PALETTE[1])
    sheet.text(11.4, 11.5, "copied", 11.5, color=PALETTE[1])
    return sheet.figure
