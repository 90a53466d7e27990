"""What the page on the shipped translators shows: where heads look, and what happens without one.

    shipped = models.load("transformer-en-zh")
    found = look(shipped, "March 5, 2021 and 3 days ago")
    found.table("cross", layer=1, head=1)

Layers and heads are counted from 0. A row of a map of the attention to the source is named by the
token that is written from it, not by the one that was read last.
"""

from __future__ import annotations

import copy
import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from toolkit import plots, widgets
from toolkit.attention.example_pictures import MEANINGS
from toolkit.corpora.translation import BOS, EOS, PAD, Pair, make_pairs, tokenize
from toolkit.models import Shipped
from toolkit.transformer.translation_task import Maps, attention_maps

MAX_LENGTH = 80
ATTENTIONS = {  # what a reader chooses: the field of `Maps`
    "source to source": "encoder",
    "target to itself": "decoder",
    "target to source": "cross",
}
_GLOSS = MEANINGS | {"前": "ago"}


# --------------------------------------------------------------------------- where it looks


@dataclass(frozen=True)
class Looked:
    """A translated sentence and the weights of every head.

    source: S tokens. read: U tokens that the decoder was given, <bos> first. written: the U tokens
    that it wrote from them, <eos> last. text: the translation. maps: of a batch of one.
    """

    source: list[str]
    read: list[str]
    written: list[str]
    text: str
    maps: Maps

    def weights(self, which: str, layer: int, head: int) -> Tensor:
        """One head's weights: which is "encoder" (S, S), "decoder" (U, U) or "cross" (U, S)."""
        return getattr(self.maps, which)[layer, 0, head]

    def table(self, which: str, layer: int, head: int) -> str:
        """One head's map as an HTML table; weights that round to 0 are printed as 0."""
        rows = {"encoder": self.source, "decoder": self.read, "cross": self.written}[which]
        columns = self.read if which == "decoder" else self.source
        shown = self.weights(which, layer, head)
        shown = torch.where(shown < 0.005, 0.0, shown)
        return widgets.side_by_side(
            widgets.heat_table(
                shown, _glossed(rows), columns, f"{which}, layer {layer}, head {head}"
            )
        )


def _glossed(tokens: Sequence[str]) -> list[str]:
    return [f"{token} {_GLOSS[token]}" if token in _GLOSS else token for token in tokens]


@torch.no_grad()
def look(shipped: Shipped, text: str) -> Looked:
    """Translate a sentence and keep the weights of every head.

    Raises:
        ValueError: words that the translator does not know.
    """
    words = shipped.tokenizer
    source = torch.tensor([words.encode(text)])  # (1, S)
    ids = shipped.module.cached_greedy_decode(shipped.model, source, MAX_LENGTH)[0].tolist()
    ids = [i for i in ids if i not in (EOS, PAD)]
    written = words.tokens(ids)
    maps = attention_maps(shipped.model, source, torch.tensor([[BOS, *ids]]))
    return Looked(
        tokenize(" ".join(text.split()), words.locales[0]),
        ["<bos>", *written],
        [*written, "<eos>"],
        words.decode(ids),
        maps,
    )


def heads_page(found: Looked) -> ipywidgets.VBox:
    """Every head of every layer, to be chosen without a kernel."""
    layers, heads = found.maps.cross.shape[0], found.maps.cross.shape[2]
    return widgets.frames(
        {
            "attention": list(ATTENTIONS),
            "layer": [str(n) for n in range(layers)],
            "head": [str(n) for n in range(heads)],
        },
        lambda which, layer, head: found.table(ATTENTIONS[which], int(layer), int(head)),
        start={"attention": 2, "layer": layers - 1, "head": 2},
    )


def aligned_pairs(shipped: Shipped, count: int, seed: int = 4711) -> list[Pair]:
    """New pairs that know which source token each target token renders, where that is certain."""
    return make_pairs(
        count, *shipped.tokenizer.locales, length=(1, 3), seed=seed, with_alignment=True
    )


@torch.no_grad()
def aligned_shares(shipped: Shipped, pairs: Sequence[Pair]) -> Tensor:
    """How often a head's largest weight lies on the source token that is being rendered.

    Args:
        pairs: with an alignment; the decoder is fed the references.

    Returns:
        (N, H): of each head of the attention to the source, the share of the target tokens whose
        source token is known.
    """
    hits, count = torch.zeros(()), 0
    for pair in pairs:
        source = torch.tensor([shipped.tokenizer.encode(pair.source)])  # (1, S)
        target_in = torch.tensor([[BOS, *shipped.tokenizer.ids(pair.target_tokens)]])  # (1, U)
        largest = attention_maps(shipped.model, source, target_in).cross[:, 0].argmax(-1)
        true = torch.tensor(pair.alignment)  # (U - 1,), -1 where it is not known
        known = true >= 0
        hits = hits + (largest[..., : len(true)] == true)[..., known].sum(-1)  # (N, H)
        count += int(known.sum())
    return hits / count


# --------------------------------------------------------------------------- what it is without


def without_head(shipped: Shipped, attention: str, layer: int, head: int) -> Shipped:
    """The translator with one head switched off: its share of the output projection is 0.

    Args:
        attention: "encoder", "decoder" (both self-attention) or "cross".
    """
    model = copy.deepcopy(shipped.model)
    stack = model.encoder if attention == "encoder" else model.decoder
    name = "src_attn" if attention == "cross" else "self_attn"
    weight = getattr(stack.layers[layer], name).out_proj.weight  # (D, D)
    width = weight.shape[1] // shipped.config["num_heads"]
    with torch.no_grad():
        weight[:, head * width : (head + 1) * width] = 0
    return dataclasses.replace(shipped, model=model)


def with_part(shipped: Shipped, kind: str, cls: type[nn.Module]) -> Shipped:
    """The translator with a class of one's own in place of one of the chapter's.

    Args:
        kind: "Embeddings", "MultiHeadAttention", "LayerNorm" or "PositionwiseFeedForward".
        cls: a class with the chapter's arguments and parameters; it gets the shipped weights.
    """
    sizes = shipped.config
    arguments: dict[str, tuple[int, ...]] = {
        "Embeddings": (sizes["vocab_size"], sizes["d_model"]),
        "MultiHeadAttention": (sizes["d_model"], sizes["num_heads"]),
        "LayerNorm": (sizes["d_model"],),
        "PositionwiseFeedForward": (sizes["d_model"], sizes["d_ff"]),
    }
    model = copy.deepcopy(shipped.model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if any(base.__name__ == kind for base in type(child).__mro__):
                made = cls(*arguments[kind])
                made.load_state_dict(child.state_dict())
                setattr(parent, name, made.eval())
    return dataclasses.replace(shipped, model=model)


def exact(shipped: Shipped, pairs: Sequence[Pair]) -> float:
    """Share of the pairs that are translated exactly."""
    texts = shipped.translate([pair.source for pair in pairs])
    return sum(t == p.target for t, p in zip(texts, pairs, strict=True)) / len(pairs)


def of_items(shipped: Shipped, items: int, count: int, seed: int = 4242) -> list[Pair]:
    """New pairs of so many items, without those that have a word the translator does not know."""
    known = []
    pairs = make_pairs(count, *shipped.tokenizer.locales, length=(items, items), seed=seed)
    for pair in pairs:
        try:
            shipped.tokenizer.encode(pair.source)
        except ValueError:
            continue
        known.append(pair)
    return known


# --------------------------------------------------------------------------- for the page


def say(shipped: Shipped, text: str) -> str:
    """The translation of a sentence, or why there is none."""
    try:
        return shipped.translate([text])[0]
    except ValueError as error:
        return str(error)


def typed_page(translators: Mapping[str, Shipped], texts: Sequence[str]) -> ipywidgets.VBox:
    """Sentences to choose from and their translations, without a kernel."""
    made = {
        text: {name: say(shipped, text) for name, shipped in translators.items()} for text in texts
    }

    def draw(text: str) -> str:
        lines = "".join(
            f"<p style='margin:.2em 0;overflow-wrap:anywhere'><i>{html.escape(name)}</i> "
            f"<b>{html.escape(found)}</b></p>"
            for name, found in made[text].items()
        )
        return f"<div style='max-width:100%'>{lines}</div>"

    return widgets.frames({"sentence": list(texts)}, draw)


def by_items(found: Mapping[str, Sequence[float]], trained: int = 3) -> Figure:
    """Share of exact sentences against the number of items, from 1 on.

    Args:
        found: name of a translator: shares.
        trained: items of a training sentence at most.
    """
    figure, ax = plt.subplots(figsize=(6.2, 2.7))
    for index, (name, shares) in enumerate(found.items()):
        ax.plot(
            range(1, 1 + len(shares)), [100 * s for s in shares], "o-",
            color=plots.PALETTE[index], label=name,
        )  # fmt: skip
    most = max(map(len, found.values()))
    ax.axvspan(trained + 0.5, most + 0.3, color="#e6e3dc", zorder=0)
    ax.text(trained + 0.6, 92, "never in training", fontsize=10.5)
    ax.set_xticks(range(1, most + 1))
    ax.set(xlabel="items in a sentence", ylabel="exactly right, %", xlim=(0.8, most + 0.3))
    ax.legend(loc="lower left", fontsize=10.5)
    return figure
