"""Stored experiment of the page on [MASK]: which corruption, and how much of it, pre-trains best.

    python -m toolkit.bert.masking_experiments masking            # all, about 6 minutes of a core
    python -m toolkit.bert.masking_experiments masking "80/20/0"  # those with this in their name

Small BERTs learn a language made by rule, in which every second word belongs to two of six
classes, so that a word's class depends on its neighbours. Each seed has a language, an
initialisation and labelled sentences of its own. A contestant pre-trains with one way of masking:
five learning rates, five seeds, the same steps and tokens. The learning rate with the smallest loss
of its own task on validation text is taken. Then every token's class is to be predicted from a few
labelled sentences: once with all weights fine-tuned, once by a linear classifier on the frozen
vectors; the learning rate of either is chosen on labelled validation sentences, and what is
reported is measured on others.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.many_models import (
    FOLDER,
    SEEDS,
    Parameters,
    best_lr,
    cross_entropy,
    embed,
    model_rows,
    read_rows,
    repeated,
    replace_rows,
    run_named,
    train,
)

LRS = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
TUNE_LRS = {
    "fine-tuned": (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    "frozen": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1),
}
MODELS = len(LRS) * SEEDS
CLASSES, WORDS, LENGTH = 6, 24, 10
MASK = WORDS  # the id after those of the words
D_MODEL, NUM_HEADS, NUM_LAYERS, D_FF = 24, 2, 2, 48
STEPS, BATCH, WARMUP = 700, 10, 70
LABELLED, TUNE_STEPS = 8, 200
FILE = FOLDER / "bert_masking.csv"
Row = dict[str, object]


@dataclass(frozen=True)
class Masking:
    """A way of masking: shares of [MASK], random and kept tokens, and the masking probability."""

    shares: tuple[float, float, float]
    mask_prob: float = 0.15

    @property
    def name(self) -> str:
        shares = "/".join(f"{100 * share:.0f}" for share in self.shares)
        return f"{shares} of {100 * self.mask_prob:.0f} %"


USUAL = (0.8, 0.1, 0.1)
CONTESTANTS = {
    one.name: one
    for one in (
        Masking(USUAL),
        Masking((1.0, 0.0, 0.0)),
        Masking(USUAL, 0.05),
        Masking(USUAL, 0.4),
        Masking(USUAL, 0.8),
        Masking((0.0, 1.0, 0.0)),
        Masking((0.8, 0.2, 0.0)),
        Masking((0.8, 0.0, 0.2)),
    )
}
NONE = "no pre-training"

# --------------------------------------------------------------------------- language


class Language:
    """A hidden Markov model for each seed: a class follows a class, and emits a word.

    follows: (seeds, classes, classes) probabilities. emits: (seeds, classes, words).
    """

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        follows = torch.zeros(SEEDS, CLASSES, CLASSES)
        emits = torch.zeros(SEEDS, CLASSES, WORDS)
        for seed in range(SEEDS):
            order = torch.randperm(CLASSES, generator=draw)
            follows[seed, order, order.roll(1)] = 0.8  # one of two classes follows
            follows[seed, order, order.roll(2)] = 0.2
            word = torch.arange(WORDS)
            first = torch.randperm(CLASSES, generator=draw)
            emits[seed, first[word % CLASSES], word] += 1
            # Every second word belongs to two classes, as often to the one as to the other
            apart = word // 2 % (CLASSES - 1) + 1
            second = first[(word + apart) % CLASSES]
            emits[seed, second[word % 2 == 1], word[word % 2 == 1]] += 1
        self.follows, self.emits = follows, emits / emits.sum(-1, keepdim=True)

    def sentences(self, count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Words and their classes, both (seeds, count, LENGTH)."""
        state = torch.randint(CLASSES, (SEEDS, count), generator=draw)
        which = torch.arange(SEEDS)[:, None]
        classes = []
        for _ in range(LENGTH):
            classes.append(state)
            state = _drawn(self.follows[which, state], draw)
        found = torch.stack(classes, -1)  # (seeds, count, LENGTH)
        return _drawn(self.emits[which[..., None], found], draw), found

    def best_possible(self, words: Tensor) -> Tensor:
        """The most probable class of each word (seeds, N, LENGTH), knowing the rule itself."""
        which = torch.arange(SEEDS)[:, None, None]
        likely = self.emits.transpose(1, 2)[which, words]  # (seeds, N, LENGTH, classes)
        forward, backward = [likely[:, :, 0]], [torch.ones_like(likely[:, :, 0])]
        for t in range(1, LENGTH):
            forward.append(forward[-1] @ self.follows * likely[:, :, t])
            later = likely[:, :, LENGTH - t] * backward[-1]
            backward.append(later @ self.follows.transpose(1, 2))
        both = torch.stack(forward, 2) * torch.stack(backward[::-1], 2)
        return both.argmax(-1)

    def by_word(self, words: Tensor) -> Tensor:
        """The most frequent class of each word, whatever stands around it."""
        often = torch.full((SEEDS, 1, CLASSES), 1 / CLASSES)
        for _ in range(200):
            often = often @ self.follows
        likely = often.transpose(1, 2) * self.emits  # (seeds, classes, words)
        return likely.argmax(1)[torch.arange(SEEDS)[:, None, None], words]


def _drawn(shares: Tensor, draw: torch.Generator) -> Tensor:
    """One index for each distribution in the last dimension."""
    below = torch.rand(shares.shape[:-1], generator=draw)[..., None] * shares.sum(-1, keepdim=True)
    return (shares.cumsum(-1) < below).sum(-1).clamp(max=shares.shape[-1] - 1)


def corrupt(words: Tensor, way: Masking, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the model reads, and which positions it is asked for; both as `words`."""
    asked = torch.rand(words.shape, generator=draw) < way.mask_prob
    fate = torch.rand(words.shape, generator=draw)
    masked, replaced, _ = way.shares
    read = words.masked_fill(asked & (fate < masked), MASK)
    other = torch.randint(WORDS, words.shape, generator=draw)
    return torch.where(asked & (fate >= masked) & (fate < masked + replaced), other, read), asked


# --------------------------------------------------------------------------- model


def fresh(models: int = MODELS) -> Parameters:
    """New parameters of all models; seeds have the same ones at every learning rate."""

    def normal(*shape: int) -> Tensor:
        one = torch.randn(SEEDS, *shape) * shape[-2] ** -0.5
        return repeated(one, models // SEEDS)

    made = {
        "embedding": normal(WORDS + 1, D_MODEL) * (WORDS + 1) ** 0.5 * 0.2,
        "positions": normal(LENGTH, D_MODEL) * LENGTH**0.5 * 0.2,
        "outputs": normal(D_MODEL, D_MODEL),
        "bias": torch.zeros(models, 1, WORDS + 1),
    }
    for n in range(NUM_LAYERS):
        made |= {f"{n}.qkv": normal(D_MODEL, 3 * D_MODEL), f"{n}.out": normal(D_MODEL, D_MODEL)}
        made |= {f"{n}.up": normal(D_MODEL, D_FF), f"{n}.down": normal(D_FF, D_MODEL)}
        made |= {f"{n}.up_bias": torch.zeros(models, 1, D_FF)}
    # Attention is biased by distance; at first one head prefers the token before, one that after.
    made["near"] = torch.zeros(models, NUM_LAYERS, NUM_HEADS, 2 * LENGTH - 1)
    made["near"][:, :, 0, LENGTH - 2] = made["near"][:, :, 1, LENGTH] = 3.0
    made["gain"] = torch.ones(models, 2 * NUM_LAYERS + 2, 1, D_MODEL)
    made["shift"] = torch.zeros(models, 2 * NUM_LAYERS + 2, 1, D_MODEL)
    return made


def hidden(at: Parameters, ids: Tensor) -> Tensor:
    """ids (M, B, T) -> vectors after the last layer (M, B T, D): a post-norm encoder, as BERT's."""
    M, B, T = ids.shape
    gains, shifts = at["gain"].unbind(1), at["shift"].unbind(1)

    def norm(x: Tensor, number: int) -> Tensor:
        return torch.addcmul(shifts[number], F.layer_norm(x, x.shape[-1:]), gains[number])

    x = norm((embed(at["embedding"], ids) + at["positions"][:, None]).flatten(1, 2), 0)
    steps = torch.arange(T)
    near = at["near"][..., steps - steps[:, None] + T - 1]  # (M, N, H, T, T)
    near = near[:, None].expand(-1, B, -1, -1, -1, -1).flatten(0, 1)  # (M B, N, H, T, T)
    for n in range(NUM_LAYERS):
        parts = (x @ at[f"{n}.qkv"]).view(M * B, T, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)  # (M B, H, T, d)
        looked = F.scaled_dot_product_attention(q, k, v, near[:, n])
        looked = looked.transpose(1, 2).reshape(M, B * T, -1)
        x = norm(x + looked @ at[f"{n}.out"], 2 * n + 1)
        inner = F.gelu(torch.baddbmm(at[f"{n}.up_bias"], x, at[f"{n}.up"]))
        x = norm(x + inner @ at[f"{n}.down"], 2 * n + 2)
    return x


def logits(at: Parameters, x: Tensor) -> Tensor:
    """Vectors (M, N, D) -> logits of words (M, N, WORDS + 1), by the tied embedding matrix."""
    y = F.layer_norm(F.gelu(x @ at["outputs"]), x.shape[-1:])
    y = torch.addcmul(at["shift"][:, -1], y, at["gain"][:, -1])
    return torch.baddbmm(at["bias"], y, at["embedding"].mT)


def masked_loss(at: Parameters, words: Tensor, way: Masking, draw: torch.Generator) -> Tensor:
    """The mean loss of each model at the positions it is asked for (M,); words (M, B, T)."""
    read, asked = corrupt(words, way, draw)
    return cross_entropy(logits(at, hidden(at, read)), words, asked)


# --------------------------------------------------------------------------- experiment


def _best(values: Tensor, lrs: Sequence[float]) -> int:
    """Of values by model (lrs seeds,), the learning rate with the largest mean."""
    return int(values.view(len(lrs), SEEDS).mean(1).argmax())


def _taken(at: Parameters, which: int) -> Parameters:
    """The models of one learning rate."""
    rows = slice(which * SEEDS, (which + 1) * SEEDS)
    return {name: p.detach()[rows].clone() for name, p in at.items()}


def pretrain(way: Masking, language: Language, steps: int) -> tuple[Parameters, Tensor, Tensor]:
    """All models of a contestant, their own loss on validation text (M,), and on [MASK] alone."""
    torch.manual_seed(1)
    at, draw = fresh(), torch.Generator().manual_seed(2)
    chance = torch.Generator().manual_seed(3)

    def loss(at: Parameters, step: int) -> Tensor:
        words = repeated(language.sentences(BATCH, draw)[0], len(LRS))
        return masked_loss(at, words, way, chance)

    for _ in train(at, loss, steps, LRS, warmup=WARMUP):
        pass
    words = repeated(language.sentences(300, torch.Generator().manual_seed(4))[0], len(LRS))
    with torch.no_grad():
        own, same = (
            masked_loss(at, words, each, torch.Generator().manual_seed(5))
            for each in (way, Masking((1.0, 0.0, 0.0)))
        )
    return at, own, same


def tune(
    at: Parameters, language: Language, stage: str, labelled: int = LABELLED
) -> tuple[Tensor, Tensor]:
    """Learn the classes from labelled sentences, beginning with five models, one for each seed.

    Returns:
        Accuracies on validation and on test sentences, both (lrs seeds,).
    """
    lrs = TUNE_LRS[stage]
    draw = torch.Generator().manual_seed(11)
    parts = [language.sentences(count, draw) for count in (labelled, 200, 1000)]
    words, classes = ([repeated(part[n], len(lrs)) for part in parts] for n in (0, 1))
    body = {n: repeated(p, len(lrs)) for n, p in at.items() if n not in ("outputs", "bias")}
    head = {"head": torch.zeros(len(lrs) * SEEDS, D_MODEL, CLASSES)}
    head["head_bias"] = torch.zeros(len(lrs) * SEEDS, 1, CLASSES)
    x = hidden(body, words[0]) if stage == "frozen" else None
    now = head if stage == "frozen" else body | head

    def loss(now: Parameters, step: int) -> Tensor:
        vectors = hidden(now, words[0]) if x is None else x
        return cross_entropy(torch.baddbmm(now["head_bias"], vectors, now["head"]), classes[0])

    for _ in train(now, loss, TUNE_STEPS, lrs, warmup=20):
        pass
    scores = []
    with torch.no_grad():
        for read, wanted in zip(words[1:], classes[1:], strict=True):
            vectors = hidden(body, read)
            found = torch.baddbmm(now["head_bias"], vectors, now["head"]).argmax(-1)
            scores.append((found == wanted.flatten(1)).float().mean(1))
    return scores[0], scores[1]


@torch.no_grad()
def unmasked(at: Parameters, language: Language) -> Tensor:
    """Share of words that each model's head repeats in text without any [MASK] (seeds,)."""
    words, _ = language.sentences(300, torch.Generator().manual_seed(6))
    found = logits(at, hidden(at, words))[..., :WORDS].argmax(-1)
    return (found == words.flatten(1)).float().mean(1)


def masking(part: str = "", steps: int = STEPS) -> list[Row]:
    """Rows of contestant, stage, learning rate, seed, validation and test; written as they come."""
    language, found = Language(), []
    for name, way in ({NONE: None} | CONTESTANTS).items():
        if part not in name:
            continue
        began, rows = time.process_time(), []
        first: Row = {"contestant": name}
        if way is None:
            torch.manual_seed(1)
            at = fresh(SEEDS)
        else:
            every, own, same = pretrain(way, language, steps)
            best = _best(-own, LRS)
            at = _taken(every, best)
            rows += model_rows(
                first | {"stage": "pre-training"}, LRS, {"validation": -own, "test": same}
            )
            again = unmasked(at, language)
            rows += model_rows(
                first | {"stage": "unmasked"}, LRS[best : best + 1],
                {"validation": again, "test": again},
            )  # fmt: skip
        for stage, lrs in TUNE_LRS.items():
            validation, test = tune(at, language, stage)
            rows += model_rows(
                first | {"stage": stage}, lrs, {"validation": validation, "test": test}
            )
        write(rows)
        print(f"{name}: {time.process_time() - began:.0f} s", flush=True)
        found += rows
    return found


# --------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Found:
    """What a contestant reached at a stage: the chosen learning rate, and a number for each seed.

    `test` is the accuracy on labelled test sentences, after pre-training the loss at [MASK].
    """

    lr: float
    test: Tensor

    @property
    def result(self) -> tuple[float, float]:
        """Mean and standard deviation over the seeds."""
        return self.test.mean().item(), self.test.std().item()


def read() -> dict[tuple[str, str], Found]:
    """The stored results by contestant and stage."""
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in read_rows(FILE):
        groups.setdefault((row["contestant"], row["stage"]), []).append(row)
    found = {}
    for key, rows in groups.items():
        lr = best_lr(rows)
        test = [float(row["test"]) for row in rows if float(row["lr"]) == lr]
        found[key] = Found(lr, torch.tensor(test))
    return found


def write(rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows to the file; contestants that they don't have are kept."""
    return replace_rows(FILE, rows, [NONE, *CONTESTANTS], "contestant")


RUNS = {"masking": masking}


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment, or a part of it, and write its file."""
    run_named(__doc__, RUNS, arguments, "those with this in their name")
    print(FILE)


if __name__ == "__main__":
    main()
