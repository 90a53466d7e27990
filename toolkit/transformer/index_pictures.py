"""The Transformer chapter in pictures: one sentence on its way through the shipped translator.

«2 days ago» becomes «vor 2 Tagen». Every number is one of the trained model, rounded to two places;
the four features that the tables show are some of those whose printed numbers add up as printed.
"""

from __future__ import annotations

import csv
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import models, own_models, widgets
from toolkit.attention.example_pictures import bars
from toolkit.corpora.translation import BOS, EOS, SPECIALS
from toolkit.diagrams import FILL, Sheet, tint
from toolkit.plots import INK, PALETTE
from toolkit.positional_encoding.example_pictures import table
from toolkit.transformer import translation_task

SENTENCE = "2 days ago"
FEATURES = (3, 33, 63, 74)


@dataclass(frozen=True)
class Followed:
    """What a pre-norm Transformer of N layers with H heads makes of one sentence.

    source: S tokens. read, said: U tokens, what the decoder reads and what it should say next.
    source_ids: S. read_ids, said_ids: U.
    parts: what is added up for each source token, (S, D) each, by name and in order: embedding
        times sqrt(D), position code, and the result of each sub-layer of the encoder.
    total: their sum (S, D). gamma, beta: (D,), of the encoder's last norm. memory: (S, D).
    scores: of the encoder (N, H, S, S), before the softmax.
    weights: encoder (N, H, S, S), decoder (N, H, U, U), cross (N, H, U, S).
    logits: (U, V). vocabulary: V tokens.
    inner: (N, S, F), inside the encoder's feed-forward networks, before the ReLU.
    states: (N + 1, U, D), the decoder's vectors before its first layer and after each.
    """

    source: tuple[str, ...]
    read: tuple[str, ...]
    said: tuple[str, ...]
    source_ids: tuple[int, ...]
    read_ids: tuple[int, ...]
    said_ids: tuple[int, ...]
    parts: dict[str, Tensor]
    total: Tensor
    gamma: Tensor
    beta: Tensor
    memory: Tensor
    scores: Tensor
    weights: translation_task.Maps
    logits: Tensor
    vocabulary: tuple[str, ...]
    inner: Tensor
    states: Tensor


@torch.no_grad()
def follow(model: nn.Module, shipped: own_models.ShippedWeights, text: str = SENTENCE) -> Followed:
    """Translate a sentence greedily, and keep every step.

    Args:
        model: the chapter's `EncoderDecoder` with the shipped weights, in eval mode.

    Raises:
        ValueError: a word that the translator does not know, or a model with post-norm.
    """
    if getattr(model.encoder, "norm", None) is None:
        raise ValueError("this is a post-norm model; what is shown are the sums of a pre-norm one")
    source = shipped.source(text)  # (1, S)
    written = own_models.write_greedily(model, source)
    read, said = [BOS, *written], [*written, EOS]
    target = torch.tensor([read])  # (1, U)
    kept: dict[str, tuple[Tensor, Tensor]] = {}  # name: first input and output of a module
    names = {"generator.proj": model.generator.proj, "norm": model.encoder.norm}
    for number, layer in enumerate(model.encoder.layers):
        names[f"attention, layer {number}"] = layer.self_attn
        names[f"inner, layer {number}"] = layer.feed_forward.w_1
        names[f"feed-forward, layer {number}"] = layer.feed_forward
    names |= {f"decoder, layer {n}": layer for n, layer in enumerate(model.decoder.layers)}

    def keeper(name: str) -> Any:
        return lambda _, given, out: kept.update({name: (given[0][0], out[0])})

    handles = [module.register_forward_hook(keeper(name)) for name, module in names.items()]
    try:
        model(source, target)
    finally:
        for handle in handles:
            handle.remove()
    embedded = model.src_embed(source)[0]  # (S, D)
    parts = {"embedding": embedded, "position": model.position(embedded[None])[0] - embedded}
    parts |= {name: kept[name][1] for name in names if name.startswith(("attention", "feed"))}
    count = len(model.encoder.layers)
    scores = [
        _scores(layer.self_attn, kept[f"attention, layer {number}"][0])
        for number, layer in enumerate(model.encoder.layers)
    ]
    inner = [kept[f"inner, layer {number}"][1] for number in range(count)]  # (S, F) each
    decoded = [kept[name] for name in names if name.startswith("decoder")]
    states = [decoded[0][0], *(out for _, out in decoded)]  # (U, D) each
    return Followed(
        tuple(shipped.words(text)), _tokens(shipped, read), _tokens(shipped, said),
        tuple(source[0].tolist()), tuple(read), tuple(said), parts, kept["norm"][0],
        model.encoder.norm.gamma, model.encoder.norm.beta, kept["norm"][1], torch.stack(scores),
        _first(translation_task.attention_maps(model, source, target)), kept["generator.proj"][1],
        _tokens(shipped, range(len(shipped.tokenizer))), torch.stack(inner),
        torch.stack(states),
    )  # fmt: skip


def _tokens(shipped: own_models.ShippedWeights, ids: Sequence[int]) -> tuple[str, ...]:
    count = len(SPECIALS)
    return tuple(SPECIALS[i] if i < count else shipped.tokenizer.tokens([i])[0] for i in ids)


def _first(maps: translation_task.Maps) -> translation_task.Maps:
    """The maps of the first sentence of a batch."""
    return translation_task.Maps(maps.encoder[:, 0], maps.decoder[:, 0], maps.cross[:, 0])


def _scores(attention: nn.Module, x: Tensor) -> Tensor:
    """Scores (H, T, T) of a self-attention that is given x (T, D)."""
    heads = attention.num_heads
    q, k = (
        layer(x).unflatten(-1, (heads, -1)).transpose(0, 1)  # (H, T, D/H)
        for layer in (attention.q_proj, attention.k_proj)
    )
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


@torch.no_grad()
def next_token(
    model: nn.Module, shipped: own_models.ShippedWeights, source: str, written: str
) -> dict[str, float]:
    """Probabilities of all tokens after some German words, given an English sentence."""
    ids = torch.tensor([[BOS, *shipped.tokenizer.ids(written.split())]])
    chances = model(shipped.source(source), ids)[0, -1].exp()  # (V,)
    return dict(zip(_tokens(shipped, range(len(chances))), chances.tolist(), strict=True))


# --------------------------------------------------------------------------- HTML


def _rounded(values: Tensor) -> Tensor:
    return torch.round(values.double(), decimals=2)


def input_page(found: Followed, features: Sequence[int] = FEATURES) -> str:
    """Embeddings, position codes and their sum in some features, side by side, as HTML."""
    columns = [str(i) for i in features]
    scaled, position = (found.parts[name][:, list(features)] for name in ("embedding", "position"))
    width = math.sqrt(found.memory.shape[-1])
    positions = [str(t) for t in range(len(found.source))]
    return widgets.side_by_side(
        table(scaled / width, found.source, columns, "embedding E", ".3f"),
        table(scaled, found.source, columns, f"E × {width:.2f}"),
        table(position, positions, columns, "+ position code"),
        table(_rounded(scaled + position), found.source, columns, "= input"),
    )


def looks_page(found: Followed, token: int, layer: int, head: int) -> str:
    """Scores and weights of one source token in one head of the encoder, as HTML."""
    notes = [f"score {s:.2f}" for s in found.scores[layer, head, token].tolist()]
    caption = f"«{found.source[token]}» in layer {layer}, head {head}"
    return bars(found.source, found.weights.encoder[layer, head, token], notes, caption)


def ledger_page(found: Followed, token: int, features: Sequence[int] = FEATURES) -> str:
    """What is added up for one source token, and the norm at the end, in some features, as HTML."""
    chosen = list(features)
    columns = [str(i) for i in features]
    width = math.sqrt(found.memory.shape[-1])
    names = {"embedding": f"embedding × {width:.2f}", "position": f"position {token}"}
    rows = [names.get(name, name) for name in found.parts]
    rows = [rows[0], *(f"+ {row}" for row in rows[1:]), "= sum"]
    values = [part[token, chosen] for part in found.parts.values()]
    sums = torch.stack([*values, found.total[token, chosen]])
    mean, deviation = centre(found, token)
    normed = (found.total[token, chosen] - mean) / deviation
    last = torch.stack(
        [normed, found.gamma[chosen], found.beta[chosen], found.memory[token, chosen]]
    )
    steps = [f"(sum − {mean:.2f}) / {deviation:.2f}", "× γ", "+ β", "= memory"]
    word = found.source[token]
    return widgets.side_by_side(
        table(sums, rows, columns, f"«{word}» in the encoder: features"),
        table(last, steps, columns, "the last norm"),
    )


def centre(found: Followed, token: int) -> tuple[float, float]:
    """Mean and standard deviation of a token's sum over all features, as for the last norm."""
    x = found.total[token]
    return float(x.mean()), float((x.var(unbiased=False) + 1e-5).sqrt())


def writing_page(found: Followed, step: int, layer: int = 1, head: int = 1, most: int = 5) -> str:
    """One step of the decoder: where it looks, and what it finds most probable, as HTML.

    Args:
        step: from 1; the decoder has read so many tokens.
        layer, head: whose weights are shown.
        most: how many tokens are shown.
    """
    read = found.read[:step]
    own = widgets.heat_table(
        found.weights.decoder[layer, head, :step, :step], read, read, "looks at what is written"
    )
    cross = widgets.heat_table(
        found.weights.cross[layer, head, :step], read, found.source, "looks at the source"
    )
    logits = found.logits[step - 1]  # (V,)
    best, ids = logits.topk(most)
    notes = [f"logit {x:.2f}" for x in best.tolist()]
    labels = [found.vocabulary[i] for i in ids.tolist()]
    chances = (best - logits.logsumexp(-1)).exp()
    return (
        f"<p>written: <b>{html.escape(' '.join(read))}</b></p>"
        + widgets.side_by_side(own, cross)
        + bars(labels, chances, notes, "next token")
    )


def forms_page(chances: Tensor, sources: Sequence[str], written: Sequence[str], word: str) -> str:
    """Probabilities (sources, written) of one word as the next token, as HTML."""
    caption = f"probability of «{word}»"
    return widgets.side_by_side(widgets.heat_table(chances, sources, written, caption))


def learner_page(
    caption: str, translations: Sequence[tuple[str, str, bool]], weights: Tensor,
    written: Sequence[str], source: Sequence[str],
) -> str:  # fmt: skip
    """What a model translates at some step of its training, and where it looks, as HTML.

    Args:
        translations: source, translation, and whether it is right.
        weights: (written, source), of the cross-attention for one sentence.
    """
    lines = "".join(
        f"<tr><td style='padding-right:1.2em'>{html.escape(text)}</td>"
        f"<td>{html.escape(said) or '(nothing)'}</td><td>{'✓' if right else ''}</td></tr>"
        for text, said, right in translations
    )
    return (
        f"<p>{html.escape(caption)}</p><table style='width:auto;margin:0'>{lines}</table>"
        + widgets.side_by_side(widgets.heat_table(weights, written, source, "looks at"))
    )


# --------------------------------------------------------------------------- figures


def journey(found: Followed) -> Figure:
    """The whole model with this sentence in it: what each part is, and the shape at every arrow."""
    layers, heads, source, _ = found.weights.encoder.shape
    target, width, vocabulary = len(found.read), found.memory.shape[-1], found.logits.shape[-1]
    inner = found.inner.shape[-1]
    left, right, bus = 3.6, 10.9, 7.2
    step, between = 1.78, 0.42  # from sub-layer to sub-layer, and more from layer to layer
    sheet = Sheet(14.5, 4.55 + layers * (3 * step + between) + 2.05)
    ends = {}
    for side, x, length, parts in (
        ("encoder", left, source, ["self-attention", "feed-forward"]),
        ("decoder", right, target, ["masked self-attention", "cross-attention", "feed-forward"]),
    ):
        tokens = found.source if side == "encoder" else found.read
        ids = found.source_ids if side == "encoder" else found.read_ids
        shape, number = f"(1, {length}, {width})", "① source" if side == "encoder" else "③ target"
        last = f"{side}.words"
        said = f"{'  '.join(tokens)}\n{'  '.join(map(str, ids))}"
        sheet.words(last, x, 0.6, said, width=5, height=1.2, size=13)
        name = f"{side}.input"
        text = f"{number} input\nembeddings, positions"
        sheet.node(name, x, 2.5, text, "query", width=5.2, height=1.25, size=12)
        _labelled(sheet, last, name, f"(1, {length})")
        last, y = name, 4.55
        outside = x - 3.3 if side == "encoder" else x + 3.3
        label = "② encoder" if side == "encoder" else "④ decoder"
        for layer in range(layers):
            bottom = y - 0.76
            for part in parts:
                name = f"{side}.{layer}.{part}"
                keys = source if part == "cross-attention" else length
                small = f"{width} → {inner} → {width}"
                if "attention" in part:
                    small = f"weights (1, {heads}, {length}, {keys})"
                colour = "weights" if "attention" in part else "value"
                sheet.node(name, x, y, f"{part}\n{small}", colour, width=5.2, height=1.25, size=12)
                _labelled(sheet, last, name, shape)
                last, y = name, y + step
            top = y - step + 0.76
            colour = tint(FILL["query" if side == "encoder" else "value"], 0.45)
            sheet.panel(x - 2.85, bottom, x + 2.85, top, color=colour)
            text = f"{label}, layer {layer}"
            sheet.text(outside, (bottom + top) / 2, text, 12, rotation=90)
            y += between
        ends[side] = (last, y)
    last, y = ends["encoder"]
    sheet.node("memory", left, y, "norm\nthe memory", "key", width=5.2, height=1.25, size=12)
    _labelled(sheet, last, "memory", shape := f"(1, {source}, {width})")
    sheet.text(left, y + 0.95, f"{shape} for every layer", 12, color=PALETTE[1])
    for layer in range(layers):
        name = f"decoder.{layer}.cross-attention"
        box = sheet.nodes[name]
        for part, up in (("K", 0.3), ("V", -0.3)):
            end = (box.side("left")[0], box.y + up)
            sheet.link(
                "memory", name, part, start="right", via=((bus, y), (bus, box.y + up)), end=end,
                color=PALETTE[1],
            )  # fmt: skip
            sheet.text(bus + 0.5, box.y + math.copysign(0.58, up), part, 12, color=PALETTE[1])
    last, y = ends["decoder"]
    text = "⑤ output\nnorm, linear, softmax"
    sheet.node("output", right, y, text, width=5.2, height=1.25, size=12)
    _labelled(sheet, last, "output", f"(1, {target}, {width})")
    sheet.words("said", right, y + 1.6, "  ".join(found.said), width=5, height=0.8, size=13)
    _labelled(sheet, "output", "said", f"(1, {target}, {vocabulary})")
    return sheet.figure


def _labelled(sheet: Sheet, source: str, target: str, shape: str) -> None:
    """An arrow upwards with the shape of what it carries."""
    sheet.link(source, target)
    x, start = sheet.nodes[source].side("top")
    middle = (start + sheet.nodes[target].side("bottom")[1]) / 2
    sheet.text(x + 0.25, middle, shape, 12, ha="left")


# --------------------------------------------------------------------------- training


def least_loss(vocab_size: int, smoothing: float = 0.1) -> float:
    """The least loss that label smoothing allows: that of predicting the smoothed target itself."""
    rest = smoothing / vocab_size
    right = 1 - smoothing + rest
    return -right * math.log(right) - (vocab_size - 1) * rest * math.log(rest)


def shipped_losses(name: str) -> dict[str, tuple[list[int], list[float]]]:
    """Steps and losses of the trainings behind a shipped model, by the name of each training."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    with (models.FOLDER / name / "training.csv").open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["loss"]:
                steps, losses = found.setdefault(row["model"], ([], []))
                steps.append(int(row["step"]))
                losses.append(float(row["loss"]))
    return found


def losses_and_floors(
    panels: Mapping[str, tuple[Mapping[str, tuple[Sequence[int], Sequence[float]]], float]],
) -> Figure:
    """Losses of trainings, a panel each, with the least that is possible as a dotted line.

    Args:
        panels: title -> (name -> (steps, losses), least loss).
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(6.2, 2.7), sharey=True, squeeze=False)
    for ax, (title, (curves, least)) in zip(axes[0], panels.items(), strict=True):
        for index, (name, (steps, losses)) in enumerate(curves.items()):
            ax.plot(steps, losses, color=PALETTE[index], lw=1.3, label=name)
        ax.axhline(least, ls=":", color=INK, lw=1.2)
        ax.text(steps[-1], least - 0.12, f"least {least:.2f}", ha="right", va="top", fontsize=10)
        ax.set(title=title, xlabel="step", ylim=(0, 5))
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
        ax.xaxis.set_major_locator(plt.MaxNLocator(3))
        if len(curves) > 1:
            ax.legend(fontsize=10)
    axes[0, 0].set_ylabel("loss per token")
    return figure
