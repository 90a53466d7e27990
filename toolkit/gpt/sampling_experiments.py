"""Stored experiment of the page on sampling: what each setting does to compiling and to copying.

    python -m toolkit.gpt.sampling_experiments sampling      # everything, about 7 minutes of a core
    python -m toolkit.gpt.sampling_experiments sampling gpt  # the shipped model's part

The book's GPT continues the first lines of 200 functions from modules that it never saw, with each
setting and five seeds of the draws. The same is done with five small GPTs, trained from five seeds
(initialisation and batches) with the learning rate of the shipped one: they say whether a
difference belongs to the setting or to one training. Nothing was chosen on these functions.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit.corpora.code_corpus import END, Corpus, Function
from toolkit.gpt import measures as gpt_measures
from toolkit.gpt.measures import Sample
from toolkit.many_models import FOLDER, SEEDS, read_rows, replace_rows
from toolkit.models import load
from toolkit.pretrain import gpt

FILE = FOLDER / "gpt_sampling.csv"
COUNT = 200  # texts for each setting and seed
SHIPPED, SMALL, REAL = "gpt", "gpt-small", "held-out functions"
SETTINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1": {},
    "temperature 1.3": {"temperature": 1.3},
    "top-k 10": {"top_k": 10},
    "top-p 0.6": {"top_p": 0.6},
    "top-p 0.9": {"top_p": 0.9},
}
STEPS, BATCH, WARMUP, LR = 500, 12, 200, 4e-3  # of the small models
Row = dict[str, object]

# --------------------------------------------------------------------------- measures


def written(sample: Sample) -> list[int]:
    """The ids that the model wrote, without the prompt."""
    return sample.ids[len(sample.ids) - sample.tokens :]


def loops(ids: Sequence[int], longest: int = 20, times: int = 3) -> bool:
    """Whether a text ends in the same piece of at most `longest` tokens, `times` times in a row."""
    return any(
        len(ids) >= times * n and len({tuple(ids[-n * (i + 1) :][:n]) for i in range(times)}) == 1
        for n in range(1, longest + 1)
    )


def copied_runs(texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]]) -> list[int]:
    """Tokens of the longest run of each text that stands in a source.

    Runs of one, two, … tokens are compared by their hashes, until none occurs any more.
    """
    ours = np.array([i + 1 for text in texts for i in (*text, -1)], dtype=np.uint64)
    theirs = np.array([i + 1 for source in sources for i in (*source, -1)], dtype=np.uint64)
    owner = np.repeat(np.arange(len(texts)), [len(text) + 1 for text in texts])
    longest = np.zeros(len(texts), dtype=np.int64)
    base = np.uint64(0x9E3779B97F4A7C15)
    hashes = {
        side: np.zeros(len(side_ids), np.uint64) for side, side_ids in enumerate((ours, theirs))
    }
    gone = {side: np.zeros(len(h), bool) for side, h in hashes.items()}  # runs that meet an end
    for length in range(1, max(map(len, texts), default=0) + 1):
        for side, ids in enumerate((ours, theirs)):
            following = np.concatenate([ids[length - 1 :], np.zeros(length - 1, np.uint64)])
            gone[side] |= following == 0
            hashes[side] = hashes[side] * base + following * np.uint64(0x2545F4914F6CDD1D)
        known = np.sort(hashes[1][~gone[1]])
        if not len(known):
            break
        near = np.searchsorted(known, hashes[0]).clip(max=len(known) - 1)
        found = ~gone[0] & (known[near] == hashes[0])
        if not found.any():
            break
        longest[owner[found]] = length
    return longest.tolist()


def verdicts(
    groups: Sequence[Sequence[Sample]], sources: Sequence[Sequence[int]], known: set[str]
) -> list[Row]:
    """What is measured of the texts of each setting; shares are from 0 to 1.

    Args:
        sources: the training text, to look for copies in; empty not to look.
        known: the functions of the training text.

    Returns:
        compiles: share that Python would take. finished: share that reached END. loops: share that
        ends in a loop. different: number of different continuations. whole: share that is a
        training function from its first line to the last. copied: tokens of the longest run that
        stands in the training text, mean of all texts, and copied_most, the longest of all.
        length: tokens written, mean.
    """
    bodies = [[written(sample) for sample in samples] for samples in groups]
    runs = iter(copied_runs([body for group in bodies for body in group], sources))
    mean, found = statistics.fmean, []
    for samples, own in zip(groups, bodies, strict=True):
        copied = [next(runs) for _ in own]
        circling = [not s.finished and loops(b) for s, b in zip(samples, own, strict=True)]
        row: Row = {
            "count": len(samples),
            "compiles": mean(gpt_measures.compiles(s.text) for s in samples),
            "finished": mean(s.finished for s in samples),
            "loops": mean(circling),
            "different": len(set(map(tuple, own))),
            "whole": mean(s.text in known for s in samples),
            "copied": round(mean(copied), 3) if sources else "",
            "copied_most": max(copied) if sources else "",
            "length": round(mean(s.tokens for s in samples), 3),
        }
        found.append(row)
    return found


# --------------------------------------------------------------------------- the small models


def blocks(made: Corpus, draw: torch.Generator) -> Iterator[Tensor]:
    """Batches (B, T + 1), half of which begin with a function and half inside a longer one."""
    documents = made.documents("train")
    stream = torch.tensor([i for document in documents for i in document])  # (M,)
    lengths = torch.tensor([len(document) for document in documents])
    starts = lengths.cumsum(0) - lengths
    starts = starts[starts < len(stream) - gpt.LENGTH]
    inside = torch.tensor(
        [i for f in gpt.long_functions() for i in (*made.tokens.encode(f.text), END)]
    )
    offsets = torch.arange(gpt.LENGTH + 1)
    half = BATCH // 2
    while True:
        chosen = torch.randint(len(starts), (BATCH - half, 1), generator=draw)
        position = torch.randint(len(inside) - gpt.LENGTH, (half, 1), generator=draw)
        yield torch.cat([stream[starts[chosen] + offsets], inside[position + offsets]])


def small(module: Any, made: Corpus, seed: int, steps: int = STEPS) -> nn.Module:
    """A small GPT trained from a seed, as the shipped one: warm-up and cosine decay, AdamW."""
    config = {"vocab_size": len(made.tokens), "max_length": gpt.LENGTH, "dropout": 0.0}
    model = gpt_measures.start(gpt.make(module, config | gpt.SIZES["cpu"][SMALL]), module, seed)
    optimiser = torch.optim.AdamW(module.decay_groups(model, 0.1), lr=LR, betas=(0.9, 0.95))
    batches = blocks(made, torch.Generator().manual_seed(seed))
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = module.cosine_lr(step + 1, LR, min(WARMUP, steps // 10), steps)
        block = next(batches)
        loss = F.cross_entropy(model(block[:, :-1]).flatten(0, 1), block[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


# --------------------------------------------------------------------------- the experiment


def held_out(made: Corpus, count: int = COUNT) -> list[Function]:
    """Functions of the test modules, all with different first lines."""
    return list({f.header: f for f in reversed(made.of("test"))}.values())[::-1][:count]


def as_sample(function: Function, encode: Callable[[str], list[int]]) -> Sample:
    """A function as if a model had written its body after its first line."""
    ids, first = encode(function.text), encode(function.header)
    return Sample(function.text, function.header, ids, True, len(ids) - len(first))


def sampling(
    part: str = "", count: int = COUNT, steps: int = STEPS, seeds: int = SEEDS
) -> Iterator[list[Row]]:
    """Write with all settings and judge: the shipped model, then each of the small ones.

    What the small ones copy is not looked for.

    Args:
        part: one of `SHIPPED` and `SMALL`, if only that is wanted.
    """
    began = time.process_time()
    shipped = load("gpt")
    made = gpt.corpus(shipped.tokenizer)
    functions = held_out(made, count)
    prompts = [f.header for f in functions]
    encode = made.tokens.encode
    sources = [encode(f.text) for f in (*made.of("train"), *gpt.long_functions())]
    known = {f.text for f in made.of("train")}
    blank: Row = dict.fromkeys(("model", "training_seed", "bits_per_byte", "setting", "seed"), "")

    def written_by(writer: nn.Module, draws: Sequence[int], **about: object) -> list[Row]:
        abouts, texts = [], []
        for setting, values in SETTINGS.items():
            for seed in draws if setting != "greedy" else draws[:1]:
                abouts.append(blank | about | {"setting": setting, "seed": seed})
                more: dict[str, Any] = values | {"prompts": prompts, "seed": 1000 * seed}
                texts.append(gpt_measures.sample(writer, made, shipped.module, **more))
            print(f"{about}, {setting}: {time.process_time() - began:.0f} s", flush=True)
        judged = verdicts(texts, sources if about["model"] == SHIPPED else [], known)
        return [one | found for one, found in zip(abouts, judged, strict=True)]

    if part in ("", SHIPPED):
        (real,) = verdicts([[as_sample(f, encode) for f in functions]], sources, known)
        yield [blank | {"model": REAL} | real]
        yield written_by(shipped.model, range(seeds), model=SHIPPED)
    rows = []
    for seed in range(seeds if part in ("", SMALL) else 0):
        trained = small(shipped.module, made, seed, steps)
        validation = [f.text for f in made.of("validation")][:100]
        bits = round(gpt.bits_per_byte(trained, validation, made.tokens), 4)
        rows += written_by(trained, [0], model=SMALL, training_seed=seed, bits_per_byte=bits)
        yield rows


def read() -> list[dict[str, str]]:
    """The stored rows: one for each model, setting and seed."""
    return read_rows(FILE)


def result(
    rows: Sequence[Mapping[str, str]], model: str, setting: str, column: str = "compiles"
) -> Tensor:
    """A column of a setting: a number for each seed (S,), of the draws or of the training."""
    found = [float(r[column]) for r in rows if r["model"] == model and r["setting"] == setting]
    return torch.tensor(found or [math.nan])


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=["sampling"])
    parser.add_argument("part", nargs="?", default="", choices=["", SHIPPED, SMALL])
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for rows in sampling(given.part):
        replace_rows(FILE, rows, [REAL, SHIPPED, SMALL], "model")
    print(FILE)


if __name__ == "__main__":
    main()
