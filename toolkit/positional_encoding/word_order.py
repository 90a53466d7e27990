"""Who bit whom? Sentences of the same words in two orders, and a question at the end.

    task = WhoBitWhom()
    ids, answers = task.batch(64, torch.Generator().manual_seed(0))
    print(task.text(ids[0]))        # then the cat saw again the wolf who

The answer to *who* is the first noun, the answer to *whom* the second. Up to three other words
stand at random positions, so that counting from the left does not find the nouns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import plots

NOUNS = ("dog", "man", "cat", "woman", "horse", "child", "wolf", "fox")
VERBS = ("bit", "saw", "met", "fed")
OTHERS = ("then", "again", "slowly", "there")
QUESTIONS = ("who", "whom")
MOST_OTHERS = 3
# Pairs that no training sentence holds, in either order; the first is the chapter's example.
HELD_OUT = (("dog", "man"), ("cat", "woman"), ("horse", "child"), ("wolf", "fox"), ("dog", "cat"),
            ("man", "horse"), ("woman", "wolf"))  # fmt: skip


class WhoBitWhom:
    """The task: sentences (B, T) of ids, and the noun that answers the question at the end.

    words: id to word. max_length: the largest T.
    """

    def __init__(self) -> None:
        self.words = ["the", *NOUNS, *VERBS, *OTHERS, *QUESTIONS]
        self.max_length = 6 + MOST_OTHERS
        self._ids = {word: i for i, word in enumerate(self.words)}
        held = {frozenset(pair) for pair in HELD_OUT}
        pairs = list(itertools.permutations(NOUNS, 2))
        self._pairs = {
            new: torch.tensor([[self._ids[n] for n in p] for p in pairs
                               if (frozenset(p) in held) == new])
            for new in (False, True)
        }  # fmt: skip
        self._shapes = [torch.tensor(_shapes(count)) for count in range(MOST_OTHERS + 1)]

    def batch(self, size: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Training sentences (size, T) and answers (size,), without the pairs that are held out.

        T is drawn for the whole batch, so that nothing need be filled up.
        """
        others = int(torch.randint(MOST_OTHERS + 1, (1,), generator=draw))
        return self._sentences(self._parts(size, draw, new=False), others, draw)

    def new_sentences(
        self, size: int, others: int = MOST_OTHERS, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Sentences whose two nouns no training sentence holds together, each in both orders.

        Args:
            others: how many other words each of them has, 0 to 3.

        Returns:
            ids (2 size, T) and answers (2 size,); sentences i and i + size differ in the order of
            the nouns and in nothing else.
        """
        draw = torch.Generator().manual_seed(seed)
        parts = self._parts(size, draw, new=True)
        state = draw.get_state()
        ids, answers = self._sentences(parts, others, draw)
        draw.set_state(state)
        swapped, reversed_ = self._sentences(parts[:, [0, 3, 2, 1, 4, 5, 6, 7]], others, draw)
        return torch.cat([ids, swapped]), torch.cat([answers, reversed_])

    def sentence(self, text: str) -> Tensor:
        """The ids (1, T) of a text.

        Raises:
            ValueError: a word that the task does not have.
        """
        unknown = [word for word in text.split() if word not in self._ids]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of the words {' '.join(self.words)}")
        return torch.tensor([[self._ids[word] for word in text.split()]])

    def text(self, ids: Tensor) -> str:
        """The words of ids (T,)."""
        return " ".join(self.words[int(i)] for i in ids)

    def _parts(self, size: int, draw: torch.Generator, *, new: bool) -> Tensor:
        """The words that fill a shape: (size, 8)."""

        def one(group: tuple[str, ...]) -> Tensor:
            first = self._ids[group[0]]
            return torch.randint(first, first + len(group), (size, 1), generator=draw)

        pairs = self._pairs[new]
        nouns = pairs[torch.randint(len(pairs), (size,), generator=draw)]  # (size, 2)
        the = torch.zeros(size, 1, dtype=torch.long)
        others = [one(OTHERS) for _ in range(MOST_OTHERS)]
        return torch.cat([the, nouns[:, :1], one(VERBS), nouns[:, 1:], *others, one(QUESTIONS)], 1)

    def _sentences(
        self, parts: Tensor, others: int, draw: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        shapes = self._shapes[others]
        chosen = shapes[torch.randint(len(shapes), (len(parts),), generator=draw)]  # (size, T)
        asked = (parts[:, 7] == self._ids["whom"]).long()  # 0 who, 1 whom
        return parts.gather(1, chosen), parts.gather(1, 1 + 2 * asked[:, None])[:, 0]


def _shapes(count: int) -> list[list[int]]:
    """In which orders the parts may stand, with `count` other words.

    The parts are 0 the, 1 first noun, 2 verb, 3 second noun, 4 to 6 other words, 7 question. The
    other words go before, between and after the rest, never behind a «the».
    """
    parts = ((0, 1), (2,), (0, 3), (7,))
    shapes = []
    for slots in itertools.combinations_with_replacement(range(4), count):
        shape: list[int] = []
        for slot, part in enumerate(parts):
            shape += [4 + number for number, place in enumerate(slots) if place == slot]
            shape += part
        shapes.append(shape)
    return shapes


@dataclass
class Learned:
    """What was seen while a model learned: at `steps`, the accuracy on new sentences, and the
    probabilities (watched, words) of the answers to the sentences watched; the loss of every step.
    """

    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    answers: list[Tensor] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def learn(
    model: nn.Module,
    task: WhoBitWhom,
    steps: int,
    lr: float = 3e-3,
    seed: int = 0,
    watch: Sequence[str] = (),
    every: int = 10,
) -> Learned:
    """Train a model to answer; its last position says the noun.

    Args:
        model: ids (B, T) -> logits (B, T, words).
        watch: texts of one length, whose answers are kept on the way.
        every: after how many steps it is measured.
    """
    new, right = task.new_sentences(150)
    watched = torch.cat([task.sentence(text) for text in watch]) if watch else new[:0]
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    seen = Learned()
    for step in range(steps + 1):
        if step % every == 0:
            with torch.no_grad():
                said = model(new)[:, -1].argmax(-1)
                if watch:
                    seen.answers.append(model(watched)[:, -1].softmax(-1))
            seen.steps.append(step)
            seen.accuracy.append((said == right).float().mean().item())
        if step == steps:
            break
        ids, answers = task.batch(64, draw)
        loss = F.cross_entropy(model(ids)[:, -1], answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.losses.append(loss.item())
    return seen


# --------------------------------------------------------------------------- pictures


def learning_curves(runs: Mapping[str, Sequence[Learned]], window: int = 10) -> Figure:
    """Loss and accuracy against the step: mean and spread of the runs of each name.

    Raises:
        ValueError: if there is no run.
    """
    if not runs or not all(runs.values()):
        raise ValueError("give at least one run of each name")
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 2.9))
    for colour, (name, found) in zip(plots.PALETTE, runs.items(), strict=False):
        losses = torch.tensor([run.losses for run in found])  # (runs, steps)
        usable = losses.shape[1] // window * window
        means = losses[:, :usable].unflatten(1, (-1, window)).mean(-1)
        shown = (
            (left, [window * (i + 0.5) for i in range(means.shape[1])], means),
            (right, found[0].steps, torch.tensor([run.accuracy for run in found])),
        )
        for ax, across, values in shown:
            middle = values.mean(0)
            spread = values.std(0) if len(found) > 1 else torch.zeros_like(middle)
            ax.plot(across, middle, color=colour, label=name)
            ax.fill_between(across, middle - spread, middle + spread, color=colour, alpha=0.2, lw=0)
    for ax, height in ((left, math.log(2)), (right, 0.5)):
        ax.axhline(height, color=plots.INK, linestyle=":", linewidth=1)
        ax.set_xlabel("training steps")
        ax.set_ylim(bottom=0)
    left.set_title("loss; dotted: ln 2")
    right.set_title("accuracy on new sentences; dotted: 1/2")
    right.set_ylim(0, 1.04)
    right.legend(loc="lower right")
    return figure
