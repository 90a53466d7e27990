"""The stored experiments of the chapter on positions, and how to repeat them.

    python -m toolkit.positional_encoding.experiments extrapolation  # the latest digit
    python -m toolkit.positional_encoding.experiments window  # the same, far keys hidden
    python -m toolkit.positional_encoding.experiments offset  # the token three back, beyond 20
    python -m toolkit.positional_encoding.experiments base  # sinusoids of five bases at length 64
    python -m toolkit.positional_encoding.experiments order  # which of two tokens came first?

Each takes some ten minutes of one core and writes a file of `toolkit/measured/`, which `read`
reads. Every variant is trained with seven learning rates and five seeds (`toolkit.many_models`).
Which learning rate is best is decided on validation sequences no longer than those of training;
what is reported is measured on others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from toolkit.many_models import (
    FOLDER,
    SEEDS,
    Parameters,
    best_lr,
    embed,
    read_rows,
    run_named,
    train,
    uniform,
    write_rows,
)

LRS = (5e-4, 1.25e-3, 3e-3, 8e-3, 2e-2, 5e-2, 0.12)
MODELS = len(LRS) * SEEDS
D_MODEL, NUM_HEADS = 32, 4
HEAD_DIM = D_MODEL // NUM_HEADS
TRAINED, LONGEST = 20, 60  # longest sequence in training and in the test
BACK = 3
SYMBOLS = 8
CLIP = 8  # greater distances share Shaw's last vector
BASES = (10, 100, 1000, 10_000, 100_000)
Row = dict[str, object]
METHODS = ("none", "sinusoidal", "learned", "random start", "relative", "RoPE", "ALiBi")
WINDOWED = ("none", "sinusoidal", "RoPE")


# --------------------------------------------------------------------------- the Transformer


@dataclass(frozen=True)
class Model:
    """A tiny Transformer, for `MODELS` models at once.

    Attributes:
        positions: one of `METHODS`.
        vocab_size, outputs: number of tokens; of answers.
        num_layers: attention and feed-forward network, each behind a norm without parameters.
        causal: whether a token attends to itself and those before it only.
        base: of the sinusoids.
        longest: for which learned positions and random starts are made.
        window: a token attends to at most so many, itself included; None for all.
    """

    positions: str
    vocab_size: int
    outputs: int
    num_layers: int = 2
    causal: bool = True
    base: float = 10_000.0
    longest: int = LONGEST
    window: int | None = None

    def parameters(self) -> Parameters:
        """Fresh parameters of all models."""
        bound = 1 / math.sqrt(D_MODEL)
        made = {"embedding": torch.randn(MODELS, self.vocab_size, D_MODEL)}
        if self.positions == "learned":
            made["positions"] = torch.randn(MODELS, self.longest, D_MODEL)
        for layer in range(self.num_layers):
            made[f"{layer}.qkv"] = uniform(bound, MODELS, D_MODEL, 3 * D_MODEL)
            made[f"{layer}.out"] = uniform(bound, MODELS, D_MODEL, D_MODEL)
            made[f"{layer}.up"] = uniform(bound, MODELS, D_MODEL, 2 * D_MODEL)
            made[f"{layer}.up_bias"] = torch.zeros(MODELS, 1, 2 * D_MODEL)
            made[f"{layer}.down"] = uniform(bound / math.sqrt(2), MODELS, 2 * D_MODEL, D_MODEL)
            if self.positions == "relative":  # one vector per distance, shared by the heads
                made[f"{layer}.keys"] = torch.randn(MODELS, CLIP + 1, HEAD_DIM) * bound
                made[f"{layer}.values"] = torch.randn(MODELS, CLIP + 1, HEAD_DIM) * bound
        made["outputs"] = uniform(bound, MODELS, D_MODEL, self.outputs)
        return made

    def hidden(self, at: Parameters, ids: Tensor, starts: Tensor | None = None) -> Tensor:
        """The last vector of every token.

        Args:
            ids: (M, B, T).
            starts: the position of each sequence's first token (M, B), for "random start".
        """
        length = ids.shape[2]
        x = embed(at["embedding"], ids)  # (M, B, T, D)
        if self.positions in ("sinusoidal", "random start"):
            table = sinusoids(self.longest, self.base)
            where = torch.arange(length)
            x = x + table[where if starts is None else starts.unsqueeze(-1) + where]
        elif self.positions == "learned":
            x = x + at["positions"][:, None, :length]
        for layer in range(self.num_layers):
            x = x + self._attend(at, layer, _norm(x))
            inner = _linear(_norm(x), at[f"{layer}.up"]) + at[f"{layer}.up_bias"][:, None]
            x = x + _linear(inner.relu(), at[f"{layer}.down"])
        return _norm(x)

    def _attend(self, at: Parameters, layer: int, x: Tensor) -> Tensor:
        length = x.shape[2]
        qkv = _linear(x, at[f"{layer}.qkv"]).unflatten(-1, (3, NUM_HEADS, HEAD_DIM))
        q, k, v = (part.transpose(2, 3) for part in qkv.unbind(3))  # (M, B, H, T, d)
        if self.positions == "RoPE":
            q, k = rotate(q), rotate(k)
        scores = q @ k.mT  # (M, B, H, T, T)
        distance = torch.arange(length)[:, None] - torch.arange(length)
        clipped = distance.clamp(0, CLIP)
        if self.positions == "relative":
            by_distance = q @ at[f"{layer}.keys"].mT[:, None, None]  # (M, B, H, T, clip + 1)
            scores = scores + by_distance.gather(-1, clipped.expand_as(scores))
        scores = scores / math.sqrt(HEAD_DIM)
        if self.positions == "ALiBi":
            scores = scores - slopes()[:, None, None] * distance.abs()
        if self.causal:
            scores = scores.masked_fill(distance < 0, -math.inf)
        if self.window is not None:
            scores = scores.masked_fill(distance >= self.window, -math.inf)
        weights = scores.softmax(-1)
        z = weights @ v
        if self.positions == "relative":
            # The weight that falls on each distance: an entry up to the clip, the rest beyond
            key = torch.arange(length)[:, None] - torch.arange(CLIP)  # (T, clip)
            near = weights.gather(-1, key.clamp(min=0).expand(*weights.shape[:-1], CLIP))
            near = near * (key >= 0)
            shares = torch.cat([near, 1 - near.sum(-1, keepdim=True)], -1)
            z = z + shares @ at[f"{layer}.values"][:, None, None]
        return _linear(z.transpose(2, 3).flatten(3), at[f"{layer}.out"])


# What the order experiment compares; the question mark, or the bag's mean, gives the answer.
ORDER = {
    "bag of words": Model("none", SYMBOLS + 3, 2, num_layers=0),
    "no positions, no mask": Model("none", SYMBOLS + 3, 2, causal=False),
    "causal mask, one layer": Model("none", SYMBOLS + 3, 2, num_layers=1),
    "causal mask, two layers": Model("none", SYMBOLS + 3, 2),
    "sinusoidal, no mask": Model("sinusoidal", SYMBOLS + 3, 2, causal=False),
}


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (M, B, T, I) and weight (M, I, O) -> (M, B, T, O)."""
    return (x.flatten(1, 2) @ weight).unflatten(1, x.shape[1:3])


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def sinusoids(length: int, base: float = 10_000.0, width: int = D_MODEL) -> Tensor:
    """The sinusoidal positional encoding (length, width), sine and cosine side by side."""
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1).float()


def rotate(x: Tensor, base: float = 10_000.0) -> Tensor:
    """RoPE: neighbouring features of x (..., T, d) rotated by the position's angles."""
    table = sinusoids(x.shape[-2], base, x.shape[-1]).unflatten(-1, (-1, 2))
    sin, cos = table.unbind(-1)
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def slopes(num_heads: int = NUM_HEADS) -> Tensor:
    """ALiBi's slopes for a power of two of heads: (H,)."""
    return 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)


# --------------------------------------------------------------------------- three back, latest


def three_back(batch: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random symbols; the answer at each position is the symbol `BACK` before, -1 if none is."""
    ids = torch.randint(SYMBOLS, (MODELS, batch, length), generator=draw)
    wanted = torch.full_like(ids, -1)
    wanted[:, :, BACK:] = ids[:, :, :-BACK]
    return ids, wanted


def latest(batch: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """One symbol in four is a digit; the answer is the latest digit, -1 before the first.

    Digits are 0 to `SYMBOLS` - 1, letters `SYMBOLS` to 2 `SYMBOLS` - 1.
    """
    shape = (MODELS, batch, length)
    symbols = torch.randint(SYMBOLS, shape, generator=draw)
    digit = torch.rand(shape, generator=draw) < 0.25
    where = torch.where(digit, torch.arange(length), -1).cummax(-1).values
    wanted = symbols.gather(-1, where.clamp(min=0)).masked_fill(where < 0, -1)
    return torch.where(digit, symbols, symbols + SYMBOLS), wanted


def which_first(batch: int, length: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two named tokens among random others, then a question mark: did the first name come first?

    The names are ids 0 and 1, the others 2 to `SYMBOLS` + 1, the question mark is behind them. The
    answer, 0 or 1, is asked at the question mark only.
    """
    ids = torch.randint(2, SYMBOLS + 2, (MODELS, batch, length), generator=draw)
    ids[:, :, -1] = SYMBOLS + 2
    order = torch.rand(MODELS, batch, length - 1, generator=draw).argsort(-1)
    first, second = order[:, :, :1], order[:, :, 1:2]  # where the names stand
    ids.scatter_(-1, first, 0).scatter_(-1, second, 1)
    wanted = torch.full_like(ids, -1)
    wanted[:, :, -1:] = first < second
    return ids, wanted


Task = Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


# --------------------------------------------------------------------------- train and measure


def _logits(model: Model, at: Parameters, ids: Tensor, starts: Tensor | None = None) -> Tensor:
    x = model.hidden(at, ids, starts)
    if model.num_layers == 0:  # a bag of words: every token is given the mean of all
        x = x.mean(2, keepdim=True).expand_as(x)
    return _linear(x, at["outputs"])  # (M, B, T, answers)


def _loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy of each model (M,) where something is asked."""
    each = F.cross_entropy(
        logits.flatten(0, 2), wanted.flatten(), ignore_index=-1, reduction="none"
    )
    return each.view(MODELS, -1).sum(1) / (wanted >= 0).flatten(1).sum(1)


def _fit(
    model: Model, task: Task, length: int, checkpoints: Sequence[int], batch: int
) -> Iterator[tuple[int, Parameters]]:
    """Train all models of one variant on sequences of this length; yields at each checkpoint."""
    torch.manual_seed(1)
    at, draw = model.parameters(), torch.Generator().manual_seed(2)

    def loss(at: Parameters, step: int) -> Tensor:
        ids, wanted = task(batch, length, draw)
        starts = None
        if model.positions == "random start":
            room = model.longest - length + 1
            starts = torch.randint(room, ids.shape[:2], generator=draw)
        return _loss(_logits(model, at, ids, starts), wanted)

    for step in train(at, loss, checkpoints[-1], LRS):
        if step in checkpoints:
            yield step, at


@torch.no_grad()
def _measure(
    model: Model, at: Parameters, task: Task, length: int, count: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Log-likelihood of each model (M,), and its share of right answers by position (M, T).

    The share is nan where nothing is asked.
    """
    draw, size = torch.Generator().manual_seed(seed), 20
    right, asked = torch.zeros(MODELS, length), torch.zeros(MODELS, length)
    likelihood = torch.zeros(MODELS)
    for _ in range(count // size):
        ids, wanted = task(size, length, draw)
        logits = _logits(model, at, ids)
        likelihood -= _loss(logits, wanted) / (count // size)
        right += (logits.argmax(-1) == wanted).sum(1)
        asked += (wanted >= 0).sum(1)
    return likelihood, right / asked


def _rows(
    name: str, validation: Tensor, tests: Mapping[str, Tensor], **more: object
) -> list[dict[str, object]]:
    """A row for each of the models; the tests are its last columns."""
    return [
        {"model": name, "lr": LRS[model // SEEDS], "seed": model % SEEDS}
        | more
        | {"validation": round(validation[model].item(), 4)}
        | {column: round(share[model].item(), 3) for column, share in tests.items()}
        for model in range(MODELS)
    ]


# --------------------------------------------------------------------------- the experiments


def _beyond(task: Task, vocab_size: int, steps: int, batch: int, count: int) -> list[Row]:
    """Train up to length `TRAINED`, measure at every position up to `LONGEST`."""
    rows: list[Row] = []
    for name in METHODS:
        began = time.perf_counter()
        model = Model(name, vocab_size, SYMBOLS)
        for _, at in _fit(model, task, TRAINED, (steps,), batch):
            validation, _ = _measure(model, at, task, TRAINED, count, 10_000)
            _, test = _measure(model, at, task, LONGEST, count, 20_000)
            asked = [t for t in range(LONGEST) if not test[:, t].isnan().any()]
            rows += _rows(name, validation, {str(t): test[:, t] for t in asked})
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def extrapolation(steps: int = 1500, batch: int = 8, count: int = 400) -> list[Row]:
    """Name the latest digit: rows of method, learning rate, seed and accuracy by position."""
    return _beyond(latest, 2 * SYMBOLS, steps, batch, count)


def offset(steps: int = 1000, batch: int = 8, count: int = 400) -> list[Row]:
    """Name the symbol three back: rows of method, learning rate, seed and accuracy by position."""
    return _beyond(three_back, SYMBOLS, steps, batch, count)


def window(steps: int = 1500, batch: int = 8, count: int = 400) -> list[Row]:
    """The models of `extrapolation` again, tested with keys no further back than in training."""
    rows: list[Row] = []
    for name in WINDOWED:
        began = time.perf_counter()
        model = Model(name, 2 * SYMBOLS, SYMBOLS)
        for _, at in _fit(model, latest, TRAINED, (steps,), batch):
            validation, _ = _measure(model, at, latest, TRAINED, count, 10_000)
            near = replace(model, window=TRAINED)
            _, test = _measure(near, at, latest, LONGEST, count, 20_000)
            asked = [t for t in range(LONGEST) if not test[:, t].isnan().any()]
            rows += _rows(name, validation, {str(t): test[:, t] for t in asked})
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def base(
    checkpoints: Sequence[int] = (100, 200, 400, 800), batch: int = 4, count: int = 100
) -> list[Row]:
    """Name the symbol three back in sequences of 64, with sinusoids of several bases."""
    rows: list[Row] = []
    for number in BASES:
        began = time.perf_counter()
        model = Model("sinusoidal", SYMBOLS, SYMBOLS, base=float(number), longest=64)
        for step, at in _fit(model, three_back, 64, checkpoints, batch):
            validation, _ = _measure(model, at, three_back, 64, count, 10_000)
            _, test = _measure(model, at, three_back, 64, count, 20_000)
            rows += _rows(str(number), validation, {"share": test.nanmean(1)}, steps=step)
        print(f"{number}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def order(
    checkpoints: Sequence[int] = (200, 400, 800), batch: int = 24, count: int = 1000
) -> list[Row]:
    """Which of two tokens came first: rows of model, learning rate, seed, steps and accuracy."""
    rows: list[Row] = []
    for name, model in ORDER.items():
        began = time.perf_counter()
        for step, at in _fit(model, which_first, 11, checkpoints, batch):
            validation, _ = _measure(model, at, which_first, 11, count, 10_000)
            _, test = _measure(model, at, which_first, 11, count, 20_000)
            rows += _rows(name, validation, {"share": test[:, -1]}, steps=step)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


RUNS = {
    "extrapolation": extrapolation, "window": window, "offset": offset, "base": base,
    "order": order,
}  # fmt: skip


# --------------------------------------------------------------------------- files


def write(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write the rows of an experiment to its file."""
    return write_rows(FOLDER / f"position_{name}.csv", rows)


@dataclass(frozen=True)
class Found:
    """What one model of an experiment reached at the learning rate that validation chose.

    Attributes:
        lr: the learning rate.
        shares: right answers of each seed (seeds, x).
        x: positions, or numbers of training steps.
    """

    lr: float
    x: tuple[int, ...]
    shares: Tensor

    def between(self, low: int, high: int) -> tuple[float, float]:
        """Mean and standard deviation over the seeds of the mean share at low <= x < high."""
        inside = torch.tensor([low <= x < high for x in self.x])
        each = self.shares[:, inside].mean(1)
        return each.mean().item(), each.std().item()

    @property
    def last(self) -> tuple[float, float]:
        """Mean and standard deviation at the last x."""
        return self.between(self.x[-1], self.x[-1] + 1)


def read(name: str) -> dict[str, Found]:
    """What a stored experiment found, by model.

    The learning rate is the one with the best log-likelihood on validation sequences, after the
    last training step, mean over the seeds.
    """
    rows = read_rows(FOLDER / f"position_{name}.csv")
    found = {}
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        if "steps" in mine[0]:
            steps = list(dict.fromkeys(int(row["steps"]) for row in mine))
            lr = best_lr([row for row in mine if int(row["steps"]) == steps[-1]])
            at = [[float(r["share"]) for r in mine if (float(r["lr"]), int(r["steps"])) == (lr, s)]
                  for s in steps]  # fmt: skip
            found[model] = Found(lr, tuple(steps), torch.tensor(at).T)
        else:
            lr = best_lr(mine)
            columns = [column for column in mine[0] if column.isdigit()]
            shares = [[float(r[c]) for c in columns] for r in mine if float(r["lr"]) == lr]
            found[model] = Found(lr, tuple(map(int, columns)), torch.tensor(shares))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat an experiment and write its file."""
    print(write(*run_named(__doc__, RUNS, arguments)))


if __name__ == "__main__":
    main()
