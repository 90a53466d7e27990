"""Stored experiment of the page on prompting: what does a prompt teach, what was known before?

    python -m toolkit.gpt.prompting_experiments          # everything, about 6 minutes of a core
    python -m toolkit.gpt.prompting_experiments 2048     # with so many mappings in training

In a made language every row has a mapping from letters to digits, and shows it in pairs. Small
GPTs are trained on rows whose mappings come from 1, 4, …, 2048 different ones, each GPT with the
same steps and tokens: six learning rates, five seeds, and for each seed mappings, rows and an
initialisation of its own. The learning rate with the smallest loss on new rows of the *training*
mappings is taken. Nothing is chosen on the mappings that were never seen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
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
    train,
    write_rows,
)

LRS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
MODELS = len(LRS) * SEEDS
LETTERS, DIGITS, PAIRS = 4, 8, 9
WORDS, LENGTH = LETTERS + DIGITS, 2 * PAIRS  # ids: the letters, then the digits
COUNTS = (1, 4, 16, 64, 256, 2048)  # mappings in training
EXAMPLES = (0, 1, 2, 4, 8)
CONDITIONS = ("seen", "new", "shuffled", "renamed", "as before")
D_MODEL, NUM_HEADS, NUM_LAYERS, D_FF = 32, 2, 2, 64
STEPS, BATCH, WARMUP = 1000, 16, 50
TESTS = 2000
FILE = FOLDER / "gpt_prompting.csv"
MAPS = FOLDER / "gpt_prompting_maps.csv"
PROMPT = ((1, 5), (3, 2), (0, 7), (2, 4), (0, None))  # letters and digits; the last is asked for
Row = dict[str, object]

# --------------------------------------------------------------------------- language


class Language:
    """All mappings in an order of its own for each seed; the first ones are for training.

    order: (seeds, all) numbers of mappings. Of `count` training mappings it takes the first; those
    of the second half are never trained on.
    """

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(7)
        every = [torch.randperm(DIGITS**LETTERS, generator=draw) for _ in range(SEEDS)]
        self.order = torch.stack(every)

    def mappings(self, rows: int, known: int | None, draw: torch.Generator) -> Tensor:
        """A digit for every letter (seeds, rows, LETTERS): of the training, or None: never seen."""
        half = self.order.shape[1] // 2
        begin, count = (half, half) if known is None else (0, known)
        which = begin + torch.randint(count, (SEEDS, rows), generator=draw)
        number = self.order.gather(1, which)  # (seeds, rows)
        return number[..., None] // DIGITS ** torch.arange(LETTERS) % DIGITS


def letters(rows: int, draw: torch.Generator) -> Tensor:
    """The letters of the pairs (seeds, rows, PAIRS), each drawn evenly."""
    return torch.randint(LETTERS, (SEEDS, rows, PAIRS), generator=draw)


def paired(shown: Tensor, digits: Tensor) -> Tensor:
    """Letters and digits, both (seeds, rows, PAIRS), as ids (seeds, rows, LENGTH)."""
    return torch.stack([shown, LETTERS + digits], -1).flatten(2)


def ideal(examples: int) -> float:
    """How often a reader is right who knows every pair that was shown, and else guesses evenly."""
    return 1 - (1 - 1 / LETTERS) ** examples * (1 - 1 / DIGITS)


# --------------------------------------------------------------------------- model


def fresh(models: int = MODELS) -> Parameters:
    """New parameters of all models; seeds have the same ones at every learning rate."""

    def normal(*shape: int) -> Tensor:
        return repeated(torch.randn(SEEDS, *shape) * shape[-2] ** -0.5, models // SEEDS)

    made = {
        "embedding": normal(WORDS, D_MODEL) * WORDS**0.5 * 0.2,
        "positions": normal(LENGTH, D_MODEL) * LENGTH**0.5 * 0.2,
        "gain": torch.ones(models, 2 * NUM_LAYERS + 1, 1, D_MODEL),
    }
    for n in range(NUM_LAYERS):
        made |= {f"{n}.qkv": normal(D_MODEL, 3 * D_MODEL), f"{n}.up": normal(D_MODEL, D_FF)}
        small = (2 * NUM_LAYERS) ** -0.5
        made |= {f"{n}.out": normal(D_MODEL, D_MODEL) * small}
        made |= {f"{n}.down": normal(D_FF, D_MODEL) * small}
    return made


def logits(at: Parameters, ids: Tensor, weights: list[Tensor] | None = None) -> Tensor:
    """ids (M, B, T) -> logits (M, B, T, WORDS), by a pre-norm GPT with a tied embedding.

    Args:
        weights: a list to which each layer's attention weights (M, B, H, T, T) are added.
    """
    M, B, T = ids.shape
    gains = at["gain"].unbind(1)

    def norm(x: Tensor, number: int) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * gains[number]

    x = (embed(at["embedding"], ids) + at["positions"][:, None, :T]).flatten(1, 2)  # (M, B T, D)
    for n in range(NUM_LAYERS):
        parts = norm(x, 2 * n) @ at[f"{n}.qkv"]
        q, k, v = parts.view(M * B, T, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (M B, H, T, d)
        if weights is not None:
            later = torch.ones(T, T, dtype=torch.bool).triu(1)
            scores = q @ k.mT / q.shape[-1] ** 0.5
            weights.append(scores.masked_fill(later, -torch.inf).softmax(-1).unflatten(0, (M, B)))
        x = x + mixed.transpose(1, 2).reshape(M, B * T, -1) @ at[f"{n}.out"]
        x = x + F.gelu(norm(x, 2 * n + 1) @ at[f"{n}.up"]) @ at[f"{n}.down"]
    return (norm(x, 2 * NUM_LAYERS) @ at["embedding"].mT).view(M, B, T, WORDS)


def row_loss(at: Parameters, ids: Tensor) -> Tensor:
    """The mean loss of each model (M,) at the digits of rows (M, B, LENGTH)."""
    return cross_entropy(logits(at, ids)[:, :, 0::2], ids[:, :, 1::2])


# --------------------------------------------------------------------------- experiment


def pretrain(count: int, language: Language, steps: int) -> tuple[Parameters, Tensor]:
    """All models with `count` mappings in training, and their loss on new rows of these (M,)."""
    torch.manual_seed(1)
    at, draw = fresh(), torch.Generator().manual_seed(2)

    def rows(size: int, draw: torch.Generator) -> Tensor:
        shown = letters(size, draw)
        mapping = language.mappings(size, count, draw)
        return repeated(paired(shown, mapping.gather(2, shown)), len(LRS))

    for _ in train(at, lambda at, step: row_loss(at, rows(BATCH, draw)), steps, LRS, warmup=WARMUP):
        pass
    with torch.no_grad():
        return at, row_loss(at, rows(500, torch.Generator().manual_seed(4)))


@torch.no_grad()
def answers(at: Parameters, ids: Tensor) -> Tensor:
    """The most probable digit at every letter of rows (seeds, B, LENGTH): (seeds, B, PAIRS)."""
    return logits(at, ids)[:, :, 0::2, LETTERS:].argmax(-1)


def tests(at: Parameters, count: int, language: Language) -> dict[str, Tensor]:
    """Shares right of five models, by condition: (seeds, PAIRS), by the number of examples.

    "… shown" and "… not shown" have only the prompts whose last letter is, or is not, among the
    examples; NaN where there is none.
    """
    draw = torch.Generator().manual_seed(11)
    shown = letters(TESTS, draw)
    same = (shown[..., None, :] == shown[..., None]).tril(-1).any(-1)  # (seeds, B, PAIRS)
    found: dict[str, Tensor] = {}

    def note(name: str, right: Tensor) -> None:
        found[name] = right.float().mean(1)
        for part, which in (("shown", same), ("not shown", ~same)):
            found[f"{name}, {part}"] = (right & which).sum(1) / which.sum(1)

    for name, known in (("seen", count), ("new", None)):
        digits = language.mappings(TESTS, known, draw).gather(2, shown)
        note(name, answers(at, paired(shown, digits)) == digits)
    digits = language.mappings(TESTS, count, draw).gather(2, shown)
    # Each example with a digit drawn for it alone, so that the pairs say nothing
    drawn = torch.randint(DIGITS, digits.shape, generator=draw)
    note("shuffled", answers(at, paired(shown, drawn)) == digits)
    # The same mapping with other digits: right is what the prompt says
    further = torch.randint(1, DIGITS, (SEEDS, TESTS, 1), generator=draw)
    renamed = (digits + further) % DIGITS
    said = answers(at, paired(shown, renamed))
    note("renamed", said == renamed)
    note("as before", said == digits)
    return found


@torch.no_grad()
def attention(at: Parameters, language: Language, examples: int = 4) -> dict[str, Tensor]:
    """Shares of attention (seeds,) of every layer and head, over prompts with new mappings.

    "answer": from the last letter, which the examples have, to the digits after the same letter.
    "pair": from a digit to the letter before it. "all alike" and "digits alike": what "answer" is
    if all positions, or all digits, have the same share.
    """
    draw = torch.Generator().manual_seed(12)
    shown = letters(TESTS, draw)
    digits = language.mappings(TESTS, None, draw).gather(2, shown)
    ids = paired(shown, digits)[:, :, : 2 * examples + 1]  # (seeds, B, T)
    weights: list[Tensor] = []
    logits(at, ids, weights)
    same = F.pad(ids[..., :-1] == ids[..., -1:], (1, 0)).float()  # (seeds, B, T), the digits
    counted = same.sum(2) > 0
    place = torch.arange(1, 2 * examples, 2)

    def mean(each: Tensor) -> Tensor:
        return (each * counted).sum(1) / counted.sum(1)

    found = {"all alike": mean(same.mean(2)), "digits alike": mean(same.sum(2) / examples)}
    for layer, each in enumerate(weights):
        for head in range(NUM_HEADS):
            found[f"answer, layer {layer + 1}, head {head + 1}"] = mean(
                (each[:, :, head, -1] * same).sum(2)
            )
            found[f"pair, layer {layer + 1}, head {head + 1}"] = mean(
                each[:, :, head, place, place - 1].mean(2)
            )
    return found


@torch.no_grad()
def maps(at: Parameters) -> list[Row]:
    """The attention of the first of five models in `PROMPT`, a row for each weight."""
    flat = [i for x, d in PROMPT for i in ((x,) if d is None else (x, LETTERS + d))]
    weights: list[Tensor] = []
    logits(at, torch.tensor(flat).expand(SEEDS, 1, -1), weights)
    return [
        {"layer": layer + 1, "head": head + 1, "query": query, "key": key,
         "weight": round(each[0, 0, head, query, key].item(), 4)}
        for layer, each in enumerate(weights)
        for head in range(NUM_HEADS)
        for query in range(len(flat))
        for key in range(query + 1)
    ]  # fmt: skip


def prompting(part: str = "", steps: int = STEPS) -> list[Row]:
    """Rows of mappings, condition, examples, learning rate, seed, validation loss and share."""
    language, every = Language(), []
    for count in COUNTS:
        if part and str(count) != part:
            continue
        began = time.process_time()
        at, validation = pretrain(count, language, steps)
        rows: list[Row] = model_rows(
            {"mappings": count, "condition": "training", "examples": ""}, LRS,
            {"validation": validation, "share": torch.full((MODELS,), torch.nan)},
        )  # fmt: skip
        lr = best_lr(rows, least=True)
        best = slice(LRS.index(lr) * SEEDS, (LRS.index(lr) + 1) * SEEDS)
        taken = {name: p.detach()[best] for name, p in at.items()}
        shares = {
            (name, n): share[:, n]
            for name, share in tests(taken, count, language).items()
            for n in EXAMPLES
        }
        shares |= {(name, 4): share for name, share in attention(taken, language).items()}
        for (name, n), share in shares.items():
            if not share.isnan().any():
                first = {"mappings": count, "condition": name, "examples": n}
                rows += model_rows(first, [lr], {"validation": validation[best], "share": share})
        write(rows)
        if count == COUNTS[-1]:
            write_rows(MAPS, maps(taken))
        print(f"{count} mappings: {time.process_time() - began:.0f} s, lr {lr}", flush=True)
        every += rows
    return every


# --------------------------------------------------------------------------- files


def read() -> dict[tuple[int, str, int], Tensor]:
    """The stored shares, one a seed, by mappings in training, condition and examples."""
    found: dict[tuple[int, str, int], list[float]] = {}
    for row in read_rows(FILE):
        if row["condition"] != "training":
            key = int(row["mappings"]), row["condition"], int(row["examples"])
            found.setdefault(key, []).append(float(row["share"]))
    return {key: torch.tensor(shares) for key, shares in found.items()}


def read_maps() -> Tensor:
    """The stored attention weights in `PROMPT` (layers, heads, T, T)."""
    length = 2 * len(PROMPT) - 1
    found = torch.zeros(NUM_LAYERS, NUM_HEADS, length, length)
    for row in read_rows(MAPS):
        layer, head, query, key = (int(row[name]) for name in ("layer", "head", "query", "key"))
        found[layer - 1, head - 1, query, key] = float(row["weight"])
    return found


def names() -> list[str]:
    """The tokens of `PROMPT`."""
    return [t for x, d in PROMPT for t in (f"{'abcd'[x]} =>", *([] if d is None else [str(d)]))]


def read_training() -> dict[int, dict[float, float]]:
    """The mean validation loss by mappings in training and learning rate."""
    found: dict[int, dict[float, float]] = {}
    for row in read_rows(FILE):
        if row["condition"] == "training":
            of = found.setdefault(int(row["mappings"]), {})
            of[float(row["lr"])] = of.get(float(row["lr"]), 0) + float(row["validation"]) / SEEDS
    return found


def write(rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows to the file; numbers of mappings that they don't have are kept."""
    return replace_rows(FILE, rows, [str(count) for count in COUNTS], "mappings")


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat the experiment, or a part of it, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="", help="only so many mappings in training")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    prompting(given.part)
    print(FILE)


if __name__ == "__main__":
    main()
