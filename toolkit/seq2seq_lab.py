"""Models, data and measurements that the sequence-to-sequence chapter is given.

* Recall: a recurrent network that has to name a symbol it saw some steps ago, and how much gradient
  comes back from each distance before any training.
* Corpora: CLDR sentences of several items each, divided by length; exact matches and BLEU.
* Search: what a beam looks at, step by step, and the same as tables for a page.
"""

from __future__ import annotations

import html
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from toolkit import device, tasks, training, widgets
from toolkit.translation import (
    BOS,
    EOS,
    PAD,
    Batch,
    Pair,
    Vocabulary,
    batches,
    detokenize,
    make_pairs,
)

KINDS = ("RNN", "GRU", "LSTM")


# --------------------------------------------------------------------------- memory


class Recall(nn.Module):
    """Embedding, one recurrent layer of PyTorch, and a read-out of the last state."""

    def __init__(self, kind: str, words: int, width: int, keep: float = 0.0) -> None:
        """Create the layers.

        Args:
            kind: "RNN", "GRU" or "LSTM".
            words: how many different ids the tokens have.
            width: of embedding and state.
            keep: added to the bias of the gate that keeps the old state (update gate of the GRU,
                forget gate of the LSTM), so that it starts nearly open.

        Raises:
            ValueError: for another kind, or `keep` with a cell that has no such gate.
        """
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        if keep and kind == "RNN":
            raise ValueError("a plain RNN has no gate to keep open")
        self.embedding = nn.Embedding(words, width)
        self.layer = getattr(nn, kind)(width, width, batch_first=True)
        self.output = nn.Linear(width, words)
        if keep:
            with torch.no_grad():  # z and f are both the second block of rows
                self.layer.bias_ih_l0[width : 2 * width] += keep

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) int64 -> logits (B, words) from the last state."""
        states, _ = self.layer(self.embedding(tokens))  # (B, T, H)
        return self.output(states[:, -1])  # (B, words)


def recall_rate(
    kind: str, delay: int, *, symbols: int = 8, keep: float = 0.0, seed: int = 0,
    preset: device.Preset | None = None,
) -> float:  # fmt: skip
    """Train on delayed recall among random symbols; the share of right answers on new sequences.

    Args:
        kind, keep: see `Recall`.
        delay: other symbols between the one that counts and the question.
        symbols: how many symbols there are to choose from; guessing gets 1 / symbols right.
    """
    chosen = preset or device.preset()
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = Recall(kind, symbols + 2, chosen.d_model // 2, keep)

    def loss(step: int) -> Tensor:
        task = tasks.delayed_recall(chosen.batch_size, delay, symbols, draw, noise=True)
        logits = model(task.tokens.to(chosen.device))
        return nn.functional.cross_entropy(logits.float(), task.targets.to(chosen.device))

    training.fit(model, loss, chosen.steps // 2, seed=seed, preset=chosen)
    unseen = tasks.delayed_recall(500, delay, symbols, draw, noise=True)
    with torch.no_grad():
        answers = model(unseen.tokens.to(chosen.device)).argmax(-1).cpu()
    return float((answers == unseen.targets).float().mean())


def gradient_by_distance(kind: str, length: int, *, width: int = 32, keep: float = 0.0,
                         seed: int = 0) -> Tensor:  # fmt: skip
    """How strongly the last state depends on each input, before training.

    Returns:
        (length,): the norm of the gradient of the last state with respect to the input that is 0,
        1, ... steps back, relative to the one that is 0 steps back; mean over 64 sequences.
    """
    torch.manual_seed(seed)
    layer = Recall(kind, 4, width, keep).layer
    x = torch.randn(64, length, width, requires_grad=True)  # (B, T, E)
    states, _ = layer(x)  # (B, T, H)
    direction = torch.randn(64, width)
    (gradient,) = torch.autograd.grad((states[:, -1] * direction).sum(), x)  # (B, T, E)
    size = gradient.norm(dim=-1).mean(0).flip(0)  # (T,), by distance
    return size / size[0]


# --------------------------------------------------------------------------- corpora


@dataclass(frozen=True)
class Corpus:
    """Sentences of one to several items, with vocabularies of both sides.

    train: pairs by the number of items.
    test: pairs of all numbers of items, none of whose sources is in `train`.
    """

    locales: tuple[str, str]
    train: dict[int, list[Pair]]
    test: list[Pair]
    source: Vocabulary
    target: Vocabulary

    @classmethod
    def make(
        cls, source: str, target: str, kinds: Sequence[str], most_items: int, *, train: int = 4000,
        test: int = 300, seed: int = 0,
    ) -> Corpus:  # fmt: skip
        """Draw `train` and `test` pairs for each number of items from 1 to `most_items`."""
        lists = {
            items: make_pairs(
                train, source, target, kinds=kinds, length=items, seed=seed + items
            )
            for items in range(1, most_items + 1)
        }  # fmt: skip
        known = {pair.source for pairs in lists.values() for pair in pairs}
        unseen: dict[str, Pair] = {}
        for items in lists:
            drawn = make_pairs(
                4 * test, source, target, kinds=kinds, length=items, seed=seed + 1000 + items,
                with_alignment=True,
            )  # fmt: skip
            new = {pair.source: pair for pair in drawn if pair.source not in known}
            unseen.update(itertools.islice(new.items(), test))
        everything = [pair for pairs in lists.values() for pair in pairs]
        return cls(
            (source, target), lists, list(unseen.values()),
            Vocabulary.build([pair.source_tokens for pair in everything]),
            Vocabulary.build([pair.target_tokens for pair in everything]),
        )  # fmt: skip

    def stream(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """Training batches without end; all sentences of a batch have the same number of items, so
        that there is little padding."""
        draw = torch.Generator().manual_seed(seed)
        streams = [
            batches(pairs, self.source, self.target, batch_size, draw, forever=True)
            for pairs in self.train.values()
        ]
        for stream in itertools.cycle(streams):
            yield next(stream)

    def batch(self, pairs: Sequence[Pair]) -> Batch:
        """All these pairs as one batch, in their order."""
        return next(batches(pairs, self.source, self.target, len(pairs)))

    def by_length(self, edges: Sequence[int]) -> dict[tuple[int, int], list[Pair]]:
        """The test pairs by the number of their source tokens.

        Args:
            edges: (a, b, c, ...) for the groups a to b - 1, b to c - 1, ...
        """
        groups: dict[tuple[int, int], list[Pair]] = {
            (low, high - 1): [] for low, high in itertools.pairwise(edges)
        }
        for pair in self.test:
            for low, high in groups:
                if low <= len(pair.source_tokens) <= high:
                    groups[low, high].append(pair)
        return {group: pairs for group, pairs in groups.items() if pairs}

    def texts(self, ids: Tensor) -> list[str]:
        """What rows of target ids (B, n) say."""
        return [detokenize(self.target.decode(row), self.locales[1]) for row in ids.tolist()]


def exact_rate(texts: Sequence[str], pairs: Sequence[Pair]) -> float:
    """Share of texts that equal the reference, character for character."""
    right = [text == pair.target for text, pair in zip(texts, pairs, strict=True)]
    return sum(right) / len(right)


def token_rate(written: Tensor, target: Tensor) -> float:
    """Share of the reference's tokens, `<eos>` included, that were written at their place.

    Args:
        written: (B, n) int64, what a decoder wrote.
        target: (B, U) int64, the reference with padding.
    """
    shared = min(written.shape[1], target.shape[1])
    right = (written[:, :shared] == target[:, :shared]) & (target[:, :shared] != PAD)
    return float(right.sum() / (target != PAD).sum())


def bleu(texts: Sequence[str], pairs: Sequence[Pair]) -> float:
    """Corpus BLEU by sacreBLEU, 0 to 100, with its tokenizer for the language of the pairs."""
    import sacrebleu

    language = pairs[0].locales[1].split("_")[0]
    tokenizer = {"zh": "zh", "ja": "char"}.get(language, "13a")
    references = [[pair.target for pair in pairs]]
    return float(sacrebleu.corpus_bleu(list(texts), references, tokenize=tokenizer).score)


def alignment_counts(weights: Tensor, pairs: Sequence[Pair]) -> tuple[Counter, Counter]:
    """Which target tokens have their largest weight on the source token they render.

    Args:
        weights: (B, U, S); row i of an entry belongs to target token i.
        pairs: B pairs with alignment.

    Returns:
        How often each target token found its source token, and how often it missed it; tokens that
        are aligned to nothing are not counted.

    Raises:
        ValueError: if a pair has no alignment, or there is nothing aligned.
    """
    looked = weights.argmax(-1).tolist()  # (B, U)
    found: Counter = Counter()
    missed: Counter = Counter()
    for pair, places in zip(pairs, looked, strict=True):
        if pair.alignment is None:
            raise ValueError("a pair has no alignment; make the pairs with with_alignment=True")
        for token, place, true in zip(pair.target_tokens, places, pair.alignment, strict=False):
            if true >= 0:
                (found if place == true else missed)[token] += 1
    if not found and not missed:
        raise ValueError("no token of these pairs is aligned")
    return found, missed


def alignment_rate(weights: Tensor, pairs: Sequence[Pair], without: Collection[str] = ()) -> float:
    """Share of aligned target tokens whose largest weight lies on the source token they render.

    Args:
        weights, pairs: see `alignment_counts`.
        without: target tokens that are left out of account.
    """
    found, missed = alignment_counts(weights, pairs)
    hits, misses = (
        sum(n for token, n in counts.items() if token not in without) for counts in (found, missed)
    )
    return hits / (hits + misses)


# --------------------------------------------------------------------------- search


@dataclass(frozen=True)
class Step:
    """One step of a beam: every extension that was looked at, and those that were kept.

    looked_at: joint probability by prefix.
    kept: the surviving prefixes, finished ones included, best first.
    """

    looked_at: dict[tuple[int, ...], float] = field(default_factory=dict)
    kept: list[tuple[int, ...]] = field(default_factory=list)


@torch.no_grad()
def trace_beam(
    model: nn.Module, source: Tensor, beam_size: int, max_length: int
) -> tuple[list[Step], tuple[int, ...], float]:
    """Beam search without length correction, telling what it looked at.

    Args:
        model: a translator: `start(source, mask)` and `step(previous, state)`.
        source: (1, T) int64.
        beam_size: hypotheses kept at each step; finished ones count for good.

    Returns:
        The steps, the best hypothesis and its probability.
    """
    live: dict[tuple[int, ...], tuple[float, tuple[Tensor, ...]]] = {
        (): (0.0, model.start(source, None))
    }
    finished: dict[tuple[int, ...], float] = {}
    steps = []
    while live and len(steps) < max_length:
        step = Step()
        states = {}
        for prefix, (score, state) in live.items():
            previous = source.new_tensor([prefix[-1] if prefix else BOS])  # (1,)
            logits, states[prefix] = model.step(previous, state)
            for token, more in enumerate(torch.log_softmax(logits[0], -1).tolist()):
                if more > -math.inf:
                    step.looked_at[(*prefix, token)] = math.exp(score + more)
        ranked = sorted(step.looked_at.items(), key=lambda item: -item[1])
        live = {}
        for prefix, chance in ranked[: beam_size - len(finished)]:
            step.kept.append(prefix)
            if prefix[-1] != EOS:
                live[prefix] = (math.log(chance), states[prefix[:-1]])
        finished.update({p: step.looked_at[p] for p in step.kept if p[-1] == EOS})
        steps.append(step)
    scores = {**finished, **{p: math.exp(score) for p, (score, _) in live.items()}}
    best = max(scores, key=scores.__getitem__)
    return steps, best, scores[best]


def search_page(
    steps: Sequence[Step], words: Sequence[str], best: Sequence[int], chance: float
) -> str:
    """The steps of a beam as tables, one a step, and what came out, as HTML.

    Args:
        steps, best, chance: what `trace_beam` returned.
        words: what each id says; ids that no step has looked at get no column.
    """
    used = sorted({prefix[-1] for step in steps for prefix in step.looked_at})

    def say(ids: Sequence[int]) -> str:
        return " ".join(words[i] for i in ids) or words[BOS]

    tables = []
    for number, step in enumerate(steps, 1):
        parents = list(dict.fromkeys(prefix[:-1] for prefix in step.looked_at))
        matrix = [[step.looked_at.get((*parent, token), 0.0) for token in used]
                  for parent in parents]  # fmt: skip
        kept = "; ".join(say(prefix) for prefix in step.kept)
        caption = f"step {number}, kept: {kept}"
        rows, columns = [say(parent) for parent in parents], [words[token] for token in used]
        tables.append(widgets.heat_table(matrix, rows, columns, caption))
    result = html.escape(say([i for i in best if i not in (PAD, EOS)]))
    return (
        f"{widgets.side_by_side(*tables)}<p>Result: <b>{result}</b>, probability {chance:.3f}</p>"
    )
