"""Data for the experiments of the attention chapter.

Both tasks are made by rule, so what a model ought to look at is known exactly.

* Translation with reordering: a subject-object-verb language with adjectives before nouns into a
  subject-verb-object language with adjectives after nouns. Each word has one translation, so the
  true alignment is the permutation of the rule.
* Referents: sentences in which «it» stands for the animal if it was tired, for the place if it
  was wide, with the two nouns in either order and fillers in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PAD = 0


# --------------------------------------------------------------------------- translation


@dataclass(frozen=True)
class Pairs:
    """A batch of sentence pairs. Ids are 0 for padding; the two languages number words apart.

    source: (B, S) int64.
    target: (B, T) int64, T = S because every word is translated by one word.
    alignment: (B, T) int64: the source position that target position i translates; -1 at padding.
    lengths: (B,) int64, real words of both sides.
    """

    source: Tensor
    target: Tensor
    alignment: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> Pairs:
        """The same batch on another device."""
        moved = (x.to(device) for x in (self.source, self.target, self.alignment, self.lengths))
        return Pairs(*moved)


class Translation:
    """The two languages: words, dictionary and word order.

    Attributes:
        source_words, target_words: index to word; index 0 is padding. In the target language
            index 1 is the start symbol.
    """

    START = 1

    def __init__(self) -> None:
        adjectives = [
            ("big", "ta"), ("small", "pi"), ("red", "ro"), ("old", "vu"), ("new", "no"),
            ("sad", "li"),
        ]  # fmt: skip
        nouns = [
            ("dog", "kan"), ("cat", "mio"), ("bird", "avi"), ("fish", "pes"), ("girl", "fil"),
            ("boy", "puo"), ("tree", "arb"), ("house", "dom"),
        ]  # fmt: skip
        verbs = [("sees", "vida"), ("likes", "ama"), ("finds", "tova"), ("draws", "dega")]
        words = [*adjectives, *nouns, *verbs]
        self.source_words = ["<pad>", *(a for a, _ in words)]
        self.target_words = ["<pad>", "<s>", *(b for _, b in words)]
        first = 1
        self.kinds = {}
        for kind, group in (("adjective", adjectives), ("noun", nouns), ("verb", verbs)):
            self.kinds[kind] = range(first, first + len(group))
            first += len(group)

    def sample(self, size: int, generator: torch.Generator, most_adjectives: int = 2) -> Pairs:
        """Random sentence pairs of 3 to 3 + 2 * most_adjectives words."""

        def pick(kind: str) -> int:
            group = self.kinds[kind]
            return group[int(torch.randint(len(group), (1,), generator=generator))]

        sources, alignments = [], []
        for _ in range(size):
            counts = torch.randint(most_adjectives + 1, (2,), generator=generator).tolist()
            source: list[int] = []
            phrases: list[list[int]] = []
            for count in counts:  # subject, then object: adjectives before the noun
                begin = len(source)
                source += [pick("adjective") for _ in range(count)] + [pick("noun")]
                phrases.append(list(range(begin, len(source))))
            source.append(pick("verb"))
            subject, obj = (p[::-1] for p in phrases)  # noun first, adjectives behind it, reversed
            alignments.append([*subject, len(source) - 1, *obj])
            sources.append(source)
        longest = max(map(len, sources))
        pairs = Pairs(
            torch.full((size, longest), PAD), torch.full((size, longest), PAD),
            torch.full((size, longest), -1), torch.tensor([len(s) for s in sources]),
        )  # fmt: skip
        for row, (source, alignment) in enumerate(zip(sources, alignments, strict=True)):
            n = len(source)
            pairs.source[row, :n] = torch.tensor(source)
            pairs.alignment[row, :n] = torch.tensor(alignment)
            pairs.target[row, :n] = torch.tensor([source[j] + 1 for j in alignment])
        return pairs

    def words(self, ids: Iterable[int], side: str) -> list[str]:
        """The words of one row of ids, padding left out; side is "source" or "target"."""
        table = self.source_words if side == "source" else self.target_words
        return [table[int(i)] for i in ids if int(i) != PAD]


def alignment_rate(weights: Tensor, pairs: Pairs) -> float:
    """Share of target words whose largest weight lies on the source word they translate.

    weights: (B, T, S).
    """
    real = pairs.alignment >= 0
    return float((weights.argmax(-1) == pairs.alignment)[real].float().mean())


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
