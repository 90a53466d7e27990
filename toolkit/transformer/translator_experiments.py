"""The stored experiment on translators: four of one size, label smoothing, and numbers of heads.

    python -m toolkit.transformer.translator_experiments    # all of it: 90 minutes of one core
    python -m toolkit.transformer.translator_experiments "smoothing 0.1"

It writes `toolkit/measured/transformer_translators.csv`, which `read` reads, a row for each
training; rows that are there already are kept, so it goes on after a stop.

The task: 1,000 English sentences of one to three dates and times, with their Chinese translations.
Every translator has about 60,000 parameters and gets 2,000 batches of 32 sentences, Adam, linear
warm-up and linear decay. Its learning rate is the one with which seed 0 has the least loss on
validation sentences, of LRS and, while the best stands at an end, of one more beyond it. What is
reported are five seeds on test sentences, which decide nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.translation import BOS, EOS, PAD, Batch, Pair, collate, make_pairs
from toolkit.many_models import FOLDER, SEEDS, read_rows, write_rows
from toolkit.many_models import best_lr as best_of
from toolkit.transformer.translation_task import (
    TranslationTask,
    adam,
    matching_width,
    parameters,
    recurrent_rival,
    thirds,
)
from toolkit.translate import load_module, on_fast_path

FILE = FOLDER / "transformer_translators.csv"
KINDS = ("date", "time")
PAIRS = 1000  # to learn from
VALIDATION, TEST, LONGER = 300, 500, 200
D_MODEL, HEADS, LAYERS = 32, 4, 2  # of the Transformer
STEPS, WARMUP, BATCH = 2000, 200, 32
LRS = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
MAX_LENGTH = 100
GROUPS = ("short", "middle", "long")  # thirds of the test sentences by source length
FIXED, ATTENTION, CONVOLUTIONAL, TRANSFORMER = (
    "recurrent, fixed context", "recurrent, attention", "convolutional", "Transformer",
)  # fmt: skip
TRANSLATORS = (FIXED, ATTENTION, CONVOLUTIONAL, TRANSFORMER)
# Transformers that differ in heads or label smoothing
OTHERS = {
    "1 head": (1, 0.0), "2 heads": (2, 0.0), "8 heads": (8, 0.0),
    "smoothing 0.1": (HEADS, 0.1), "smoothing 0.3": (HEADS, 0.3),
}  # fmt: skip
VARIANTS = (*TRANSLATORS, *OTHERS)
MEASURES = ("exact", *GROUPS, "longer", "loss", "accuracy")

Ids = tuple[list[int], list[int]]  # of a sentence and its translation, without start and end


class Convolutional(nn.Module):
    """Gated convolutions on both sides, attention in each layer of the decoder.

    As in Gehring et al. (2017), section 3, in small: learned positions, keys that are the encoder's
    outputs, values to which its embeddings are added, sums scaled by sqrt(1/2). Called with source
    (B, S) and target_in (B, U) it returns logits (B, U, V).
    """

    def __init__(self, words: int, width: int, kernel: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(MAX_LENGTH, width)
        self.encoder, self.decoder = (
            nn.ModuleList(nn.Conv1d(width, 2 * width, kernel) for _ in range(LAYERS))
            for _ in range(2)
        )
        self.queries = nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
        self.output = nn.Linear(width, words)
        self.kernel = kernel

    def _embed(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.positions(torch.arange(ids.shape[1]))  # (B, T, W)

    def _convolve(self, layer: nn.Module, x: Tensor, left: int) -> Tensor:
        padded = F.pad(x.transpose(1, 2), (left, self.kernel - 1 - left))  # (B, W, T + K - 1)
        return F.glu(layer(padded), dim=1).transpose(1, 2)  # (B, T, W)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        real = source != PAD  # (B, S)
        x = embedded = self._embed(source)  # (B, S, W)
        for layer in self.encoder:
            x = x * real[:, :, None]  # padding is 0, as what lies beyond the ends
            x = (x + self._convolve(layer, x, self.kernel // 2)) * math.sqrt(0.5)  # (B, S, W)
        values = (x + embedded) * math.sqrt(0.5)  # (B, S, W)
        y = given = self._embed(target_in)  # (B, U, W)
        for layer, query in zip(self.decoder, self.queries, strict=True):
            h = self._convolve(layer, y, self.kernel - 1)  # (B, U, W): sees nothing that follows
            q = (query(h) + given) * math.sqrt(0.5)  # (B, U, W)
            found = F.scaled_dot_product_attention(q, x, values, real[:, None])  # (B, U, W)
            y = (y + (h + found) * math.sqrt(0.5)) * math.sqrt(0.5)  # (B, U, W)
        return self.output(y)  # (B, U, V)


@dataclass(frozen=True)
class Data:
    """Ids of the training pairs, of validation, test and sentences of four items."""

    words: int
    train: list[Ids]
    validation: list[Ids]
    test: list[Ids]
    groups: list[str]  # of each test sentence
    longer: list[Ids]

    @classmethod
    def make(cls) -> Data:
        """Pairs of one to three items; those of validation and test are not in the training."""
        task = TranslationTask.make(
            "en", "zh", pairs=PAIRS, test=VALIDATION + TEST, shared=True, kinds=KINDS
        )

        def ids(chosen: Iterable[Pair]) -> list[Ids]:
            return [
                (task.source.encode(p.source_tokens), task.target.encode(p.target_tokens))
                for p in chosen
            ]

        test = task.test[VALIDATION:]
        group = dict(zip(GROUPS, thirds(test).values(), strict=True))
        by_source = {pair.source: name for name, members in group.items() for pair in members}
        longer = make_pairs(LONGER, "en", "zh", length=4, kinds=KINDS, seed=4242)
        return cls(
            len(task.source), task.encoded, ids(task.test[:VALIDATION]), ids(test),
            [by_source[pair.source] for pair in test], ids(longer),
        )  # fmt: skip


def make(variant: str, words: int, transformer: ModuleType, attention: ModuleType) -> nn.Module:
    """The translator of a variant before training; all have about as many parameters."""
    heads, _ = OTHERS.get(variant, (HEADS, 0.0))
    whole = transformer.make_model(
        words, words, num_layers=LAYERS, d_model=D_MODEL, d_ff=4 * D_MODEL, num_heads=heads,
        dropout=0.0, norm_first=True, tie_embeddings=True,
    )  # fmt: skip
    if variant == TRANSFORMER or variant in OTHERS:
        return on_fast_path(transformer, whole)

    def other(width: int) -> nn.Module:
        if variant == CONVOLUTIONAL:
            return Convolutional(words, width)
        look = attention.AttentionDecoderStep(*[width] * 4) if variant == ATTENTION else None
        return recurrent_rival(words, words, width, look)

    return other(matching_width(other, parameters(whole), step=2))


def _batch(rows: Iterable[Ids]) -> Batch:
    sources, targets = zip(*rows, strict=True)
    return collate(sources, targets)


def train(
    model: nn.Module, rows: Sequence[Ids], lr: float, smoothing: float, seed: int, steps: int
) -> None:
    """Adam; this learning rate is reached after the warm-up and then decays to 2 percent of it."""
    optimiser = adam(model.parameters(), lr)
    draw = torch.Generator().manual_seed(seed)
    for step in range(1, steps + 1):
        batch = _batch(rows[i] for i in torch.randint(len(rows), (BATCH,), generator=draw))
        for group in optimiser.param_groups:
            group["lr"] = lr * min(step / WARMUP, 1 - 0.98 * step / steps)
        logits = model(batch.source, batch.target_in)  # (B, U, V)
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD,
            label_smoothing=smoothing,
        )  # fmt: skip
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


@torch.no_grad()
def per_token(model: nn.Module, rows: Sequence[Ids]) -> tuple[float, float]:
    """Given the right tokens before: mean negative log-probability (nats), share predicted."""
    batch = _batch(rows)
    log_probs = model(batch.source, batch.target_in).log_softmax(-1)  # (N, U, V)
    real = batch.target_mask  # (N, U)
    right = log_probs.gather(-1, batch.target_out[:, :, None])[:, :, 0]  # (N, U)
    hits = log_probs.argmax(-1) == batch.target_out  # (N, U)
    return -right[real].mean().item(), hits[real].float().mean().item()


@torch.no_grad()
def exact(model: nn.Module, rows: Sequence[Ids]) -> list[bool]:
    """Of each sentence, whether greedy search writes the reference."""
    batch = _batch(rows)
    ids = torch.full((len(rows), 1), BOS)  # (N, 1)
    ended = torch.zeros(len(rows), dtype=torch.bool)  # (N,)
    while ids.shape[1] <= batch.target_out.shape[1] and not ended.all():
        following = model(batch.source, ids)[:, -1].argmax(-1).masked_fill(ended, PAD)  # (N,)
        ids = torch.cat([ids, following[:, None]], 1)  # (N, U')
        ended = ended | (following == EOS)
    written = F.pad(ids[:, 1:], (0, batch.target_out.shape[1] + 1 - ids.shape[1]))  # (N, U)
    return (written == batch.target_out).all(1).tolist()


def run(
    variant: str, lr: float, seed: int, transformer: ModuleType, attention: ModuleType,
    steps: int = STEPS,
) -> dict[str, object]:  # fmt: skip
    """Train one translator and measure it: a row of the file."""
    data = _data()
    torch.manual_seed(seed)
    model = make(variant, data.words, transformer, attention).train()
    began = time.process_time()
    train(model, data.train, lr, OTHERS.get(variant, (HEADS, 0.0))[1], seed, steps)
    seconds = time.process_time() - began
    model.eval()
    right = exact(model, data.test)
    row: dict[str, object] = {"variant": variant, "lr": lr, "seed": seed}
    row["validation"] = round(per_token(model, data.validation)[0], 5)
    row["exact"] = round(mean(right), 4)
    for name in GROUPS:
        row[name] = round(mean(r for r, g in zip(right, data.groups, strict=True) if g == name), 4)
    row["longer"] = round(mean(exact(model, data.longer)), 4)
    loss, accuracy = per_token(model, data.test)
    row |= {"loss": round(loss, 5), "accuracy": round(accuracy, 5)}
    return row | {"parameters": parameters(model), "seconds": round(seconds)}


_data = cache(Data.make)
_Key = tuple[str, float, int]


def _key(row: dict[str, str]) -> _Key:
    return row["variant"], float(row["lr"]), int(row["seed"])


def _run(key: _Key) -> dict[str, object]:
    torch.set_num_threads(1)
    transformer = load_module("solutions.transformer", ("make_model",))
    attention = load_module("solutions.attention", ("AttentionDecoderStep",))
    return run(*key, transformer, attention)


def experiment(variants: Sequence[str], file: Path = FILE, work: Callable = _run) -> None:
    """First the search, then the other seeds; a training is written as soon as it is done."""
    rows = {_key(row): row for row in (read_rows(file) if file.exists() else [])}

    def order(key: _Key) -> tuple[int, float, int]:
        return VARIANTS.index(key[0]), *key[1:]

    def add(keys: Iterable[_Key], pool: ProcessPoolExecutor) -> None:
        missing = [key for key in keys if key not in rows]
        for done in as_completed([pool.submit(work, key) for key in missing]):
            row = {name: str(value) for name, value in done.result().items()}
            print(*row.values(), flush=True)
            rows[_key(row)] = row
            write_rows(file, [rows[key] for key in sorted(rows, key=order)])

    with ProcessPoolExecutor(os.cpu_count()) as pool:
        search = dict.fromkeys(variants, LRS)
        while search:
            add(((name, lr, 0) for name, lrs in search.items() for lr in lrs), pool)
            found = {name: best_lr(rows.values(), name) for name in search}
            search = {
                name: wider for name, lrs in search.items() if (wider := widened(lrs, found[name]))
            }
        found = {name: best_lr(rows.values(), name) for name in variants}
        add(((name, lr, s) for name, lr in found.items() for s in range(1, SEEDS)), pool)


def widened(lrs: tuple[float, ...], best: float) -> tuple[float, ...]:
    """One learning rate more beyond the end at which the best one stands; none if it is inside."""
    if best == lrs[0]:
        return (lrs[0] / 2, *lrs)
    return (*lrs, 2 * lrs[-1]) if best == lrs[-1] else ()


def best_lr(rows: Iterable[dict[str, str]], variant: str) -> float:
    """The learning rate with which seed 0 of a variant has the least loss on validation."""
    mine = (row for row in rows if (row["variant"], row["seed"]) == (variant, "0"))
    return best_of(list(mine), least=True)


@dataclass(frozen=True)
class Found:
    """What a variant reached with its learning rate: of each measure a value for each seed."""

    lr: float
    parameters: int
    seconds: float
    measures: dict[str, list[float]]

    def mean(self, name: str) -> float:
        """Of a measure, over the seeds."""
        return mean(self.measures[name])

    def deviation(self, name: str) -> float:
        """The standard deviation of a measure over the seeds."""
        return stdev(self.measures[name])

    def span(self, name: str) -> tuple[float, float]:
        """The least and the largest of a measure."""
        return min(self.measures[name]), max(self.measures[name])


def read(file: Path = FILE) -> dict[str, Found]:
    """By variant, what was found."""
    rows = read_rows(file)
    found = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        lr = best_lr(rows, variant)
        mine = [r for r in rows if r["variant"] == variant and float(r["lr"]) == lr]
        found[variant] = Found(
            lr, int(mine[0]["parameters"]), mean(float(r["seconds"]) for r in mine),
            {name: [float(row[name]) for row in mine] for name in MEASURES},
        )  # fmt: skip
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment, or what is missing of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help="; ".join(VARIANTS))
    given = parser.parse_args(arguments).variants
    if unknown := sorted(set(given) - set(VARIANTS)):
        parser.error(f"there is no {unknown[0]!r}; there are {'; '.join(VARIANTS)}")
    experiment(given or VARIANTS)


if __name__ == "__main__":
    main()
