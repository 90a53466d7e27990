"""What the Transformer chapter is given: a translation task, rivals, maps and measurements.

    task = TranslationTask.make("en", "zh")
    model = make_model(len(task.source), len(task.target))
    attention_maps(model, source, target_in).cross
    scores(task.test, texts)["all"].bleu

* Translation: sentences of the CLDR, scores by sentence length.
* Rivals: recurrent translators with one fixed context or with attention.
* Maps: the weights of every head of every layer.
* Measurements: gradients at a distance, models of equal size, where curves cross.

The model and the search are arguments: they are what the chapter builds. A *translator*
is a module whose `forward(source (B, S), target_in (B, U))` returns log-probabilities (B, U, V); a
*search* is a function of (model, source (B, S), max_length) that returns ids (B, n) without `BOS`,
with `PAD` after each `EOS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.translation import (
    BOS,
    EOS,
    PAD,
    Pair,
    Vocabulary,
    make_pairs,
)
from toolkit.seq2seq.measures import bleu, exact_rate

Search = Callable[[nn.Module, Tensor, int], Tensor]

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


def by_cached_beam(
    cached_beam_search: Callable[..., Any], beam_size: int = 4, alpha: float = 0.6
) -> Search:
    """`by_beam` with a search that takes all sentences at once.

    Args:
        cached_beam_search: called with model, source (B, S), beam_size, max_length and alpha;
            returns for each sentence pairs (ids, score), best first.
    """

    def search(model: nn.Module, source: Tensor, max_length: int) -> Tensor:
        found = cached_beam_search(model, source, beam_size, max_length, alpha)
        rows = [torch.as_tensor(best, dtype=torch.int64) for (best, _), *_ in found]
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


# --------------------------------------------------------------------------- maps


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
    if mask is None:
        return torch.softmax(scores, -1)
    mask = mask[:, None] if mask.dim() == 3 else mask  # (B, 1, Tq, Tk)
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), -1)
    return weights.masked_fill(~mask, 0.0)  # not NaN for a query that may attend to nothing


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


# --------------------------------------------------------------------------- curves


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
