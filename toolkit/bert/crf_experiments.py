"""What the transitions of a CRF are worth: the stored experiment of the BERT chapter.

    python -m toolkit.bert.crf_experiments chain             # a made language, all four taggers
    python -m toolkit.bert.crf_experiments chain "BiLSTM"    # variants with this in their name

It takes about two minutes of one core and writes `toolkit/measured/crf_chain.csv`, which `read`
reads; a part replaces its own rows. The language is a Markov chain of tags, each of which draws a
word, so that the best possible is known. Every tagger is trained with five learning rates and five
seeds side by side (`toolkit.many_models`); each seed has training sentences of its own. Learning
rate and number of steps are chosen on validation sentences, results are of test sentences.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from toolkit.many_models import (
    FOLDER,
    SEEDS,
    Parameters,
    cross_entropy,
    embed,
    read_rows,
    repeated,
    replace_rows,
    run_named,
    train,
    uniform,
)

Row = dict[str, object]
LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
MODELS = len(LRS) * SEEDS
STEPS = (50, 100, 200, 400)
SIZES = (50, 500)  # training sentences
LENGTH = 10
BATCH = 32

# --------------------------------------------------------------------------- the language

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# Probability of a tag (column) after a tag (row). 0: the grammar forbids it.
FOLLOWS = torch.tensor(
    [
        [0.5, 0.25, 0, 0.25, 0],
        [0.2, 0, 0.8, 0, 0],
        [0.4, 0, 0.6, 0, 0],
        [0.2, 0, 0, 0, 0.8],
        [0.4, 0, 0, 0, 0.6],
    ]
)
BEGINS = torch.tensor([0.5, 0.25, 0, 0.25, 0])
# Probability of each of twelve words under a tag: B and I of one kind draw the same words.
_SPOKEN = torch.tensor(
    [[20.0] * 4 + [1] * 8]
    + 2 * [[1.0] * 4 + [20] * 4 + [2] * 4]
    + 2 * [[1.0] * 4 + [2] * 4 + [20] * 4]
)
SPOKEN = _SPOKEN / _SPOKEN.sum(1, keepdim=True)  # (L, V)
VOCABULARY = SPOKEN.shape[1]


def sentences(count: int, seed: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    """Words and tags of sentences of the language, both (count, length)."""
    draw = torch.Generator().manual_seed(seed)
    tags = [torch.multinomial(BEGINS, count, True, generator=draw)]
    for _ in range(length - 1):
        tags.append(torch.multinomial(FOLLOWS[tags[-1]], 1, generator=draw)[:, 0])
    made = torch.stack(tags, 1)  # (count, T)
    words = torch.multinomial(SPOKEN[made.flatten()], 1, generator=draw)
    return words.view(count, length), made


@dataclass(frozen=True)
class Verdict:
    """Of each model (M,): the share of tags right, of sentences right, of sentences against the
    grammar."""

    tags: Tensor
    whole: Tensor
    broken: Tensor


def judge(found: Tensor, right: Tensor) -> Verdict:
    """Compare tags (M, B, T) with the right ones (B, T)."""
    same = found == right
    moves = FOLLOWS[found[..., :-1], found[..., 1:]]  # (M, B, T - 1)
    broken = (moves == 0).any(-1) | (BEGINS[found[..., 0]] == 0)
    return Verdict(
        same.float().mean((1, 2)), same.all(-1).float().mean(-1), broken.float().mean(-1)
    )


# --------------------------------------------------------------------------- CRFs side by side


def score(emissions: Tensor, tags: Tensor, at: Parameters) -> Tensor:
    """Emissions (M, B, T, L) and tags (M, B, T) -> the score of each sequence (M, B)."""
    model = torch.arange(len(emissions))[:, None, None]
    emitted = emissions.gather(-1, tags[..., None])[..., 0].sum(-1)  # (M, B)
    moved = at["transitions"][model, tags[..., :-1], tags[..., 1:]].sum(-1)  # (M, B)
    return emitted + moved + at["start"][model[..., 0], tags[..., 0]]


def partition(emissions: Tensor, at: Parameters) -> Tensor:
    """Emissions (M, B, T, L) -> log Z (M, B), by the forward algorithm."""
    first, *others = emissions.unbind(2)
    sums = first + at["start"][:, None]  # (M, B, L)
    for now in others:
        ways = sums[..., None] + at["transitions"][:, None]  # (M, B, L before, L now)
        sums = ways.logsumexp(2) + now
    return sums.logsumexp(-1)


def best_sequences(emissions: Tensor, at: Parameters) -> Tensor:
    """Emissions (M, B, T, L) -> the tags with the largest score (M, B, T), by Viterbi."""
    best = emissions[:, :, 0] + at["start"][:, None]  # (M, B, L)
    before = []
    for t in range(1, emissions.shape[2]):
        longer, tag = (best[..., None] + at["transitions"][:, None]).max(2)  # (M, B, L) both
        best = longer + emissions[:, :, t]
        before.append(tag)
    path = [best.argmax(-1)]  # (M, B)
    for tag in reversed(before):
        path.append(tag.gather(-1, path[-1][..., None])[..., 0])
    return torch.stack(path[::-1], -1)


def possible(words: Tensor, tags: Tensor) -> dict[str, Verdict]:
    """What nobody can beat: the best sequence, and the best tag of each word by itself.

    Both know the probabilities of the language: words and tags (B, T).
    """
    logs = {"transitions": FOLLOWS, "start": BEGINS}
    at = {name: p.clamp(min=1e-30).log()[None] for name, p in logs.items()}
    emissions = SPOKEN.log().T[words][None].requires_grad_()  # (1, B, T, L)
    marginals = torch.autograd.grad(partition(emissions, at).sum(), emissions)[0]
    with torch.no_grad():
        return {
            "best sequence": judge(best_sequences(emissions, at), tags),
            "best single tags": judge(marginals.argmax(-1), tags),
        }


# --------------------------------------------------------------------------- taggers

EMBED, HIDDEN = 16, 16


@dataclass(frozen=True)
class Tagger:
    """Emissions from each word by itself or from a BiLSTM, and a softmax or a CRF on top."""

    lstm: bool
    crf: bool

    def parameters(self) -> Parameters:
        """Fresh parameters of all models."""
        tags = len(TAGS)
        made: Parameters = {}
        if self.lstm:
            bound = 1 / math.sqrt(HIDDEN)
            made["embedding"] = torch.randn(MODELS, VOCABULARY, EMBED)
            made["inputs"] = uniform(bound, MODELS, 2, EMBED, 4 * HIDDEN)
            made["inputs_bias"] = uniform(bound, MODELS, 2, 1, 4 * HIDDEN)
            made["states"] = uniform(bound, MODELS, 2, HIDDEN, 4 * HIDDEN)
            made["outputs"] = uniform(1 / math.sqrt(2 * HIDDEN), MODELS, 2 * HIDDEN, tags)
            made["outputs_bias"] = torch.zeros(MODELS, 1, tags)
        else:
            made["embedding"] = torch.randn(MODELS, VOCABULARY, tags)
        if self.crf:
            made["transitions"] = 0.1 * torch.randn(MODELS, tags, tags)
            made["start"] = 0.1 * torch.randn(MODELS, tags)
        return made

    def emissions(self, at: Parameters, words: Tensor) -> Tensor:
        """Words (M, B, T) -> (M, B, T, L)."""
        x = embed(at["embedding"], words)  # (M, B, T, E)
        if not self.lstm:
            return x
        x = torch.stack([x, x.flip(2)], 1)  # (M, 2, B, T, E), the second from right to left
        given = (x.flatten(2, 3) @ at["inputs"] + at["inputs_bias"]).unflatten(2, x.shape[2:4])
        hidden = x.new_zeros(*x.shape[:3], HIDDEN)  # (M, 2, B, H)
        cell, states = hidden, []
        for now in given.unbind(3):
            gates = now + hidden @ at["states"]  # (M, 2, B, 4 H)
            enter, forget, leave = gates[..., : 3 * HIDDEN].sigmoid().chunk(3, -1)
            cell = forget * cell + enter * gates[..., 3 * HIDDEN :].tanh()
            hidden = leave * cell.tanh()
            states.append(hidden)
        both = torch.stack(states, 3)  # (M, 2, B, T, H)
        side = torch.cat([both[:, 0], both[:, 1].flip(2)], -1)  # (M, B, T, 2 H)
        flat = side.flatten(1, 2) @ at["outputs"] + at["outputs_bias"]
        return flat.unflatten(1, side.shape[1:3])

    def loss(self, at: Parameters, words: Tensor, tags: Tensor) -> Tensor:
        """Words and tags (M, B, T) -> minus log p of the tags of each model (M,), a token."""
        emissions = self.emissions(at, words)
        if self.crf:
            each = partition(emissions, at) - score(emissions, tags, at)  # (M, B)
            return each.mean(1) / tags.shape[-1]
        return cross_entropy(emissions, tags)

    @torch.no_grad()
    def tag(self, at: Parameters, words: Tensor) -> Tensor:
        """Words (B, T) -> the tags of each model (M, B, T)."""
        found = []
        for part in words.split(100):
            emissions = self.emissions(at, part.expand(MODELS, -1, -1))
            found.append(best_sequences(emissions, at) if self.crf else emissions.argmax(-1))
        return torch.cat(found, 1)


TAGGERS = {
    "word alone": Tagger(lstm=False, crf=False),
    "word + CRF": Tagger(lstm=False, crf=True),
    "BiLSTM": Tagger(lstm=True, crf=False),
    "BiLSTM-CRF": Tagger(lstm=True, crf=True),
}
VARIANTS = tuple(f"{name}, {size} sentences" for size in SIZES for name in TAGGERS)


def test_sentences() -> tuple[Tensor, Tensor]:
    """Words and tags that results are reported on."""
    return sentences(2000, 20_000)


def chain(part: str = "", steps: Sequence[int] = STEPS) -> list[Row]:
    """Rows of variant, steps, learning rate, seed, validation and test shares."""
    rows: list[Row] = []
    checks = {"validation_": sentences(1000, 10_000), "": test_sentences()}
    for variant in VARIANTS:
        if part not in variant:
            continue
        began = time.perf_counter()
        name, size = variant.removesuffix(" sentences").split(", ")
        tagger = TAGGERS[name]
        own = [sentences(int(size), seed) for seed in range(SEEDS)]
        words, tags = (torch.stack(both) for both in zip(*own, strict=True))  # (seeds, N, T)
        draw = torch.Generator().manual_seed(2)
        torch.manual_seed(1)
        at = tagger.parameters()

        def loss(
            at: Parameters, step: int, tagger: Tagger = tagger, words: Tensor = words,
            tags: Tensor = tags, draw: torch.Generator = draw,
        ) -> Tensor:  # fmt: skip
            seed = torch.arange(SEEDS)[:, None]
            chosen = torch.randint(words.shape[1], (SEEDS, BATCH), generator=draw)
            batch = (repeated(x[seed, chosen], len(LRS)) for x in (words, tags))  # (M, B, T)
            return tagger.loss(at, *batch)

        for step in train(at, loss, steps[-1], LRS):
            if step not in steps:
                continue
            found = {k: judge(tagger.tag(at, w), y) for k, (w, y) in checks.items()}
            for model in range(MODELS):
                row: Row = {"variant": variant, "steps": step, "lr": LRS[model // SEEDS],
                            "seed": model % SEEDS}  # fmt: skip
                for prefix, verdict in found.items():
                    for measure in ("tags", "whole", "broken"):
                        row[prefix + measure] = round(getattr(verdict, measure)[model].item(), 4)
                rows.append(row)
        print(f"{variant}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


# --------------------------------------------------------------------------- files

FILE = FOLDER / "crf_chain.csv"


def write(rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows of the experiment to its file; variants that they don't have are kept."""
    return replace_rows(FILE, rows, VARIANTS)


@dataclass(frozen=True)
class Found:
    """What a variant reached at the learning rate and number of steps that validation chose.

    Attributes:
        tags, whole, broken: the shares of each seed on the test sentences (seeds,).
    """

    lr: float
    steps: int
    tags: Tensor
    whole: Tensor
    broken: Tensor


def read(measure: str = "whole") -> dict[str, Found]:
    """What the stored experiment found, by variant.

    Args:
        measure: by which learning rate and steps are chosen on validation, "whole" or "tags".
    """
    groups: dict[str, dict[tuple[float, int], list[dict[str, str]]]] = {}
    for row in read_rows(FILE):
        setting = float(row["lr"]), int(row["steps"])
        groups.setdefault(row["variant"], {}).setdefault(setting, []).append(row)
    found = {}
    for variant, settings in groups.items():
        column = f"validation_{measure}"
        best = max(settings, key=lambda s: sum(float(row[column]) for row in settings[s]))
        values = (
            torch.tensor([float(row[name]) for row in settings[best]])
            for name in ("tags", "whole", "broken")
        )
        found[variant] = Found(*best, *values)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment, or a part of it, and write its file."""
    _, rows = run_named(__doc__, {"chain": chain}, arguments, "variants with this in their name")
    print(write(rows))


if __name__ == "__main__":
    main()
