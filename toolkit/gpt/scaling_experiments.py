"""Small GPTs that read little text often: memorising, dropout, tied and untied output matrices.

    python -m toolkit.gpt.scaling_experiments memory    # 9 minutes of one core
    python -m toolkit.gpt.scaling_experiments tying     # 4 minutes

Both train pre-norm GPTs of two layers on functions of Python's own library, in fixed-length chunks
of 64 tokens, with five or six learning rates and five seeds side by side. The learning rate is
chosen by the training loss or by the loss on the validation modules; what is reported is measured
on the test modules.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.corpora.code_corpus import SPECIAL, START
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
)
from toolkit.models import FOLDER as SHIPPED
from toolkit.pretrain import common, gpt

LRS = (2e-4, 6e-4, 2e-3, 6e-3, 2e-2, 6e-2)  # of those who memorise; some leave out an end
TYING_LRS = (1e-3, 2.5e-3, 6e-3, 1.5e-2, 4e-2)
NUM_LAYERS, NUM_HEADS, LENGTH, BATCH = 2, 4, 64, 4
WARMUP = 30
CHUNKS = {"validation": 30, "test": 60}  # of held-out text
SAMPLES, WRITTEN, TEMPERATURE = 40, 48, 0.7  # of each model, and tokens of one
MEMORY_FILE, TYING_FILE = FOLDER / "gpt_memorising.csv", FOLDER / "gpt_tying.csv"
Row = dict[str, object]

# --------------------------------------------------------------------------- model


@dataclass(frozen=True)
class Size:
    """A contestant: width, vocabulary, dropout rate, and whether the output matrix is tied."""

    d_model: int
    vocab_size: int
    dropout: float = 0.0
    tied: bool = True

    @property
    def parameters(self) -> int:
        """How many numbers one model learns."""
        return sum(p[0].numel() for p in fresh(self).values())


def fresh(size: Size, models: int = SEEDS) -> Parameters:
    """New parameters of all models; seeds have the same ones at every learning rate."""
    D, V = size.d_model, size.vocab_size
    std = 0.02 * math.sqrt(768 / D)  # GPT-2's, meant for a width of 768

    def normal(*shape: int, std: float = std) -> Tensor:
        return repeated(torch.randn(SEEDS, *shape) * std, models // SEEDS)

    made = {"embedding": normal(V, D), "positions": normal(LENGTH, D)}
    if not size.tied:
        made["head"] = normal(V, D)
    for n in range(NUM_LAYERS):
        for name, rows, columns in (
            ("qkv", D, 3 * D), ("out", D, D), ("up", D, 4 * D), ("down", 4 * D, D)
        ):  # fmt: skip
            branch = name in ("out", "down")
            made[f"{n}.{name}"] = normal(
                rows, columns, std=std / math.sqrt(2 * NUM_LAYERS) if branch else std
            )
            made[f"{n}.{name}_bias"] = torch.zeros(models, 1, columns)
    made["gain"] = torch.ones(models, 2 * NUM_LAYERS + 1, 1, D)
    made["shift"] = torch.zeros(models, 2 * NUM_LAYERS + 1, 1, D)
    return made


def logits(at: Parameters, ids: Tensor, dropout: float = 0.0) -> Tensor:
    """A pre-norm GPT for each model: ids (M, B, T) -> logits (M, B T, V)."""
    M, B, T = ids.shape
    gains, shifts = at["gain"].unbind(1), at["shift"].unbind(1)

    def norm(x: Tensor, number: int) -> Tensor:
        return torch.addcmul(shifts[number], F.layer_norm(x, x.shape[-1:]), gains[number])

    def linear(x: Tensor, name: str) -> Tensor:
        return torch.baddbmm(at[f"{name}_bias"], x, at[name])

    def drop(x: Tensor) -> Tensor:
        return F.dropout(x, dropout) if dropout else x

    x = drop((embed(at["embedding"], ids) + at["positions"][:, None, :T]).flatten(1, 2))
    for n in range(NUM_LAYERS):
        parts = linear(norm(x, 2 * n), f"{n}.qkv").view(M * B, T, 3, NUM_HEADS, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (M B, H, T, d)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + drop(linear(mixed.transpose(1, 2).reshape(M, B * T, -1), f"{n}.out"))
        inner = F.gelu(linear(norm(x, 2 * n + 1), f"{n}.up"), approximate="tanh")
        x = x + drop(linear(inner, f"{n}.down"))
    return norm(x, 2 * NUM_LAYERS) @ at.get("head", at["embedding"]).mT


# --------------------------------------------------------------------------- text


@dataclass(frozen=True)
class Text:
    """Functions as ids: one training stream for each seed, and chunks of held-out functions.

    streams: (seeds, M). held_out: by split (N, LENGTH + 1). starts: where functions of the test
    modules begin, each with the tokens that follow, (n, WRITTEN + 1).
    """

    streams: Tensor
    held_out: dict[str, Tensor]
    starts: Tensor


def text(tokens: gpt.Tokens | SmallTokens, tokens_each: int | None) -> Text:
    """The functions of the whole library, those of each seed its own.

    Args:
        tokens_each: tokens of each seed's stream; None: all functions to train on for every seed.
    """
    made = gpt.corpus(tokens)
    every = made.documents("train")
    if tokens_each is None:
        streams = torch.tensor([i for d in every for i in d]).expand(SEEDS, -1)
    else:
        rows = []
        for seed in range(SEEDS):
            own = itertools.chain.from_iterable(every[seed::SEEDS])
            rows.append(list(itertools.islice(own, tokens_each)))
        streams = torch.tensor(rows)
    held_out = {}
    for split, count in CHUNKS.items():
        stream = made.stream(split)[: count * LENGTH + 1]
        held_out[split] = stream.unfold(0, LENGTH + 1, LENGTH)
    test = made.documents("test")
    random.Random(0).shuffle(test)
    joined = [list(itertools.chain(*test[n : n + 12])) for n in range(0, 12 * SAMPLES, 12)]
    return Text(streams, held_out, torch.tensor([row[: WRITTEN + 1] for row in joined]))


class SmallTokens:
    """A byte-pair vocabulary without the ids that no function of the library has."""

    def __init__(self, size: int) -> None:
        """size: of the vocabulary before ids are left out."""
        self.tokens = gpt.Tokens.learn(
            (f.text for f in gpt.functions() if f.split == "train"), size
        )
        used = {i for f in gpt.functions() for i in self.tokens.encode(f.text)}
        self.ids = [*range(SPECIAL), *sorted(used)]
        self.number = {i: n for n, i in enumerate(self.ids)}

    def __len__(self) -> int:
        return len(self.ids)

    def encode(self, text: str) -> list[int]:
        """The ids of a text of the library."""
        return [self.number[i] for i in self.tokens.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special ones left out."""
        return self.tokens.decode(self.ids[int(i)] for i in ids)


def blocks(streams: Tensor, draw: torch.Generator) -> Tensor:
    """Chunks of each seed's stream from random positions: (seeds, BATCH, LENGTH + 1)."""
    begin = torch.randint(streams.shape[1] - LENGTH, (SEEDS, BATCH, 1), generator=draw)
    return streams[torch.arange(SEEDS)[:, None, None], begin + torch.arange(LENGTH + 1)]


@torch.no_grad()
def held_out_loss(at: Parameters, chunks: Tensor) -> Tensor:
    """The mean loss of each model (M,) on chunks (N, LENGTH + 1), in nats per token."""
    models = len(at["embedding"])
    found = []
    for some in chunks.split(20):
        ids = some.expand(models, -1, -1)
        found.append(cross_entropy(logits(at, ids[..., :-1]), ids[..., 1:]) * len(some))
    return torch.stack(found).sum(0) / len(chunks)


@torch.no_grad()
def write(at: Parameters, first: int, draw: torch.Generator) -> Tensor:
    """What each model writes after a token, at `TEMPERATURE`: (M, SAMPLES, WRITTEN)."""
    ids = torch.full((len(at["embedding"]), SAMPLES, 1), first)
    for _ in range(WRITTEN):
        said = logits(at, ids).view(*ids.shape, -1)[:, :, -1]  # (M, SAMPLES, V)
        drawn = torch.multinomial((said / TEMPERATURE).softmax(-1).flatten(0, 1), 1, generator=draw)
        ids = torch.cat([ids, drawn.view(*ids.shape[:2], 1)], -1)
    return ids[..., 1:]


def copied(row: Sequence[int], known: str) -> tuple[int, int]:
    """Where the longest run of a row that stands in a text begins and ends; ids as characters."""
    said = "".join(map(chr, row))
    first, longest = 0, 0
    for begin in range(len(said)):
        while begin + longest < len(said) and said[begin : begin + longest + 1] in known:
            first, longest = begin, longest + 1
    return first, first + longest


def mean_run(rows: Sequence[Sequence[int]], known: str) -> float:
    """Tokens of the longest copied run, mean of all rows."""
    return fmean(end - begin for begin, end in (copied(row, known) for row in rows))


# --------------------------------------------------------------------------- memorising

TOKENS_EACH = 4096  # of each seed's little text
STEPS = 1024  # 64 epochs of it
VOCABULARY = 420  # of which about 256 are used
CHECKPOINTS = (16, 32, 64, 128, 256, 512, 1024)  # 1 to 64 epochs
LITTLE, MUCH = "little", "much"
READERS = {
    f"{how} {d_model} {dropout}": (how, d_model, dropout, lrs)
    for how, d_model, dropout, lrs in (
        (LITTLE, 48, 0.0, LRS), (LITTLE, 12, 0.0, LRS[1:]), (LITTLE, 48, 0.3, LRS[:-1]),
        (MUCH, 48, 0.0, LRS[1:]),
    )
}  # fmt: skip


def reader(name: str, steps: int = STEPS) -> list[Row]:
    """Rows of one contestant: by checkpoint, learning rate and seed.

    train, validation, test: nats per token. For the learning rate with the lowest training loss
    also copied and control: tokens of the longest run that stands in the seed's own training text,
    means over what the model writes and over beginnings of test functions; and the first sample,
    with the characters at which its copied run begins and ends.
    """
    how, d_model, dropout, lrs = READERS[name]
    tokens = SmallTokens(VOCABULARY)
    given = text(tokens, TOKENS_EACH if how == LITTLE else None)
    size = Size(d_model, len(tokens), dropout)
    torch.manual_seed(1)
    at, draw = fresh(size, len(lrs) * SEEDS), torch.Generator().manual_seed(2)
    chunks = torch.Generator().manual_seed(9)
    own = repeated(torch.cat([blocks(given.streams, chunks) for _ in range(5)], 1), len(lrs))

    def loss(at: Parameters, step: int) -> Tensor:
        ids = repeated(blocks(given.streams, draw), len(lrs))
        return cross_entropy(logits(at, ids[..., :-1], dropout), ids[..., 1:])

    rows: list[Row] = []
    kept: dict[int, Parameters] = {}
    for step in train(at, loss, steps, lrs, warmup=WARMUP):
        if step not in CHECKPOINTS:
            continue
        kept[step] = {each: p.detach().clone() for each, p in at.items()}
        with torch.no_grad():
            columns = {"train": cross_entropy(logits(at, own[..., :-1]), own[..., 1:])}
        columns |= {split: held_out_loss(at, held) for split, held in given.held_out.items()}
        first: Row = {"contestant": name, "parameters": size.parameters, "step": step}
        rows += model_rows(first, lrs, columns)
    last = [row for row in rows if row["step"] == max(kept)]
    which = lrs.index(best_lr(last, "train", least=True))
    texts = ["".join(map(chr, stream.tolist())) for stream in given.streams]
    for row in rows:
        seed, step = int(str(row["seed"])), int(str(row["step"]))
        row |= dict.fromkeys(("copied", "control", "begin", "end", "sample"), "")
        if row["lr"] != lrs[which] or (how == MUCH and step < max(kept)):
            continue
        one = {each: p[which * SEEDS + seed][None] for each, p in kept[step].items()}
        written = write(one, START, torch.Generator().manual_seed(seed))[0].tolist()
        begin, end = copied(written[0], texts[seed])
        row["copied"] = round(mean_run(written, texts[seed]), 3)
        row["control"] = round(mean_run(given.starts[:, 1:].tolist(), texts[seed]), 3)
        row["begin"], row["end"] = (len(tokens.decode(written[0][:n])) for n in (begin, end))
        row["sample"] = tokens.decode(written[0])
    return rows


# --------------------------------------------------------------------------- tying

TYING_STEPS = 512
WAYS = {"tied": (24, True), "untied, same width": (24, False), "untied, same size": (16, False)}


def output_matrix(way: str, steps: int = TYING_STEPS) -> list[Row]:
    """Rows of one way of making the output matrix: learning rate, seed, validation and test."""
    d_model, tied = WAYS[way]
    lrs, tokens = TYING_LRS, gpt.Tokens.load(SHIPPED / "gpt" / common.TOKENIZER)
    given = text(tokens, None)
    size = Size(d_model, len(tokens), 0.0, tied)
    torch.manual_seed(1)
    at, draw = fresh(size, len(lrs) * SEEDS), torch.Generator().manual_seed(2)

    def loss(at: Parameters, step: int) -> Tensor:
        ids = repeated(blocks(given.streams, draw), len(lrs))
        return cross_entropy(logits(at, ids[..., :-1]), ids[..., 1:])

    for _ in train(at, loss, steps, lrs, warmup=WARMUP):
        pass
    columns = {split: held_out_loss(at, chunks) for split, chunks in given.held_out.items()}
    return model_rows({"contestant": way, "parameters": size.parameters}, lrs, columns)


# --------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Found:
    """A contestant at its checkpoints, at one learning rate.

    train, validation, test: (steps, seeds), nats per token. copied, control: (steps, seeds), NaN
    where nothing was written. samples: by step and seed the first text that was written, and where
    its copied run begins and ends.
    """

    lr: float
    parameters: int
    steps: list[int]
    train: Tensor
    validation: Tensor
    test: Tensor
    copied: Tensor
    control: Tensor
    samples: dict[tuple[int, int], tuple[str, int, int]]


@dataclass(frozen=True)
class Outcome:
    """A way of making the output matrix, at the learning rate chosen on validation.

    test: (seeds,), nats per token.
    """

    lr: float
    parameters: int
    test: Tensor


def read(name: str, chosen: str = "train") -> Found:
    """The stored results of a contestant of `READERS`.

    Args:
        chosen: "train", the learning rate with the lowest training loss at the end; or
            "validation", that with the lowest validation loss at any checkpoint.
    """
    rows = [row for row in read_rows(MEMORY_FILE) if row["contestant"] == name]
    steps = sorted({int(row["step"]) for row in rows})
    lowest = {}
    for step in steps:
        at = [row for row in rows if int(row["step"]) == step]
        for lr in {float(row["lr"]) for row in rows}:
            values = [float(row[chosen]) for row in at if float(row["lr"]) == lr]
            lowest[step, lr] = fmean(values)
    if chosen == "train":
        lowest = {key: value for key, value in lowest.items() if key[0] == steps[-1]}
    best = min(lowest, key=lambda key: lowest[key])[1]
    rows = [row for row in rows if float(row["lr"]) == best]

    def table(column: str) -> Tensor:
        at = {(int(row["step"]), int(row["seed"])): row[column] for row in rows}
        return torch.tensor(
            [[float(at[step, seed] or "nan") for seed in range(SEEDS)] for step in steps]
        )

    samples = {
        (int(row["step"]), int(row["seed"])): (row["sample"], int(row["begin"]), int(row["end"]))
        for row in rows
        if row["sample"]
    }
    columns = [table(name) for name in ("train", "validation", "test", "copied", "control")]
    return Found(best, int(rows[0]["parameters"]), steps, *columns, samples)


def read_tying() -> dict[str, Outcome]:
    """The stored results by the way of making the output matrix."""
    found = {}
    for way in WAYS:
        rows = [row for row in read_rows(TYING_FILE) if row["contestant"] == way]
        lr = best_lr(rows, least=True)
        test = [float(row["test"]) for row in rows if float(row["lr"]) == lr]
        found[way] = Outcome(lr, int(rows[0]["parameters"]), torch.tensor(test))
    return found


RUNS = {"memory": (reader, READERS, MEMORY_FILE), "tying": (output_matrix, WAYS, TYING_FILE)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat an experiment, or a part of it, and write its file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("part", nargs="?", default="", help="contestants that begin with this")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    measure, contestants, file = RUNS[given.name]
    for name in contestants:
        if name.startswith(given.part):
            began = time.process_time()
            replace_rows(file, measure(name), list(contestants), "contestant")
            print(f"{name}: {time.process_time() - began:.0f} s", flush=True)
    print(file)


if __name__ == "__main__":
    main()
