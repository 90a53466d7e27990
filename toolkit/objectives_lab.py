"""Experiments about training objectives, for the pages about BERT and its relatives.

    rows = pieces(documents, 32)
    masked, causal = make(), left_to_right(make())
    trace = train(masked, Masked(rows, mask_tokens, vocab_size), 300)
    other = train(causal, Causal(rows), 300)

* Objectives: what a step predicts, masked or left to right, with the same network.
* Yardsticks: a linear probe, fine-tuning, an n-gram judge of samples.
* Experiments: generation, the mismatch of [MASK], next sentences.
* Relatives: relative positions.

Modules and functions that the chapter builds are arguments. A *model* has `bert`, whose forward
takes (ids (B, T), token_type_ids, mask) and returns hidden (B, T, D) and pooled (B, D), `mlm` from
hidden to scores, and `nsp` from pooled to two scores. Ids below 5 are special: PAD 0, UNK 1, CLS 2,
SEP 3, MASK 4. A label of -100 is no target.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, training
from toolkit.docstrings import CLS, IGNORE, MASK, PAD, SEP, SPECIAL, UNK

MaskTokens = Callable[[Tensor, int], tuple[Tensor, Tensor]]
Documents = Sequence[Sequence[Sequence[int]]]
Labelled = tuple[Tensor, Tensor]  # rows (N, T) and their labels (N,)

# --------------------------------------------------------------------------- rows


def pieces(documents: Documents, length: int, *, end: bool = True) -> Tensor:
    """Documents cut into rows of equal length: [CLS], tokens, [SEP], and no padding.

    The sentences of a document are put together; what is left at its end is dropped.

    Args:
        documents: each a list of sentences, each a list of ids.
        length: tokens of a row, T, special ones included.
        end: whether a row ends with [SEP].

    Returns:
        (N, T) int64.

    Raises:
        ValueError: a length without room for a token, or documents too short for one row.
    """
    room = length - 1 - end
    if room < 1:
        raise ValueError(f"rows of length {length} have no room for a token")
    rows = []
    for document in documents:
        stream = list(itertools.chain.from_iterable(document))
        for begin in range(0, len(stream) - room + 1, room):
            rows.append([CLS, *stream[begin : begin + room], *([SEP] if end else [])])
    if not rows:
        raise ValueError(f"no document has the {room} tokens of one row")
    return torch.tensor(rows)  # (N, T)


def split(rows: Tensor, held_out: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows (N, T) in a new order, in two parts: for training, and `held_out` of them for tests."""
    if not 0 < held_out < len(rows):
        raise ValueError(f"held_out must be 1 to {len(rows) - 1}, not {held_out}")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[held_out:]], rows[order[:held_out]]


def labelled(
    examples: Sequence[Any], labels: Sequence[str], length: int, *, most: int | None = None,
    seed: int = 0,
) -> Labelled:  # fmt: skip
    """Examples of single sentences as rows: [CLS], at most length - 2 tokens, [SEP], padding.

    Args:
        examples: each with `first` (ids) and `label` (its name, or its number).
        labels: their names, in the order of the numbers.
        most: take so many, drawn by `seed`; None for all.

    Returns:
        rows (N, T) and labels (N,), int64.
    """
    chosen = list(examples)
    if most is not None:
        chosen = random.Random(seed).sample(chosen, min(most, len(chosen)))
    made = [[CLS, *example.first[: length - 2], SEP] for example in chosen]
    rows = [row + [PAD] * (length - len(row)) for row in made]
    numbers = [x.label if isinstance(x.label, int) else labels.index(x.label) for x in chosen]
    return torch.tensor(rows), torch.tensor(numbers)  # (N, T), (N,)


def module_rows(
    corpus: Any, topics: Sequence[str], splits: Sequence[str], length: int, *,
    most: int | None = None, seed: int = 0,
) -> Labelled:  # fmt: skip
    """From which module is a docstring? Its beginning as a row, the number of the module as label.

    Args:
        corpus: `toolkit.docstrings.Corpus`.
        topics: names of the modules to tell apart.
        splits: of the docstrings to take, such as ("train",).
        most: take so many, drawn by `seed`; None for all.

    Returns:
        rows (N, length) with padding, and labels (N,).
    """
    chosen = [
        d for d in corpus.docstrings if d.module in topics and d.split in splits and d.sentences
    ]
    if most is not None:
        chosen = random.Random(seed).sample(chosen, min(most, len(chosen)))
    encoded = corpus.pieces.encode_all([" ".join(d.sentences) for d in chosen])
    made = [[CLS, *ids[: length - 2], SEP] for ids in encoded]
    rows = [row + [PAD] * (length - len(row)) for row in made]
    return torch.tensor(rows), torch.tensor([topics.index(d.module) for d in chosen])


# --------------------------------------------------------------------------- one network, two masks


def rescale(model: nn.Module, factor: float) -> nn.Module:
    """Multiply all weights of linear maps and tables by a factor, in place; returns the model.

    BERT's start N(0, 0.02^2) is made for width 768. Narrow models learn faster from a wider one.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.mul_(factor)
    return model


class CausalAttention(nn.Module):
    """The attention of a BERT layer with the same parameters, but blind to what comes later.

    Attributes:
        q_proj, k_proj, v_proj, out_proj: those of the attention it was made from.
    """

    def __init__(self, attention: nn.Module) -> None:
        """attention has the four projections and `num_heads`."""
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, getattr(attention, name))
        self.num_heads = attention.num_heads

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B, T, D), mask (B, T) True at real tokens -> (B, T, D)."""
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, T, D/H)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        if mask is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            length = x.shape[1]
            earlier = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=earlier & mask[:, None, None])
        return self.out_proj(mixed.transpose(1, 2).flatten(2))  # (B, T, D)


def left_to_right(model: nn.Module) -> nn.Module:
    """A copy of a model whose attention sees no later place: nothing else is different.

    Names and values of the parameters are the same, so that `load_state_dict` works both ways.

    Raises:
        ValueError: the model has no plain attention with q_proj, k_proj, v_proj, out_proj and
            num_heads.
    """
    copied = copy.deepcopy(model)
    needed = ("q_proj", "k_proj", "v_proj", "out_proj", "num_heads")
    found = [
        (parent, name, child)
        for parent in copied.modules()
        for name, child in parent.named_children()
        if all(hasattr(child, part) for part in needed)
        and not any(hasattr(child, part) for part in ("r_proj", "clip"))  # these know distances
    ]
    if not found:
        raise ValueError(f"no plain attention with {', '.join(needed)} in this model")
    for parent, name, child in found:
        setattr(parent, name, CausalAttention(child))
    return copied.train(model.training)


# --------------------------------------------------------------------------- objectives


class Objective(Protocol):
    """What a step of a training predicts."""

    name: str

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows (B, T) -> what the model reads (B, T) and labels (B, T), IGNORE for no target."""


@dataclass
class Masked:
    """Masked language modelling (Devlin et al. 2019, section 3.1).

    mask_tokens: called with rows and vocab_size; returns corrupted rows and labels.
    """

    mask_tokens: MaskTokens
    vocab_size: int
    name: str = "masked"

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.mask_tokens(rows, self.vocab_size)


@dataclass
class Causal:
    """Left-to-right language modelling: every place predicts the next token, [SEP] not.

    share: the loss is taken at this share of the places only, drawn anew in each batch.
    """

    share: float = 1.0
    name: str = "left to right"

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        labels = F.pad(rows[:, 1:], (0, 1), value=IGNORE)  # (B, T)
        labels = labels.masked_fill((labels < SPECIAL) & (labels != UNK), IGNORE)
        if self.share < 1:
            labels = labels.masked_fill(torch.rand(labels.shape) >= self.share, IGNORE)
        return rows, labels


@dataclass
class Padded:
    """Another objective on rows that are made longer by padding, which has no targets.

    extra: how many places of padding. Attention compares more pairs; what is learned is the same.
    """

    objective: Objective
    extra: int

    @property
    def name(self) -> str:
        return f"{self.objective.name}, {self.extra} places of padding"

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        ids, labels = self.objective.batch(rows)
        return F.pad(ids, (0, self.extra), value=PAD), F.pad(labels, (0, self.extra), value=IGNORE)


@torch.no_grad()
def dependence(states: Callable[[Tensor], Tensor], ids: Tensor, other: int) -> Tensor:
    """Which outputs notice a change of which token.

    Args:
        states: ids (B, T) -> (B, T, D).
        ids: (T,). other: the id that is put at one place after the other; none of `ids`.

    Returns:
        (T, T) bool: row i is True at j if the output at place i moves when token j is exchanged.
    """
    if bool((ids == other).any()):
        raise ValueError(f"{other} is one of the ids, so exchanging for it changes nothing")
    changed = ids.repeat(len(ids), 1)  # (T, T), row j: token j exchanged
    changed.fill_diagonal_(other)
    before, after = states(ids[None]), states(changed)  # (1, T, D), (T, T, D)
    return ((after - before).abs().amax(-1) > 1e-6).T  # (T, T)


def scores_at(model: nn.Module, ids: Tensor, places: Tensor) -> Tensor:
    """Scores (n, V) at the places that are True in places (B, T): the head runs only there."""
    mask = ids != PAD
    hidden = model.bert(ids, None, None if bool(mask.all()) else mask)[0]  # (B, T, D)
    return model.mlm(hidden[places])  # (n, V)


def objective_loss(model: nn.Module, objective: Objective, rows: Tensor) -> tuple[Tensor, int]:
    """Mean loss over the targets of a batch, and how many there were."""
    ids, labels = objective.batch(rows)
    places = labels != IGNORE  # (B, T)
    count = int(places.sum())
    if not count:
        return sum(p.sum() for p in model.mlm.parameters()) * 0.0, 0
    return F.cross_entropy(scores_at(model, ids, places), labels[places]), count


@torch.no_grad()
def held_out_loss(
    model: nn.Module, objective: Objective, rows: Tensor, *, seed: int = 0, batch: int = 256
) -> float:
    """Mean loss over the targets of all rows; the same seed draws the same targets."""
    mode = model.training
    model.eval()
    total = seen = 0
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for part in rows.split(batch):
            loss, count = objective_loss(model, objective, part)
            total, seen = total + loss.item() * count, seen + count
    model.train(mode)
    return total / max(seen, 1)


@dataclass
class Trace:
    """What a training went through.

    name: of the objective. steps: at which the held-out loss was taken. held_out: that loss, of
    the model's own objective. loss: of every step. targets: predicted tokens of every step.
    seconds: of the processor, without validation.
    """

    name: str
    steps: list[int] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def targets_at(self) -> list[int]:
        """Predicted tokens up to each of `steps`."""
        total = [0, *itertools.accumulate(self.targets)]
        return [total[step] for step in self.steps]

    @property
    def targets_per_step(self) -> float:
        return sum(self.targets) / len(self.targets)


def _adam(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)


def batches(rows: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Indices of batches without end, every row once in each pass."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=draw)
        yield from (part for part in order.split(size) if len(part) == size or len(order) < size)


def train(
    model: nn.Module, objective: Objective, rows: Tensor, steps: int, *, test: Tensor | None = None,
    looks: int = 8, batch: int = 32, lr: float = 2e-3, seed: int = 0,
    also: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> Trace:  # fmt: skip
    """Train a model on an objective.

    Args:
        model: trained in place, afterwards in eval mode.
        rows: (N, T) to learn from.
        test: rows of which the held-out loss is taken, `looks` times and before the first step.
        batch: rows of a step.
        lr: the largest learning rate; it rises in the first tenth and falls to 0.
        also: a second loss, called with model and rows of the batch.
    """
    trace, feed, spent = Trace(objective.name), batches(rows, batch, seed), 0.0

    def look(step: int) -> float:
        trace.steps.append(step)
        trace.held_out.append(held_out_loss(model, objective, test))
        return trace.held_out[-1]

    def loss(step: int) -> tuple[Tensor, int]:
        chosen = rows[next(feed)]  # (B, T)
        value, count = objective_loss(model, objective, chosen)
        trace.targets.append(count)
        return value if also is None else value + also(model, chosen), count

    if test is not None:
        look(0)
    every = max(1, steps // looks)

    def validate() -> float:
        nonlocal spent
        began = time.process_time()
        value = look(len(trace.targets))
        spent += time.process_time() - began
        return value

    began = time.process_time()
    history = training.fit(
        model, loss, steps, lr=lr, schedule="warm-up", optimiser=_adam, seed=seed,
        preset=device.preset("cpu"), progress=False,
        validate=validate if test is not None else None,
        validate_every=every if test is not None else None,
    )  # fmt: skip
    trace.seconds = time.process_time() - began - spent
    trace.loss = history.loss
    return trace


# --------------------------------------------------------------------------- yardsticks


@torch.no_grad()
def features(bert: nn.Module, rows: Tensor, read: str = "mean", batch: int = 256) -> Tensor:
    """One vector for each row (N, T) -> (N, D): the hidden states of the last layer, read
    "first" (at [CLS]), "last" (at the last real place) or as the "mean" of the real places."""
    mode = bert.training
    bert.eval()
    found = []
    for part in rows.split(batch):
        mask = part != PAD
        hidden = bert(part, None, None if bool(mask.all()) else mask)[0]  # (B, T, D)
        found.append(_read(hidden, mask, read))
    bert.train(mode)
    return torch.cat(found)  # (N, D)


def _read(hidden: Tensor, mask: Tensor, read: str) -> Tensor:
    if read == "first":
        return hidden[:, 0]  # (B, D)
    if read == "last":
        return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]  # (B, D)
    if read == "mean":
        weight = mask.to(hidden.dtype)[..., None]  # (B, T, 1)
        return (hidden * weight).sum(1) / weight.sum(1)  # (B, D)
    raise ValueError(f'read must be "first", "last" or "mean", not {read!r}')


def ridge_accuracy(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, test_y: Tensor, strength: float = 1e-2
) -> float:
    """A linear probe without training loop: least squares on one-hot labels, share right.

    Args:
        train_x, test_x: (N, D). train_y, test_y: (N,) int64.
        strength: of the penalty, relative to the features' mean square.
    """
    mean, scale = train_x.mean(0), train_x.std(0) + 1e-6
    x, z = ((part - mean) / scale for part in (train_x, test_x))
    x, z = F.pad(x, (0, 1), value=1.0).double(), F.pad(z, (0, 1), value=1.0).double()
    wanted = F.one_hot(train_y).double()  # (N, L)
    gram = x.T @ x + strength * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    guess = (z @ torch.linalg.solve(gram, x.T @ wanted)).argmax(-1)  # (N,)
    return float((guess == test_y).double().mean())


def probe(
    bert: nn.Module,
    train: Labelled,
    test: Labelled,
    read: str = "mean",
    strength: float = 1e-2,
) -> float:
    """Accuracy of a linear probe on the frozen features of a network."""
    seen, unseen = (features(bert, part[0], read) for part in (train, test))
    return ridge_accuracy(seen, train[1], unseen, test[1], strength)


class Reader(nn.Module):
    """A classifier on a network: `bert`, and a linear map `classifier` of what is read.

    read: "first", "last" or "mean", as `features`; a left-to-right network has read nothing at its
    first place, so it is read at the last, or by the mean.
    """

    def __init__(self, bert: nn.Module, labels: int, read: str = "mean") -> None:
        super().__init__()
        self.bert, self.read = bert, read
        width = bert.pooler.in_features
        self.classifier = nn.Linear(width, labels)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(
        self, ids: Tensor, token_type_ids: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """ids (B, T) -> scores (B, L)."""
        real = ids != PAD if mask is None else mask
        hidden = self.bert(ids, token_type_ids, mask)[0]  # (B, T, D)
        return self.classifier(_read(hidden, real, self.read))  # (B, L)


def fine_tune(
    classifier: nn.Module, train: Labelled, test: Labelled, *, steps: int = 60, batch: int = 32,
    lr: float = 1e-3, seed: int = 0,
) -> float:  # fmt: skip
    """Train a classifier, all parameters of it; share right on the test rows.

    Args:
        classifier: called with (ids (B, T), None, mask or None), returns scores (B, L); trained in
            place, afterwards in eval mode.
    """
    feed = batches(train[0], batch, seed)

    def scores(rows: Tensor) -> Tensor:
        mask = rows != PAD
        return classifier(rows, None, None if bool(mask.all()) else mask)  # (B, L)

    def loss(step: int) -> Tensor:
        chosen = next(feed)
        return F.cross_entropy(scores(train[0][chosen]), train[1][chosen])

    training.fit(
        classifier, loss, steps, lr=lr, schedule="warm-up", optimiser=_adam, seed=seed,
        preset=device.preset("cpu"), progress=False,
    )  # fmt: skip
    with torch.no_grad():
        right = [
            (scores(rows).argmax(-1) == labels).double()
            for rows, labels in zip(test[0].split(256), test[1].split(256), strict=True)
        ]
    return float(torch.cat(right).mean())


# --------------------------------------------------------------------------- probabilities of text


@torch.no_grad()
def log_likelihood(model: nn.Module, row: Tensor) -> Tensor:
    """What a left-to-right model says of each ordinary token of row (T,), given those before it.

    Returns:
        (n,) natural logarithms, in the order of the tokens; their sum is log p(row).
    """
    labels = Causal().batch(row[None])[1]  # (1, T)
    places = labels != IGNORE
    log_probs = F.log_softmax(scores_at(model, row[None], places), -1)  # (n, V)
    return log_probs.gather(-1, labels[places][:, None])[:, 0]  # (n,)


@torch.no_grad()
def pseudo_log_likelihood(model: nn.Module, row: Tensor) -> Tensor:
    """What a masked model says of each ordinary token of row (T,), given all the others.

    Returns:
        (n,) natural logarithms; their sum is not the logarithm of a probability of the row.
    """
    at = ((row >= SPECIAL) | (row == UNK)).nonzero()[:, 0]  # (n,)
    several = row.repeat(len(at), 1)  # (n, T)
    places = F.one_hot(at, len(row)).bool()
    several[places] = MASK
    log_probs = F.log_softmax(scores_at(model, several, places), -1)  # (n, V)
    return log_probs.gather(-1, row[at][:, None])[:, 0]  # (n,)


def perplexity(score: Callable[[nn.Module, Tensor], Tensor], model: nn.Module,
               rows: Iterable[Tensor]) -> float:  # fmt: skip
    """exp of minus the mean of the logarithms that `score` gives to the tokens of all rows."""
    return math.exp(-torch.cat([score(model, row) for row in rows]).mean().item())


@dataclass(frozen=True)
class MarkovSource:
    """A language whose law is known: each symbol depends on the one before it.

    transition: (S, S), rows sum to 1. stationary: (S,), how often each symbol occurs.
    """

    transition: Tensor
    stationary: Tensor

    @classmethod
    def make(cls, symbols: int = 8, sharpness: float = 2.0, seed: int = 0) -> MarkovSource:
        """Random transitions; the larger the sharpness, the surer the next symbol."""
        draw = torch.Generator().manual_seed(seed)
        scores = sharpness * torch.randn(symbols, symbols, generator=draw, dtype=torch.float64)
        transition = scores.softmax(-1)
        stationary = torch.linalg.matrix_power(transition, 512)[0]
        return cls(transition, stationary / stationary.sum())

    def uncertainty(self) -> dict[str, float]:
        """Mean surprise at a symbol in nats, for the best guess that knows so much of the rest."""
        pair = self.stationary[:, None] * self.transition  # p(a, b)
        triple = pair[:, :, None] * self.transition[None]  # p(a, b, c)
        entropy = lambda p: float(-(p * p.clamp_min(1e-300).log()).sum())  # noqa: E731
        ends = triple.sum(1)  # p(a, c)
        return {
            "nothing": entropy(self.stationary),
            "all before": entropy(pair) - entropy(self.stationary),
            "all others": entropy(triple) - entropy(ends),
        }


# --------------------------------------------------------------------------- generation


def _draw(scores: Tensor, temperature: float, draw: torch.Generator) -> Tensor:
    """scores (B, V) -> ordinary ids (B,)."""
    scores = scores.clone()
    scores[:, :SPECIAL] = -torch.inf
    return torch.multinomial((scores / temperature).softmax(-1), 1, generator=draw)[:, 0]


def _begin(count: int, prefix: Sequence[int]) -> Tensor:
    return torch.tensor([CLS, *prefix]).repeat(count, 1)  # (B, 1 + n)


@torch.no_grad()
def sample_left_to_right(
    model: nn.Module, count: int, length: int, *, prefix: Sequence[int] = (),
    temperature: float = 1.0, seed: int = 0,
) -> Tensor:  # fmt: skip
    """Samples of a left-to-right model, one token after the other: (count, length) without [CLS].

    Args:
        prefix: ids that every sample begins with.
    """
    ids, draw = _begin(count, prefix), torch.Generator().manual_seed(seed)
    while ids.shape[1] <= length:
        last = torch.zeros_like(ids, dtype=torch.bool)
        last[:, -1] = True
        new = _draw(scores_at(model, ids, last), temperature, draw)  # (B,)
        ids = torch.cat([ids, new[:, None]], 1)  # (B, n + 1)
    return ids[:, 1:]


@torch.no_grad()
def sample_appending(
    model: nn.Module, count: int, length: int, *, prefix: Sequence[int] = (),
    temperature: float = 1.0, seed: int = 0,
) -> Tensor:  # fmt: skip
    """A masked model made to write from left to right: [CLS] tokens [MASK] [SEP], again and again.

    Returns and arguments as `sample_left_to_right`.
    """
    ids, draw = _begin(count, prefix), torch.Generator().manual_seed(seed)
    while ids.shape[1] <= length:
        asked = torch.cat([ids, ids.new_tensor([[MASK, SEP]]).repeat(count, 1)], 1)  # (B, n + 2)
        new = _draw(scores_at(model, asked, asked == MASK), temperature, draw)  # (B,)
        ids = torch.cat([ids, new[:, None]], 1)
    return ids[:, 1:]


@torch.no_grad()
def sample_filling(
    model: nn.Module, count: int, length: int, *, sweeps: int = 2, prefix: Sequence[int] = (),
    temperature: float = 1.0, seed: int = 0, history: list[Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Samples of a masked model by filling in: all [MASK] at first, one place at a time.

    In every sweep each place is masked once more, in a random order, and drawn given all others
    (Wang and Cho 2019; Gibbs sampling, if the conditionals belonged to one distribution).

    Args:
        history: if a list is given, the ids (count, length) after each draw are appended to it.

    Returns and other arguments as `sample_left_to_right`.
    """
    draw = torch.Generator().manual_seed(seed)
    free = length - len(prefix)
    ids = torch.cat([_begin(count, prefix), torch.full((count, free), MASK)], 1)
    ids = F.pad(ids, (0, 1), value=SEP)  # (B, length + 2)
    for _ in range(sweeps):
        orders = torch.stack([torch.randperm(free, generator=draw) for _ in range(count)])
        for at in (orders + 1 + len(prefix)).unbind(1):  # (B,)
            ids.scatter_(1, at[:, None], MASK)
            asked = F.one_hot(at, ids.shape[1]).bool()  # (B, length + 2)
            new = _draw(scores_at(model, ids, asked), temperature, draw)
            ids.scatter_(1, at[:, None], new[:, None])
            if history is not None:
                history.append(ids[:, 1:-1].clone())
    return ids[:, 1:-1]


class NgramJudge:
    """An n-gram model with Witten-Bell smoothing: a judge of samples that is none of the models.

    Args of the constructor:
        rows: rows of ids; special ones other than [UNK] are left out.
        vocab_size: V.
        order: how many tokens are looked at, the one judged included.
    """

    def __init__(self, rows: Iterable[Sequence[int]], vocab_size: int, order: int = 3) -> None:
        self.order, self.vocab_size = order, vocab_size
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._totals: Counter[tuple[int, ...]] = Counter()
        self._kinds: Counter[tuple[int, ...]] = Counter()
        for row in rows:
            tokens = _ordinary(row)
            for place in range(len(tokens)):
                for n in range(min(order - 1, place) + 1):
                    before, gram = (
                        tuple(tokens[place - n : place]),
                        tuple(tokens[place - n : place + 1]),
                    )
                    self._kinds[before] += gram not in self._counts
                    self._counts[gram] += 1
                    self._totals[before] += 1

    def probability(self, token: int, before: Sequence[int]) -> float:
        """p(token | the last order - 1 of `before`)."""
        value = 1.0 / (self.vocab_size - SPECIAL + 1)
        context = tuple(before[-(self.order - 1) :]) if self.order > 1 else ()
        for n in range(len(context) + 1):
            seen = context[len(context) - n :]
            total, kinds = self._totals[seen], self._kinds[seen]
            if total == 0:
                break
            value = (self._counts[(*seen, token)] + kinds * value) / (total + kinds)
        return value

    def perplexity(self, rows: Iterable[Sequence[int]]) -> float:
        """Of all tokens of all rows."""
        total = count = 0.0
        for row in rows:
            tokens = _ordinary(row)
            for place, token in enumerate(tokens):
                total -= math.log(self.probability(token, tokens[:place]))
                count += 1
        return math.exp(total / count)


def _ordinary(row: Sequence[int] | Tensor) -> list[int]:
    ids = row.tolist() if isinstance(row, Tensor) else row
    return [i for i in ids if i >= SPECIAL or i == UNK]


def repetition(rows: Tensor, window: int = 4) -> float:
    """Share of tokens in rows (B, T) that already stood among the `window` places before."""
    same = torch.zeros_like(rows[:, 1:], dtype=torch.bool)
    for back in range(1, window + 1):
        again = rows[:, back:] == rows[:, :-back]  # (B, T - back)
        same[:, back - 1 :] |= again
    return float(same.double().mean())


def shuffled(rows: Tensor, count: int, length: int, seed: int = 0) -> Tensor:
    """Tokens of rows drawn without any order: what a sample without grammar is, (count, length)."""
    tokens = rows[rows >= SPECIAL]
    draw = torch.Generator().manual_seed(seed)
    return tokens[torch.randint(len(tokens), (count, length), generator=draw)]


# --------------------------------------------------------------------------- mismatch


def corrupt(
    ids: Tensor, vocab_size: int, mask_prob: float = 0.15,
    shares: tuple[float, float, float] = (0.8, 0.1, 0.1),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Masking with any shares of (mask, random token, unchanged): (corrupted, labels), (B, T)."""
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"shares must be three numbers from 0 on with the sum 1, not {shares}")
    chosen = (torch.rand(ids.shape) < mask_prob) & (ids >= SPECIAL)  # (B, T)
    what = torch.rand(ids.shape)
    corrupted = ids.masked_fill(chosen & (what < shares[0]), MASK)
    other = chosen & (what >= shares[0]) & (what < shares[0] + shares[1])
    corrupted = torch.where(other, torch.randint(SPECIAL, vocab_size, ids.shape), corrupted)
    return corrupted, ids.masked_fill(~chosen, IGNORE)


MASKINGS = {"100/0/0": (1.0, 0.0, 0.0), "80/10/10": (0.8, 0.1, 0.1), "80/20/0": (0.8, 0.2, 0.0)}


@dataclass
class MaskingResult:
    """One way to mask and what came of it.

    name: shares of mask, random, unchanged in percent. loss: held-out, of its own masking.
    mask_loss: held-out, where every chosen token is [MASK]: the same for all ways.
    unmasked_loss, unmasked_accuracy: of the head at places of a text without any [MASK], about
    the token that stands there. identity: share of those tokens that a linear probe reads from
    the hidden state. downstream: accuracies after fine-tuning, one a seed. seconds: of the
    processor, pre-training alone.
    """

    name: str
    loss: float
    mask_loss: float
    unmasked_loss: float
    unmasked_accuracy: float
    identity: float
    downstream: list[float] = field(default_factory=list)
    seconds: float = 0.0


def compare_maskings(
    make: Callable[[], nn.Module], rows: Tensor, test: Tensor, vocab_size: int, *,
    steps: int = 150, seed: int = 0, lr: float = 3e-3, batch: int = 32,
    maskings: dict[str, tuple[float, float, float]] | None = None,
    task: tuple[Labelled, Labelled] | None = None, fine_tune_seeds: Sequence[int] = (0, 1),
    fine_tune_steps: int = 60, fine_tune_lr: float = 3e-3,
) -> list[MaskingResult]:  # fmt: skip
    """Pre-train one model for each way of masking, from the same start on the same rows.

    Args:
        make: returns a new model, called after torch.manual_seed(seed).
        rows, test: (N, T), without padding.
        task: labelled rows to fine-tune on; None to leave that out.
    """
    results = []
    always = Masked(lambda ids, size: corrupt(ids, size, shares=MASKINGS["100/0/0"]), vocab_size)
    for name, shares in (maskings or MASKINGS).items():
        torch.manual_seed(seed)
        model = make()
        own = Masked(
            lambda ids, size, shares=shares: corrupt(ids, size, shares=shares), vocab_size, name
        )
        trace = train(model, own, rows, steps, seed=seed, lr=lr, batch=batch)
        loss, accuracy = untouched(model, test)
        result = MaskingResult(
            name, held_out_loss(model, own, test), held_out_loss(model, always, test), loss,
            accuracy, identity_probe(model.bert, rows[:200], test), seconds=trace.seconds,
        )  # fmt: skip
        for number in fine_tune_seeds if task is not None else ():
            torch.manual_seed(number)
            reader = Reader(copy.deepcopy(model.bert), int(task[0][1].max()) + 1)
            score = fine_tune(
                reader, *task, steps=fine_tune_steps, lr=fine_tune_lr, batch=16, seed=number
            )
            result.downstream.append(score)
        results.append(result)
    return results


@torch.no_grad()
def untouched(model: nn.Module, rows: Tensor) -> tuple[float, float]:
    """Loss and accuracy of the head about the tokens themselves, in rows without any [MASK]."""
    model.eval()
    places = rows >= SPECIAL  # (N, T)
    scores = scores_at(model, rows, places)  # (n, V)
    wanted = rows[places]
    right = (scores.argmax(-1) == wanted).double().mean().item()
    return F.cross_entropy(scores, wanted).item(), right


@torch.no_grad()
def identity_probe(bert: nn.Module, train: Tensor, test: Tensor, most: int = 50) -> float:
    """How well a linear map reads the token from its own hidden state, in rows without [MASK].

    Args:
        train, test: (N, T). most: only the so many most frequent tokens are asked for.

    Returns:
        Share right on `test`.
    """
    bert.eval()
    counts = torch.bincount(train[train >= SPECIAL])
    chosen = counts.topk(min(most, int((counts > 0).sum()))).indices  # (K,)
    known = torch.full((int(max(train.max(), test.max())) + 1,), IGNORE)
    known[chosen] = torch.arange(len(chosen))
    found = []
    for part in (train, test):
        labels = known[part]  # (N, T)
        hidden = bert(part, None, None)[0]  # (N, T, D)
        found += [hidden[labels != IGNORE], labels[labels != IGNORE]]
    return ridge_accuracy(*found)


# --------------------------------------------------------------------------- next sentences

Pair = tuple[list[int], list[int], int]


def sentence_pairs(
    documents: Documents, count: int, *, negatives: str = "other", seed: int = 0
) -> list[Pair]:
    """Pairs of sentences with label 0 (is next) or 1, one half each.

    Args:
        documents: lists of sentences, those lists of ids.
        negatives: where a wrong second sentence comes from: "other" documents, as in BERT, or the
            "same" one, not next to the first.

    Raises:
        ValueError: another word for negatives, or documents too few or too short.
    """
    if negatives not in ("other", "same"):
        raise ValueError(f'negatives must be "other" or "same", not {negatives!r}')
    least = 4 if negatives == "same" else 2
    usable = [list(d) for d in documents if len(d) >= least]
    if not usable or (negatives == "other" and len(usable) < 2):
        raise ValueError(f"there are too few documents with {least} sentences or more")
    draw = random.Random(seed)
    weights = list(itertools.accumulate(len(d) - 1 for d in usable))
    pairs: list[Pair] = []
    for number in range(count):
        which = draw.choices(range(len(usable)), cum_weights=weights)[0]
        document = usable[which]
        place = draw.randrange(len(document) - 1)
        label = number % 2
        if label == 0:
            second = document[place + 1]
        elif negatives == "same":
            far = [i for i in range(len(document)) if abs(i - place) > 1]
            second = document[draw.choice(far)]
        else:
            other = draw.randrange(len(usable) - 1)
            second = draw.choice(usable[other + (other >= which)])
        pairs.append((list(document[place]), list(second), label))
    return pairs


@dataclass(frozen=True)
class PairBatch:
    """Pairs as tensors: ids, token_type_ids (N, T) int64, mask (N, T) bool, labels (N,)."""

    ids: Tensor
    token_type_ids: Tensor
    mask: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> PairBatch:
        parts = [part[index] for part in (self.ids, self.token_type_ids, self.mask, self.labels)]
        most = int(parts[2].sum(1).max())
        return PairBatch(*(part[:, :most] for part in parts[:3]), parts[3])


def pack_pairs(
    pairs: Sequence[Pair], build_input: Callable[..., tuple[list[int], list[int]]], length: int
) -> PairBatch:
    """Inputs of the pairs, padded on the right; `build_input` as the chapter's."""
    made = [build_input(first, second, length) for first, second, _ in pairs]
    most = max(len(ids) for ids, _ in made)
    ids = torch.tensor([row + [PAD] * (most - len(row)) for row, _ in made])  # (N, T)
    segments = torch.tensor([row + [0] * (most - len(row)) for _, row in made])  # (N, T)
    return PairBatch(ids, segments, ids != PAD, torch.tensor([label for *_, label in pairs]))


@dataclass
class PairTrace:
    """steps, and at each of them the accuracy on other pairs; seconds of the processor; `hard`:
    accuracy at the end on each further set of pairs, by name."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    mlm_loss: list[float] = field(default_factory=list)
    nsp_loss: list[float] = field(default_factory=list)
    further: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@torch.no_grad()
def pair_accuracy(model: nn.Module, pairs: PairBatch, batch: int = 128) -> float:
    """Share of pairs whose label the model's next-sentence head gets right."""
    mode = model.training
    model.eval()
    right = 0
    for begin in range(0, len(pairs), batch):
        part = pairs[begin : begin + batch]
        pooled = model.bert(part.ids, part.token_type_ids, part.mask)[1]  # (B, D)
        right += int((model.nsp(pooled).argmax(-1) == part.labels).sum())
    model.train(mode)
    return right / len(pairs)


def train_pairs(
    model: nn.Module, pairs: PairBatch, test: PairBatch, steps: int, *,
    mask_tokens: MaskTokens | None = None, vocab_size: int = 0, nsp: bool = True, looks: int = 8,
    batch: int = 32, lr: float = 2e-3, seed: int = 0, further: dict[str, PairBatch] | None = None,
) -> PairTrace:  # fmt: skip
    """Train on pairs: next-sentence prediction, masked tokens, or both.

    Args:
        model: trained in place.
        pairs, test: of `pack_pairs`.
        mask_tokens, vocab_size: for the masked tokens; None to leave that loss out.
        nsp: whether the next-sentence loss counts; if not, its accuracy stays near one half.
        further: sets of pairs to measure the accuracy on at the end.
    """
    if mask_tokens is None and not nsp:
        raise ValueError("there is nothing to learn: no mask_tokens, and nsp is False")
    trace, spent = PairTrace(), 0.0
    feed = batches(torch.arange(len(pairs)), batch, seed)

    def loss(step: int) -> Tensor:
        part = pairs[next(feed)]
        ids, total = part.ids, torch.zeros(())
        if mask_tokens is not None:
            ids, labels = mask_tokens(part.ids, vocab_size)  # (B, T)
        hidden, pooled = model.bert(ids, part.token_type_ids, part.mask)  # (B, T, D), (B, D)
        if mask_tokens is not None:
            places = labels != IGNORE
            mlm = F.cross_entropy(model.mlm(hidden[places]), labels[places])
            trace.mlm_loss.append(mlm.item())
            total = total + mlm
        if nsp:
            value = F.cross_entropy(model.nsp(pooled), part.labels)
            trace.nsp_loss.append(value.item())
            total = total + value
        return total

    def look() -> float:
        nonlocal spent
        began = time.process_time()
        done = max(len(trace.mlm_loss), len(trace.nsp_loss))
        trace.steps.append(done)
        trace.accuracy.append(pair_accuracy(model, test))
        spent += time.process_time() - began
        return -trace.accuracy[-1]

    look()
    spent, began = 0.0, time.process_time()
    training.fit(
        model, loss, steps, lr=lr, schedule="warm-up", optimiser=_adam, seed=seed,
        preset=device.preset("cpu"), progress=False, validate=look,
        validate_every=max(1, steps // looks),
    )  # fmt: skip
    trace.seconds = time.process_time() - began - spent
    trace.further = {name: pair_accuracy(model, part) for name, part in (further or {}).items()}
    return trace


def topic_cosine(
    train: Sequence[Pair], test: Sequence[Pair], *, frequent: int = 0
) -> tuple[float, Tensor]:
    """Next-sentence prediction without order or grammar: the cosine of two bags of words.

    Words weigh the less the more sentences have them (inverse document frequency); the threshold
    is the best one on `train`.

    Args:
        frequent: so many of the most frequent words are left out.

    Returns:
        accuracy on `test`, and the cosines of its pairs (N,).
    """
    seen = Counter(token for a, b, _ in train for part in (a, b) for token in set(part))
    left_out = {token for token, _ in seen.most_common(frequent)}
    weight = {t: math.log(2 * len(train) / n) for t, n in seen.items() if t not in left_out}

    def vector(sentence: Sequence[int]) -> dict[int, float]:
        return {t: n * weight[t] for t, n in Counter(sentence).items() if t in weight}

    def cosine(a: Sequence[int], b: Sequence[int]) -> float:
        x, y = vector(a), vector(b)
        size = math.sqrt(sum(v * v for v in x.values()) * sum(v * v for v in y.values()))
        return sum(v * y.get(t, 0.0) for t, v in x.items()) / size if size else 0.0

    cosines = [torch.tensor([cosine(a, b) for a, b, _ in part]) for part in (train, test)]
    labels = [torch.tensor([label for *_, label in part]) for part in (train, test)]
    thresholds = torch.linspace(-0.01, 1.0, 102)
    right = ((cosines[0][:, None] > thresholds) == (labels[0] == 0)[:, None]).double().mean(0)
    best = thresholds[right.argmax()]
    accuracy = ((cosines[1] > best) == (labels[1] == 0)).double().mean()
    return float(accuracy), cosines[1]


# --------------------------------------------------------------------------- relatives


def with_attention(
    model: nn.Module, make: Callable[[], nn.Module], *, positions: bool = False,
    limit: int | None = None,
) -> nn.Module:  # fmt: skip
    """A copy of a model with new attention in every layer: make() -> forward(x, mask).

    positions: whether the table of learned positions stays; otherwise it is 0 and not trained,
    and has `limit` rows (as many as before, if not given): it says nothing but how long a row may
    be.
    """
    copied = copy.deepcopy(model)
    bert = getattr(copied, "bert", copied)
    for layer in bert.layers:
        layer.attention = make()
    if not positions:
        old = bert.embeddings.position
        table = nn.Embedding(limit or old.num_embeddings, old.embedding_dim)
        nn.init.zeros_(table.weight)
        table.weight.requires_grad_(False)
        bert.embeddings.position = table
    return copied


def cycle_rows(
    count: int, length: int, symbols: int = 12, noise: float = 0.1, seed: int = 0
) -> Tensor:
    """Rows (count, length): [CLS], symbols, [SEP]. Each symbol is followed by the next of a cycle,
    but now and then (share `noise`) a new one is drawn. Only neighbours tell what is masked."""
    draw = torch.Generator().manual_seed(seed)
    inner = length - 2
    fresh = torch.randint(symbols, (count, inner), generator=draw)
    restart = torch.rand(count, inner, generator=draw) < noise
    rows = fresh.clone()
    for t in range(1, inner):
        rows[:, t] = torch.where(restart[:, t], fresh[:, t], (rows[:, t - 1] + 1) % symbols)
    return F.pad(F.pad(rows + SPECIAL, (1, 0), value=CLS), (0, 1), value=SEP)


@torch.no_grad()
def masked_accuracy(
    model: nn.Module, rows: Tensor, mask_prob: float = 0.15, seed: int = 0
) -> float:
    """Share of tokens guessed right where [MASK] stands, at a share `mask_prob` of the places."""
    model.eval()
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        ids, labels = corrupt(rows, SPECIAL + 1, mask_prob, MASKINGS["100/0/0"])
    places = labels != IGNORE
    return float((scores_at(model, ids, places).argmax(-1) == labels[places]).double().mean())


def accuracy_by_length(
    model: nn.Module, make_rows: Callable[[int], Tensor], lengths: Sequence[int]
) -> dict[int, float | None]:
    """`masked_accuracy` on rows of each length, None where the model refuses the length."""
    found: dict[int, float | None] = {}
    for length in lengths:
        try:
            found[length] = masked_accuracy(model, make_rows(length))
        except ValueError:  # longer than the table of positions
            found[length] = None
    return found
