"""What the Transformer chapter is given: a translation task, rivals, maps and measurements.

    task = TranslationTask.make("en", "zh")
    model = make_model(len(task.source), len(task.target))
    batch = next(task.stream(token_batches))
    log_probs = model(batch.source, batch.target_in)
    inspect(model, task, "March 5, 2021 and 13 days", greedy_decode).table()

* Translation: sentences of the CLDR, batches of them, scores by sentence length.
* Rivals: recurrent translators with one fixed context or with attention.
* Maps: the weights of every head of every layer, as tables and beside a translation.
* Experiments: copying and gradients at a distance, calls and seconds of layers.

The model and the search are arguments: they are what the chapter builds. A *translator*
is a module whose `forward(source (B, S), target_in (B, U))` returns log-probabilities (B, U, V); a
*search* is a function of (model, source (B, S), max_length) that returns ids (B, n) without `BOS`,
with `PAD` after each `EOS`.
"""

from __future__ import annotations

import contextlib
import html
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ipywidgets
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, training, widgets
from toolkit.seq2seq_lab import bleu, exact_rate
from toolkit.translation import (
    BOS,
    EOS,
    PAD,
    Batch,
    Pair,
    Vocabulary,
    collate,
    detokenize,
    make_pairs,
    tokenize,
)

Search = Callable[[nn.Module, Tensor, int], Tensor]
MakeBatches = Callable[[list[tuple[int, int]], int], list[list[int]]]
MAX_TOKENS = 400  # of a batch, on either side
MAX_LENGTH = 80  # of a translation

# --------------------------------------------------------------------------- task


@dataclass(frozen=True)
class TranslationTask:
    """Sentences of one to a few CLDR items in two languages, with vocabularies.

    locales: of source and target.
    train: pairs to learn from.
    test: pairs whose sources are none of `train`, each once.
    source, target: vocabularies of the training pairs; the same one if it is shared.
    encoded: the ids of the training pairs, source and target, without start and end.
    """

    locales: tuple[str, str]
    train: list[Pair]
    test: list[Pair]
    source: Vocabulary
    target: Vocabulary
    encoded: list[tuple[list[int], list[int]]] = field(repr=False)

    @classmethod
    def make(
        cls, source: str = "en", target: str = "zh", *, pairs: int = 30_000, test: int = 600,
        most_items: int = 3, kinds: Sequence[str] | None = None, shared: bool = False,
        seed: int = 0,
    ) -> TranslationTask:  # fmt: skip
        """Draw the pairs.

        Args:
            source, target: locales of Babel.
            pairs: how many to learn from.
            test: how many to test on.
            most_items: sentences have 1 to so many items.
            kinds: which kinds of items; None for all.
            shared: whether both languages have one vocabulary.
            seed: the same seed gives the same pairs.

        Raises:
            ValueError: unknown locales or kinds, numbers below 1, or so few different sentences
                that none is left to test on.
        """
        if pairs < 1 or test < 1:
            raise ValueError(f"pairs and test must be 1 or more, not {pairs} and {test}")
        shape = {"length": (1, most_items), "kinds": kinds}
        train = make_pairs(pairs, source, target, seed=seed, **shape)
        known = {pair.source for pair in train}
        unseen: dict[str, Pair] = {}
        for attempt in range(20):  # short sentences are soon known: draw until there are enough
            more = make_pairs(2 * test, source, target, seed=seed + 7919 * (attempt + 1), **shape)
            unseen |= {pair.source: pair for pair in more if pair.source not in known}
            if len(unseen) >= test:
                break
        if len(unseen) < test:
            raise ValueError(
                f"only {len(unseen)} sentences of these kinds are left to test on, not {test}; ask "
                "for fewer pairs, for more kinds or more items"
            )
        tokens = [(pair.source_tokens, pair.target_tokens) for pair in train]
        if shared:
            left = right = Vocabulary.build(side for both in tokens for side in both)
        else:
            left = Vocabulary.build(s for s, _ in tokens)
            right = Vocabulary.build(t for _, t in tokens)
        ids = [(left.encode(s), right.encode(t)) for s, t in tokens]
        return cls((source, target), train, list(unseen.values())[:test], left, right, ids)

    def stream(
        self, token_batches: MakeBatches, max_tokens: int = MAX_TOKENS, seed: int = 0
    ) -> Iterator[Batch]:
        """Training batches without end: those of `token_batches`, in a new order in each pass.

        Args:
            token_batches: called with (source length, target length with `EOS`) of every pair and
                max_tokens; returns lists of indices.
        """
        lengths = [(len(source), len(target) + 1) for source, target in self.encoded]
        made = [
            collate([self.encoded[i][0] for i in rows], [self.encoded[i][1] for i in rows])
            for rows in token_batches(lengths, max_tokens)
        ]
        draw = torch.Generator().manual_seed(seed)
        while True:
            for place in torch.randperm(len(made), generator=draw).tolist():
                yield made[place]

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """All these pairs as one batch, in their order."""
        return collate(
            [self.source.encode(pair.source_tokens) for pair in pairs],
            [self.target.encode(pair.target_tokens) for pair in pairs],
        )

    def texts(self, ids: Tensor) -> list[str]:
        """What rows of target ids (B, n) say."""
        return [detokenize(self.target.decode(row), self.locales[1]) for row in ids.tolist()]

    def tokens(self, text: str) -> list[str]:
        """The tokens of a sentence that somebody types.

        Raises:
            ValueError: nothing but spaces, or words that no training sentence has.
        """
        tokens = tokenize(" ".join(text.split()), self.locales[0])
        if not tokens:
            raise ValueError("there is nothing to translate: type a sentence")
        unknown = list(dict.fromkeys(token for token in tokens if token not in self.source))
        if unknown:
            words = ", ".join(f"«{token}»" for token in unknown[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            example = min((pair.source for pair in self.test[:50]), key=lambda s: abs(len(s) - 30))
            raise ValueError(
                f"no training sentence has {words}{more}; the task is dates, times, quantities, "
                f"prices, countries and languages, written as in «{example}»"
            )
        return tokens

    def ids(self, text: str) -> Tensor:
        """The ids (1, S) of a sentence that somebody types; ValueError as `tokens`."""
        return torch.tensor([self.source.encode(self.tokens(text))])


def adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Adam as in Vaswani et al. 2017, section 5.3; all parameters in one kernel."""
    return torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.98), eps=1e-9, fused=True)


# --------------------------------------------------------------------------- rivals


class Rival(nn.Module):
    """A translator made of a recurrent model with the interface of the seq2seq chapter.

    Attributes:
        core: the model: `forward(source, target_in, source_mask)` -> logits (B, U, V),
            `start(source, source_mask)` -> state, `step(previous, state)` -> logits (B, V), state.
    """

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """source (B, S), target_in (B, U) -> log-probabilities (B, U, V)."""
        return F.log_softmax(self.core(source, target_in, source != PAD), dim=-1)

    def start(self, source: Tensor) -> Any:
        """The state before the first token."""
        return self.core.start(source, source != PAD)

    def step(self, previous: Tensor, state: Any) -> tuple[Tensor, Any]:
        """previous (B,) -> logits (B, V) and the new state."""
        return self.core.step(previous, state)


class _Recurrent(nn.Module):
    """GRUs of PyTorch on both sides; the decoder looks back if it is given how."""

    def __init__(
        self, source_words: int, target_words: int, width: int, look: nn.Module | None
    ) -> None:
        super().__init__()
        self.source = nn.Embedding(source_words, width, padding_idx=PAD)
        self.target = nn.Embedding(target_words, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(width, width)
        self.look = look
        if look is None:
            self.cell = nn.GRU(2 * width, width, batch_first=True)
        self.output = nn.Linear(2 * width, target_words)

    def start(self, source: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        lengths = mask.sum(1).cpu()  # (B,)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source(source), lengths, batch_first=True, enforce_sorted=False
        )
        packed, last = self.encoder(packed)  # last (2, B, W/2)
        states, _ = nn.utils.rnn.pad_packed_sequence(
            packed, batch_first=True, total_length=source.shape[1]
        )  # (B, S, W)
        context = torch.tanh(self.bridge(last.transpose(0, 1).flatten(1)))  # (B, W)
        return context, context, states, mask

    def step(self, previous: Tensor, state: tuple) -> tuple[Tensor, tuple]:
        s, context, states, mask = state
        y = self.target(previous)  # (B, W)
        if self.look is not None:
            s, context, _ = self.look(y, s, states, mask)  # (B, W) both
        else:
            _, last = self.cell(torch.cat([y, context], -1)[:, None], s[None])  # (1, B, W)
            s = last[0]  # (B, W)
        return self.output(torch.cat([s, context], -1)), (s, context, states, mask)

    def forward(self, source: Tensor, target_in: Tensor, mask: Tensor) -> Tensor:
        s, context, states, mask = self.start(source, mask)
        y = self.target(target_in)  # (B, U, W)
        if self.look is None:  # the whole target in one call
            contexts = context[:, None].expand_as(y)  # (B, U, W)
            seen, _ = self.cell(torch.cat([y, contexts], -1), s[None])  # (B, U, W)
            return self.output(torch.cat([seen, contexts], -1))  # (B, U, V)
        both = []
        for given in y.unbind(1):
            s, context, _ = self.look(given, s, states, mask)  # (B, W) both
            both.append(torch.cat([s, context], -1))
        return self.output(torch.stack(both, 1))  # (B, U, V)


def recurrent_rival(
    source_words: int, target_words: int, width: int, look: nn.Module | None = None
) -> Rival:
    """A recurrent translator by PyTorch's GRU, so that its speed is no handicap.

    Args:
        source_words, target_words: sizes of the vocabularies.
        width: of embeddings and states.
        look: None for one fixed context (Cho et al. 2014). For attention (Bahdanau et al. 2015) a
            module called with the previous embedding (B, W), the previous state (B, W), the states
            of the encoder (B, S, W) and the mask (B, S), that returns the new state (B, W), the
            context (B, W) and the weights: `AttentionDecoderStep(width, width, width, width)`.

    Raises:
        ValueError: an odd width: each direction of the encoder gets half of it.
    """
    if width < 2 or width % 2:
        raise ValueError(f"width must be even and 2 or more, not {width}")
    return Rival(_Recurrent(source_words, target_words, width, look))


@torch.no_grad()
def greedy_recurrent(model: Rival, source: Tensor, max_length: int) -> Tensor:
    """Greedy search with a recurrent translator: ids (B, n)."""
    state = model.start(source)
    previous = torch.full_like(source[:, 0], BOS)  # (B,)
    ended = torch.zeros_like(previous, dtype=torch.bool)  # (B,)
    ids = []
    while len(ids) < max_length and not ended.all():
        logits, state = model.step(previous, state)  # (B, V)
        previous = logits.argmax(-1).masked_fill(ended, PAD)  # (B,)
        ids.append(previous)
        ended = ended | (previous == EOS)
    return torch.stack(ids, 1)  # (B, n)


def by_beam(beam_search: Callable[..., Any], beam_size: int = 4, alpha: float = 0.6) -> Search:
    """A search of many sentences out of one that takes a single sentence.

    Args:
        beam_search: called with model, source (1, S), beam_size, max_length and alpha; returns
            pairs (ids, score), best first.
    """

    def search(model: nn.Module, source: Tensor, max_length: int) -> Tensor:
        rows = []
        for row in source:
            real = row[row != PAD][None]  # (1, S')
            (ids, _), *_ = beam_search(model, real, beam_size, max_length, alpha)
            rows.append(torch.as_tensor(ids, dtype=torch.int64))
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)  # (B, n)

    return search


# --------------------------------------------------------------------------- scores


@dataclass(frozen=True)
class Score:
    """exact: share of translations that equal the reference, character for character.
    bleu: corpus BLEU by sacreBLEU, 0 to 100. sentences: how many there were."""

    exact: float
    bleu: float
    sentences: int


def thirds(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Pairs in three groups of about the same size, by source length."""
    lengths = [len(pair.source_tokens) for pair in pairs]
    ordered = sorted(lengths)
    first, second = (ordered[len(ordered) * k // 3] for k in (1, 2))
    bounds = [(ordered[0], first - 1), (first, second - 1), (second, ordered[-1])]
    groups = {
        f"{low}-{high} tokens": [p for p, n in zip(pairs, lengths, strict=True) if low <= n <= high]
        for low, high in bounds
        if low <= high
    }
    return {name: group for name, group in groups.items() if group}


def scores(pairs: Sequence[Pair], texts: Sequence[str]) -> dict[str, Score]:
    """How good translations of pairs are: of "all", and of each third by source length.

    Args:
        pairs: different sources.

    Raises:
        ValueError: if there is not one text for each pair.
    """
    if len(texts) != len(pairs):
        raise ValueError(f"{len(texts)} translations of {len(pairs)} sentences")
    by_source = {pair.source: text for pair, text in zip(pairs, texts, strict=True)}
    result = {}
    for name, group in {"all": pairs, **thirds(pairs)}.items():
        mine = [by_source[pair.source] for pair in group]
        result[name] = Score(exact_rate(mine, group), bleu(mine, group), len(group))
    return result


# --------------------------------------------------------------------------- translate and look


@dataclass(frozen=True)
class Maps:
    """Attention weights of N layers with H heads each.

    encoder: (N, B, H, S, S). decoder: (N, B, H, U, U). cross: (N, B, H, U, S).
    """

    encoder: Tensor
    decoder: Tensor
    cross: Tensor


@torch.no_grad()
def attention_maps(model: nn.Module, source: Tensor, target_in: Tensor) -> Maps:
    """The weights of every head in every layer of the chapter's model, in eval mode.

    Each attention is asked what it was given; the weights follow from its `q_proj` and `k_proj`.

    Args:
        model: an EncoderDecoder: `encoder.layers[i].self_attn`, `decoder.layers[i].self_attn` and
            `decoder.layers[i].src_attn`, each with `q_proj`, `k_proj` and `num_heads`.
        source: (B, S) int64. target_in: (B, U) int64, begins with `BOS`.

    Raises:
        ValueError: a model with other parts.
    """
    try:
        groups = {
            "encoder": [layer.self_attn for layer in model.encoder.layers],
            "decoder": [layer.self_attn for layer in model.decoder.layers],
            "cross": [layer.src_attn for layer in model.decoder.layers],
        }
    except AttributeError as error:
        raise ValueError(
            f"the maps are read from encoder.layers, decoder.layers and their attentions ({error})"
        ) from None
    given: dict[nn.Module, tuple[Tensor, Tensor, Tensor | None]] = {}

    def remember(module: nn.Module, args: tuple, kwargs: dict, result: Any) -> None:
        named = dict(zip(("query", "key", "value", "mask"), args, strict=False)) | kwargs
        given[module] = named["query"], named["key"], named.get("mask")

    handles = [
        attention.register_forward_hook(remember, with_kwargs=True)
        for attentions in groups.values()
        for attention in attentions
    ]
    training_mode = model.training
    try:
        model.eval()
        model(source, target_in)
    finally:
        model.train(training_mode)
        for handle in handles:
            handle.remove()
    stacked = {}
    for name, attentions in groups.items():
        if any(attention not in given for attention in attentions):
            raise ValueError(f"an attention of {name} was not called by the model's forward")
        stacked[name] = torch.stack([_weights(a, *given[a]) for a in attentions]).cpu()
    return Maps(**stacked)


def _weights(attention: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """What softmax(Q K^T / sqrt(d)) is for this query and key: (B, H, Tq, Tk)."""
    width = attention.q_proj.out_features
    heads = getattr(attention, "num_heads", None)
    if not isinstance(heads, int):
        raise ValueError("an attention needs the attribute num_heads, a number")
    q, k = (
        layer(x).unflatten(-1, (heads, width // heads)).transpose(1, 2)  # (B, H, T, D/H)
        for layer, x in ((attention.q_proj, query), (attention.k_proj, key))
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(width // heads)  # (B, H, Tq, Tk)
    if mask is not None:
        mask = mask[:, None] if mask.dim() == 3 else mask  # (B, 1, Tq, Tk)
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1)


ATTENTIONS = {
    "encoder": "source looks at source",
    "decoder": "target looks at itself",
    "cross": "target looks at source",
}


def maps_table(
    maps: Maps, row: int, which: str, layer: int, source_tokens: Sequence[str],
    target_tokens: Sequence[str],
) -> str:  # fmt: skip
    """All heads of a layer side by side, as HTML.

    Args:
        row: of the batch.
        which: "encoder", "decoder" or "cross".
        layer: 0 to N - 1.
        source_tokens: labels of the source; padding behind them is left out.
        target_tokens: labels of what the decoder reads, <bos> first.

    Raises:
        ValueError: another attention, or labels that do not fit.
    """
    if which not in ATTENTIONS:
        raise ValueError(f"which must be one of {', '.join(ATTENTIONS)}, not {which!r}")
    rows = source_tokens if which == "encoder" else target_tokens
    columns = target_tokens if which == "decoder" else source_tokens
    heads = getattr(maps, which)[layer, row, :, : len(rows), : len(columns)]  # (H, Tq, Tk)
    return widgets.side_by_side(
        *(
            widgets.heat_table(head, rows, columns, f"head {number}")
            for number, head in enumerate(heads, 1)
        )
    )


@dataclass(frozen=True)
class Translation:
    """A translated sentence and what the model looked at.

    source, text: the sentence and its translation. source_tokens: S tokens. target_tokens: what
    the decoder read, beginning with <bos>: U tokens. maps: of a batch of one.
    """

    source: str
    text: str
    source_tokens: list[str]
    target_tokens: list[str]
    maps: Maps

    def table(self, which: str = "cross", layer: int = -1) -> str:
        """`maps_table` of this sentence; the last layer without a number."""
        layer %= len(self.maps.cross)
        return maps_table(self.maps, 0, which, layer, self.source_tokens, self.target_tokens)


@torch.no_grad()
def inspect(
    model: nn.Module, task: TranslationTask, text: str, search: Search, max_length: int = MAX_LENGTH
) -> Translation:
    """Translate a sentence and keep the weights of every head.

    Raises:
        ValueError: as `TranslationTask.tokens`.
    """
    where = next(model.parameters()).device
    tokens = task.tokens(text)
    source = task.ids(text).to(where)  # (1, S)
    ids = search(model, source, max_length)  # (1, n)
    written = [i for i in ids[0].tolist() if i not in (PAD, EOS)]
    target_in = torch.tensor([[BOS, *written]], device=where)  # (1, U)
    maps = attention_maps(model, source, target_in)
    read = [task.target.words[i] for i in target_in[0].tolist()]
    return Translation(text, task.texts(ids)[0], tokens, read, maps)


def translation_page(
    model: nn.Module, task: TranslationTask, texts: Sequence[str], search: Search,
    max_length: int = MAX_LENGTH,
) -> ipywidgets.VBox:  # fmt: skip
    """Sentences with their translations and maps, to be looked at without a kernel.

    Args:
        texts: the sentences to choose from.
    """
    made = {text: inspect(model, task, text, search, max_length) for text in texts}
    layers = [f"layer {n}" for n in range(1, 1 + len(next(iter(made.values())).maps.cross))]
    which = {says: name for name, says in ATTENTIONS.items()}

    def draw(text: str, attention: str, layer: str) -> str:
        return _head(made[text]) + made[text].table(which[attention], layers.index(layer))

    controls = {"sentence": list(made), "attention": list(which), "layer": layers}
    return widgets.frames(controls, draw, start={"attention": 2, "layer": len(layers) - 1})


def _head(made: Translation) -> str:
    return f"<p>{html.escape(made.source)}<br><b>{html.escape(made.text)}</b></p>"


def translation_box(
    model: nn.Module, task: TranslationTask, search: Search, text: str = "",
    max_length: int = MAX_LENGTH,
) -> ipywidgets.VBox:  # fmt: skip
    """A line to type a sentence in; Enter translates it and shows the maps. Needs a kernel.

    Args:
        text: what stands in the line at first, already translated.
    """
    layers = len(model.decoder.layers)
    line = ipywidgets.Text(
        value=text, continuous_update=False, description="sentence",
        layout={"width": "100%", "max_width": "44em"},
    )  # fmt: skip
    which = ipywidgets.ToggleButtons(
        options=[(says, name) for name, says in ATTENTIONS.items()], value="cross",
        description="attention",
    )  # fmt: skip
    layer = ipywidgets.ToggleButtons(
        options=[(f"layer {n + 1}", n) for n in range(layers)], value=layers - 1,
        description="layer",
    )  # fmt: skip
    for buttons in (which, layer):
        buttons.style.button_width = "auto"
    shown = ipywidgets.HTML()
    made: dict[str, Translation] = {}

    def show(_: Any = None) -> None:
        if not line.value.strip():
            shown.value = "<p>Type a sentence and press Enter.</p>"
            return
        try:
            if line.value not in made:
                made.clear()  # one sentence is kept, for the buttons
                made[line.value] = inspect(model, task, line.value, search, max_length)
        except ValueError as error:
            shown.value = f"<p>{html.escape(str(error))}</p>"
            return
        shown.value = _head(made[line.value]) + made[line.value].table(which.value, layer.value)

    for control in (line, which, layer):
        control.observe(show, "value")
    show()
    return ipywidgets.VBox([line, which, layer, shown])


# --------------------------------------------------------------------------- counting calls


@dataclass
class Calls:
    """How often modules ran, by their place in what was counted; `total` is the sum."""

    each: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.each.values())


@contextlib.contextmanager
def counted(modules: nn.Module | Iterable[nn.Module]) -> Iterator[Calls]:
    """Counts the forward calls of modules.

    with counted(model.decoder.layers) as calls:
        greedy_decode(model, source, 20)
    print(calls.total)

    Args:
        modules: one module, or several (a ModuleList is several).
    """
    single = isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList)
    several = [modules] if single else list(modules)
    calls = Calls(dict.fromkeys(range(len(several)), 0))

    def count(place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            calls.each[place] += 1

        return hook

    handles = [m.register_forward_hook(count(place)) for place, m in enumerate(several)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


# --------------------------------------------------------------------------- distance


class RecurrentEncoder(nn.Module):
    """A recurrent layer of PyTorch, from left to right: (B, T, D) -> (B, T, D)."""

    def __init__(self, width: int, kind: str = "GRU", layers: int = 1) -> None:
        """kind is "RNN", "GRU" or "LSTM"; ValueError for another."""
        super().__init__()
        if kind not in ("RNN", "GRU", "LSTM"):
            raise ValueError(f"kind must be RNN, GRU or LSTM, not {kind!r}")
        self.layer = getattr(nn, kind)(width, width, num_layers=layers, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D) -> the states (B, T, D); there is no padding to mask."""
        return self.layer(x)[0]


class ConvEncoder(nn.Module):
    """A small convolutional encoder: gated convolutions with residuals (Gehring et al. 2017).

    Every layer computes twice as many channels as it returns; one half, through a sigmoid, is the
    gate of the other (GLU). The input is added and the sum scaled by sqrt(1/2).

    Attributes:
        reach: the farthest distance between two positions of which one can know of the other.
    """

    def __init__(self, width: int, layers: int, kernel: int = 3) -> None:
        """kernel is an odd number of positions; ValueError for an even one or no layers."""
        super().__init__()
        if kernel < 1 or kernel % 2 == 0 or layers < 1:
            raise ValueError(f"kernel must be odd and layers 1 or more, not {kernel} and {layers}")
        self.layers = nn.ModuleList(
            nn.Conv1d(width, 2 * width, kernel, padding=kernel // 2) for _ in range(layers)
        )
        self.reach = layers * (kernel // 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D) -> (B, T, D); there is no padding to mask."""
        x = x.transpose(1, 2)  # (B, D, T)
        for layer in self.layers:
            x = (x + F.glu(layer(x), dim=1)) * math.sqrt(0.5)  # (B, D, T)
        return x.transpose(1, 2)  # (B, T, D)


def parameters(module: nn.Module) -> int:
    """How many numbers a module learns; shared ones count once."""
    return sum(p.numel() for p in module.parameters())


def matching_width(
    make: Callable[[int], nn.Module], size: int, step: int = 4, most: int = 1024
) -> int:
    """The multiple of `step` at which `make(width)` comes closest to `size` parameters."""
    widths = range(step, most + 1, step)
    best = widths[0]
    for width in widths:
        count = parameters(make(width))
        if abs(count - size) < abs(parameters(make(best)) - size):
            best = width
        if count > size:
            break
    return best


class _Copier(nn.Module):
    """Embedding, positions, an encoder, and a read-out of the last position."""

    def __init__(self, encoder: nn.Module, words: int, width: int, places: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(places, width)) if places else None
        self.encoder = encoder
        self.output = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # (B, T, D)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]  # (B, T, D)
        return self.output(self.encoder(x, None)[:, -1])  # (B, words)


def copy_rate(
    encoder: nn.Module, distance: int, *, width: int, positions: bool = True, symbols: int = 8,
    steps: int | None = None, lr: float = 3e-3, seed: int = 0,
    preset: device.Preset | None = None,
) -> float:  # fmt: skip
    """Train on naming the symbol that stands `distance` places back; share right on new sequences.

    Every sequence has distance + 1 random symbols; at the last place the first is to be named.

    Args:
        encoder: called with (B, T, width) and None; returns (B, T, width). Trained in place.
        positions: whether learned vectors for the positions are added to the embeddings.
        symbols: how many there are to choose from; guessing gets 1 / symbols right.
        steps: of training; as many as the preset has if not given.
    """
    if distance < 1:
        raise ValueError(f"distance must be 1 or more, not {distance}")
    chosen = preset or device.preset()
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = _Copier(encoder, symbols, width, distance + 1 if positions else 0)

    def loss(step: int) -> Tensor:
        tokens = torch.randint(symbols, (chosen.batch_size, distance + 1), generator=draw)
        tokens = tokens.to(chosen.device)
        return F.cross_entropy(model(tokens).float(), tokens[:, 0])

    training.fit(
        model, loss, steps or chosen.steps, lr=lr, schedule="warm-up", seed=seed, preset=chosen,
        progress=False,
    )  # fmt: skip
    unseen = torch.randint(symbols, (500, distance + 1), generator=draw).to(chosen.device)
    with torch.no_grad():
        return float((model(unseen).argmax(-1) == unseen[:, 0]).float().mean())


def gradient_reach(encoder: nn.Module, length: int, *, width: int, seed: int = 0) -> Tensor:
    """How strongly the last output depends on each input, before any training.

    Returns:
        (length,): the norm of the gradient of the last output, in a random direction, with respect
        to the input that is 0, 1, ... places back, divided by the one that is 0 places back; mean
        over 32 sequences.
    """
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(32, length, width, generator=draw).requires_grad_()  # (B, T, D)
    direction = torch.randn(32, width, generator=draw)
    mode = encoder.training
    encoder.eval()
    (gradient,) = torch.autograd.grad((encoder(x, None)[:, -1] * direction).sum(), x)  # (B, T, D)
    encoder.train(mode)
    size = gradient.norm(dim=-1).mean(0).flip(0)  # (T,), by distance
    return size / size[0]


# --------------------------------------------------------------------------- seconds


def layer_seconds(
    make: Callable[[int, int], tuple[Callable[..., Any], Tensor]],
    points: Sequence[tuple[int, int]], *,
    backward: bool = False, repeats: int = 7,
) -> list[float]:  # fmt: skip
    """Seconds of one call of a layer at several sizes.

    All points are measured in turn, `repeats` times, so that a busy moment of the machine does not
    fall on one of them alone; the smallest of the times counts. With one thread on a CPU it is the
    time of the processor, which other programs do not lengthen.

    Args:
        make: called with n and d; returns a layer and what it is called with, (B, n, d) or
            (B, n), on the device where it is to run.
        points: pairs (n, d).
        backward: measure the gradient of the weights and of a floating-point input too.
    """
    cases = [make(n, d) for n, d in points]
    gpu = any(x.is_cuda for _, x in cases)
    clock = time.process_time if not gpu and torch.get_num_threads() == 1 else time.perf_counter

    def once(layer: Callable[..., Any], x: Tensor) -> float:
        if backward and x.is_floating_point():
            x = x.detach().requires_grad_()
        began = clock()
        with torch.set_grad_enabled(backward):
            result = layer(x)
            result = result[0] if isinstance(result, tuple) else result
            if backward:
                result.sum().backward()
        if gpu:
            torch.cuda.synchronize()
        return clock() - began

    best = [math.inf] * len(cases)
    for case in cases:
        once(*case)  # the first call sets things up
    for _ in range(repeats):
        for place, case in enumerate(cases):
            best[place] = min(best[place], once(*case))
    return best


def crossover(xs: Sequence[float], first: Sequence[float], second: Sequence[float]) -> float | None:
    """Where one curve, below the other at first, overtakes it.

    Both are taken as straight lines between the points, in logarithms.

    Returns:
        The smallest x at which `first` reaches `second` from below; None if it is not below at the
        first point or never reaches it.
    """
    gap = [math.log(a) - math.log(b) for a, b in zip(first, second, strict=True)]
    if len(gap) != len(xs):
        raise ValueError(f"{len(xs)} places and {len(gap)} values")
    if not gap or gap[0] >= 0:
        return None
    for k in range(1, len(gap)):
        if gap[k] >= 0:
            share = gap[k - 1] / (gap[k - 1] - gap[k])
            a, b = math.log(xs[k - 1]), math.log(xs[k])
            return math.exp(a + share * (b - a))
    return None
