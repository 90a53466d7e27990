"""Data and measurements for the experiments of the attention chapter.

The task is made by rule, so what a model ought to look at is known exactly: sentences in which «it»
stands for the animal if it was tired, for the place if it was wide, with the two nouns in either
order and fillers in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --------------------------------------------------------------------------- referents


@dataclass(frozen=True)
class Sentences:
    """A batch for the referent task; every sentence has the same number of tokens.

    tokens: (B, T) int64.
    it, referent, other, clue: (B,) positions of «it», of the noun it stands for, of the other
        noun, and of the adjective that decides.
    """

    tokens: Tensor
    it: Tensor
    referent: Tensor
    other: Tensor
    clue: Tensor

    def to(self, device: torch.device) -> Sentences:
        """The same batch on another device."""
        return Sentences(
            *(x.to(device) for x in (self.tokens, self.it, self.referent, self.other, self.clue))
        )


class Referents:
    """Sentences such as «the animal did not cross the street because it was too tired»."""

    animals = ("animal", "dog", "cat", "horse", "bird", "child")
    places = ("street", "river", "road", "field", "bridge", "square")
    tired = ("tired", "hungry", "afraid")
    wide = ("wide", "long", "dark")
    fillers = ("today", "slowly", "again", "often", "then", "now")
    plain = ("the", "did", "not", "cross", "because", "it", "was", "too")
    LENGTH = 15  # tokens of a sentence

    def __init__(self) -> None:
        groups = (self.plain, self.fillers, self.animals, self.places, self.tired, self.wide)
        self.words = [word for group in groups for word in group]
        self.index = {word: i for i, word in enumerate(self.words)}

    def sample(self, size: int, generator: torch.Generator) -> Sentences:
        """Random sentences of 15 tokens, three of them fillers at random places."""

        def one(group: Sequence[str]) -> str:
            return group[int(torch.randint(len(group), (1,), generator=generator))]

        rows = []
        for _ in range(size):
            flip, which, *places = torch.randint(2**20, (5,), generator=generator).tolist()
            animal, place = one(self.animals), one(self.places)
            clue = one(self.tired if which % 2 else self.wide)
            first, second = (place, animal) if flip % 2 else (animal, place)
            words = [
                "the", first, "did", "not", "cross", "the", second, "because", "it", "was", "too",
                clue,
            ]  # fmt: skip
            for place_of_filler in places:  # a filler moves every word behind it
                words.insert(1 + place_of_filler % len(words), one(self.fillers))
            referent, other = (animal, place) if which % 2 else (place, animal)
            marks = [words.index(w) for w in ("it", referent, other, clue)]
            rows.append(([self.index[w] for w in words], *marks))
        tokens, it, referent, other, clue = (
            torch.tensor(column) for column in zip(*rows, strict=True)
        )
        return Sentences(tokens, it, referent, other, clue)

    def sentence(self, words: str) -> Tensor:
        """The ids (1, T) of a sentence written with the words of this task."""
        return torch.tensor([[self.index[word] for word in words.split()]])


# --------------------------------------------------------------------------- heads


@dataclass(frozen=True)
class Masked:
    """Sentences with some tokens masked.

    ids, targets: (B, T) int64; targets are -100 where nothing is to be predicted.
    mask: (B, T) bool, True at real tokens.
    """

    ids: Tensor
    mask: Tensor
    targets: Tensor


@contextlib.contextmanager
def without_head(model: nn.Module, layer: int, head: int) -> Iterator[None]:
    """In the block that it begins, one head of an encoder returns zeros.

    Args:
        model: with `layers`, whose `attention` has `num_heads` and a linear `out_proj`.
    """
    attention = model.layers[layer].attention
    weight = attention.out_proj.weight  # (D, D), columns by head
    kept, width = weight.detach().clone(), weight.shape[1] // attention.num_heads
    try:
        with torch.no_grad():
            weight[:, head * width : (head + 1) * width] = 0
        yield
    finally:
        with torch.no_grad():
            weight.copy_(kept)


@torch.no_grad()
def loss_without_heads(model: nn.Module, batches: Sequence[Masked]) -> Tensor:
    """How much a BERT's masked-language-modelling loss grows when one head is removed.

    A head is removed by setting its output to zero before the layer's last projection.

    Args:
        model: with `bert` and `mlm`, in eval mode.
        batches: for example the same sentences, masked in several ways.

    Returns:
        (batches, layers, heads): the loss without the head minus the loss of the whole model, in
        nats per masked token.
    """

    def loss(batch: Masked) -> Tensor:
        hidden, _ = model.bert(batch.ids, None, batch.mask)  # (B, T, D)
        asked = batch.targets >= 0
        return F.cross_entropy(model.mlm(hidden[asked]), batch.targets[asked])

    whole = [loss(batch) for batch in batches]
    layers = model.bert.layers
    heads = layers[0].attention.num_heads
    growth = torch.zeros(len(batches), len(layers), heads)
    for layer in range(len(layers)):
        for head in range(heads):
            with without_head(model.bert, layer, head):
                growth[:, layer, head] = torch.stack(
                    [loss(batch) - before for batch, before in zip(batches, whole, strict=True)]
                )
    return growth


def look_at(weights: Tensor, offset: int) -> float:
    """Mean weight on the key `offset` positions after the query, where there is one: (T, T)."""
    return float(weights.diagonal(offset).mean())


# --------------------------------------------------------------------------- a model that reads


class Reader(nn.Module):
    """Layers of self-attention, with residual connections, that name the referent of «it».

    Args:
        task: gives the vocabulary.
        attention: `MultiHeadAttention` of the chapter, or one's own class with its interface.
        d_model, num_heads, num_layers: sizes.
        causal: whether tokens may only look back.
    """

    def __init__(
        self, task: Referents, attention: type[nn.Module], *, d_model: int = 32,
        num_heads: int = 2, num_layers: int = 2, causal: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token = nn.Embedding(len(task.words), d_model)
        self.position = nn.Embedding(Referents.LENGTH, d_model)
        self.layers = nn.ModuleList(attention(d_model, num_heads) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(num_layers + 1))
        self.output = nn.Linear(d_model, len(task.words))
        self.causal = causal

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (B, T) -> logits (B, T, V) and attention weights (layers, B, heads, T, T)."""
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril() if self.causal else None
        x = self.token(tokens) + self.position.weight[:length]  # (B, T, D)
        maps = []
        for attend, norm in zip(self.layers, self.norms, strict=False):
            y = norm(x)
            added, weights = attend(y, y, y, mask)
            x = x + added
            maps.append(weights)
        return self.output(self.norms[-1](x)), torch.stack(maps)


@dataclass(frozen=True)
class Watched:
    """A training, watched: what the model could do and where «it» looked, at some steps.

    steps: S step numbers. accuracy: S shares of right referents in held-out sentences.
    looks: (S, sentences, layers, heads, T), the weights of «it» in given sentences.
    """

    steps: list[int]
    accuracy: list[float]
    looks: Tensor


def held_out(task: Referents, size: int, batches: Sequence[Sentences], seed: int) -> Sentences:
    """Random sentences that are in none of the batches."""
    known = {tuple(row) for batch in batches for row in batch.tokens.tolist()}
    drawn = task.sample(2 * size, torch.Generator().manual_seed(seed))
    keep = [i for i, row in enumerate(drawn.tokens.tolist()) if tuple(row) not in known][:size]
    return Sentences(drawn.tokens[keep], drawn.it[keep], drawn.referent[keep], drawn.other[keep],
                     drawn.clue[keep])  # fmt: skip


@torch.no_grad()
def referent_accuracy(reader: nn.Module, sentences: Sentences) -> float:
    """Share of sentences in which the model names the referent at «it»."""
    rows = torch.arange(len(sentences.it))
    named = reader(sentences.tokens)[0][rows, sentences.it].argmax(-1)  # (B,)
    return float((named == sentences.tokens[rows, sentences.referent]).float().mean())


def learn_referents(
    reader: nn.Module, task: Referents, steps: int = 150, *, lr: float = 5e-3, seed: int = 0,
    watch: Sequence[str] = (), every: int = 10,
) -> Watched:  # fmt: skip
    """Train a `Reader` by Adam, and look at it on the way.

    Args:
        watch: sentences in words of the task, all with the same number of tokens.
        every: how many steps lie between two looks.
    """
    draw = torch.Generator().manual_seed(seed)
    batches = [task.sample(64, draw) for _ in range(steps)]
    test = held_out(task, 300, batches, seed=1000 + seed)
    watched = torch.cat([task.sentence(text) for text in watch]) if watch else None
    spots = [text.split().index("it") for text in watch]
    optimizer = torch.optim.Adam(reader.parameters(), lr=lr)
    found: tuple[list[int], list[float], list[Tensor]] = ([], [], [])
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            found[0].append(step)
            found[1].append(referent_accuracy(reader, test))
            if watched is not None:
                with torch.no_grad():
                    maps = reader(watched)[1]  # (L, N, H, T, T)
                found[2].append(torch.stack([maps[:, n, :, at] for n, at in enumerate(spots)]))
        if step < steps:
            batch = batches[step]
            rows = torch.arange(len(batch.it))
            logits = reader(batch.tokens)[0][rows, batch.it]  # (B, V)
            loss = F.cross_entropy(logits, batch.tokens[rows, batch.referent])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    looks = torch.stack(found[2]) if found[2] else torch.empty(0)
    return Watched(found[0], found[1], looks)


@torch.no_grad()
def looks_at(reader: nn.Module, sentences: Sentences) -> dict[str, Tensor]:
    """Mean weights of «it» on the referent, the other noun and the clue: (layers, heads) each."""
    rows = torch.arange(len(sentences.it))
    maps = reader(sentences.tokens)[1]  # (L, B, H, T, T)
    at = maps[:, rows, :, sentences.it]  # (B, L, H, T): advanced indices go first
    marks = {"referent": sentences.referent, "other noun": sentences.other, "clue": sentences.clue}
    return {name: at[rows, :, :, where].mean(0) for name, where in marks.items()}
