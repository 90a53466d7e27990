"""The stored experiments of the pages about BERT's variants, and how to repeat them.

    python -m toolkit.bert.relatives_experiments albert      # one shared layer, or several
    python -m toolkit.bert.relatives_experiments roberta     # masks drawn once, ten times, or anew
    python -m toolkit.bert.relatives_experiments nezha       # learned or relative positions
    python -m toolkit.bert.relatives_experiments electra     # a loss on chosen tokens or on all

Each takes a few minutes of one core and writes a file of `toolkit/measured/`, which `read` reads;
a second argument runs only the variants that have it in their name. Every variant is trained with
at least five learning rates and five seeds, many small encoders side by side
(`toolkit.many_models`). Which learning rate is best is decided on validation data; what is reported
is measured on other data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

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
    uniform,
)

LRS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
Row = dict[str, object]

# --------------------------------------------------------------------------- the encoder


@dataclass(frozen=True)
class Encoder:
    """A small pre-norm encoder, for several models at once.

    Attributes:
        inputs, outputs: how many symbols it reads, and how many numbers it returns per position.
        num_layers: how often a layer is applied.
        shared: one layer is applied again and again, as in ALBERT.
        max_length: rows of the embedding matrix of positions; 0: no positions in the input, but
            relative ones on keys and values, as in NEZHA.
        models: M.
    """

    inputs: int
    outputs: int
    num_layers: int
    d_model: int = 16
    num_heads: int = 2
    d_ff: int = 32
    shared: bool = False
    max_length: int = 0
    models: int = len(LRS) * SEEDS

    def parameters(self) -> Parameters:
        """Fresh parameters of all models: matrices by Glorot's rule, embeddings of RMS 1."""
        d, layers = self.d_model, 1 if self.shared else self.num_layers

        def glorot(*shape: int) -> Tensor:
            return uniform(math.sqrt(6 / sum(shape[-2:])), self.models, *shape)

        made = {
            "embedding": torch.randn(self.models, self.inputs, d) * math.sqrt(0.5),
            "qkv": torch.cat([glorot(layers, d, d) for _ in range(3)], -1),
            "out": glorot(layers, d, d),
            "up": glorot(layers, d, self.d_ff),
            "up_bias": torch.zeros(self.models, layers, 1, self.d_ff),
            "down": glorot(layers, self.d_ff, d),
            "gain": torch.ones(self.models, 2 * layers + 1, 1, d),
            "shift": torch.zeros(self.models, 2 * layers + 1, 1, d),
            "outputs": glorot(d, self.outputs),
            "outputs_bias": torch.zeros(self.models, 1, self.outputs),
        }
        if self.max_length:
            made["positions"] = torch.randn(self.models, self.max_length, d) * math.sqrt(0.5)
        return made

    def size(self) -> int:
        """Parameters of one model."""
        return sum(p[0].numel() for p in self.parameters().values())

    def states(self, at: Parameters, ids: Tensor) -> Tensor:
        """Ids (M, B, T) -> the vectors behind the last norm (M, B, T, D)."""
        batch, length = ids.shape[1:]
        x = embed(at["embedding"], ids)
        if self.max_length:
            x = x + at["positions"][:, None, :length]
        x = x.flatten(1, 2)  # (M, B * T, D)
        codes = None if self.max_length else relative_codes(length, self.d_model // self.num_heads)

        def norm(x: Tensor, number: int) -> Tensor:
            plain = F.layer_norm(x, x.shape[-1:])
            return torch.addcmul(at["shift"][:, number], plain, at["gain"][:, number])

        for use in range(self.num_layers):
            n = 0 if self.shared else use
            x = x + self._attend(at, n, norm(x, 2 * n), batch, codes)
            inner = (norm(x, 2 * n + 1) @ at["up"][:, n] + at["up_bias"][:, n]).relu()
            x = x + inner @ at["down"][:, n]
        return norm(x, -1).unflatten(1, (batch, length))

    def logits(self, at: Parameters, ids: Tensor) -> Tensor:
        """Ids (M, B, T) -> (M, B, T, outputs)."""
        x = self.states(at, ids)
        return (x.flatten(1, 2) @ at["outputs"] + at["outputs_bias"]).unflatten(1, x.shape[1:3])

    def _attend(
        self, at: Parameters, n: int, x: Tensor, batch: int, codes: Tensor | None
    ) -> Tensor:
        parts = (x @ at["qkv"][:, n]).view(self.models, batch, -1, 3, self.num_heads,
                                           self.d_model // self.num_heads)  # fmt: skip
        q, k, v = (part.transpose(2, 3) for part in parts.unbind(3))  # (M, B, H, T, d)
        scores = q @ k.mT
        if codes is not None:  # q_i . r_ij: for each position a product of its own
            scores = scores + torch.einsum("mbhid,ijd->mbhij", q, codes)
        scores = scores / math.sqrt(q.shape[-1])
        weights = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = weights @ v
        if codes is not None:
            mixed = mixed + torch.einsum("mbhij,ijd->mbhid", weights, codes)
        return mixed.transpose(2, 3).reshape(x.shape) @ at["out"][:, n]


def relative_codes(length: int, width: int) -> Tensor:
    """Sinusoids of the distance from position i to position j: (T, T, width)."""
    positions = torch.arange(length)
    distance = (positions - positions[:, None]).clamp(-64, 64)[..., None]
    angles = distance / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], -1)


# --------------------------------------------------------------------------- languages

SYMBOLS, MASK, NOISE = 12, 12, 0.1
MASK_PROB = 0.15


def cycle_rows(models: int, count: int, length: int, draw: torch.Generator) -> Tensor:
    """Rows (M, count, T): each symbol is followed by the next of a cycle of 12, or, in one case of
    ten, by one drawn anew."""
    fresh = torch.randint(SYMBOLS, (models, count, length), generator=draw)
    restart = torch.rand(models, count, length, generator=draw) < NOISE
    rows = fresh.clone()
    for t in range(1, length):
        rows[..., t] = torch.where(restart[..., t], fresh[..., t], (rows[..., t - 1] + 1) % SYMBOLS)
    return rows


def chosen_tokens(rows: Tensor, draw: torch.Generator) -> Tensor:
    """15 percent of the tokens, as a mask like `rows`."""
    return torch.rand(rows.shape, generator=draw) < MASK_PROB


def accuracy(logits: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """Share predicted correctly by each model (M,), of the positions that count."""
    right = (logits.argmax(-1) == targets) & counts
    return right.flatten(1).sum(1) / counts.flatten(1).sum(1)


# --------------------------------------------------------------------------- ALBERT

HOPS, POINTS = 3, 8
STACKS = {
    "one layer": Encoder(POINTS, POINTS, 1, max_length=POINTS),
    "4 own layers": Encoder(POINTS, POINTS, 4, max_length=POINTS),
    "one layer, 4 times": Encoder(POINTS, POINTS, 4, shared=True, max_length=POINTS),
    "one layer, twice as wide, 4 times": Encoder(
        POINTS, POINTS, 4, 32, 4, 64, shared=True, max_length=POINTS
    ),
}


def pointers(models: int, batch: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Position i holds a number p(i) from 0 to 7; where does one arrive after three steps?"""
    p = torch.randint(POINTS, (models, batch, POINTS), generator=draw)
    target = p
    for _ in range(HOPS - 1):
        target = p.gather(-1, target)
    return p, target


def albert(part: str = "", steps: int = 800, batch: int = 16) -> list[Row]:
    """Three steps along pointers: rows of variant, parameters, learning rate, seed and accuracy."""
    rows: list[Row] = []
    for name, model in STACKS.items():
        if part not in name:
            continue
        began = time.process_time()
        torch.manual_seed(1)
        at, draw = model.parameters(), torch.Generator().manual_seed(2)

        def loss(
            at: Parameters, step: int, model: Encoder = model, draw: torch.Generator = draw
        ) -> Tensor:
            ids, wanted = pointers(model.models, batch, draw)
            return cross_entropy(model.logits(at, ids), wanted)

        checkpoints = tuple(steps * k // 8 for k in range(1, 9))
        curve = {}
        for step in train(at, loss, steps, LRS, warmup=steps // 20):
            if step in checkpoints:
                curve[f"step {step}"] = _right_hops(model, at, 20_000)
        validation = _right_hops(model, at, 10_000)
        first = {"variant": name, "parameters": model.size()}
        rows += model_rows(first, LRS, {"validation": validation} | curve)
        _report(name, rows, began)
    return rows


@torch.no_grad()
def _right_hops(model: Encoder, at: Parameters, seed: int) -> Tensor:
    ids, wanted = pointers(model.models, 250, torch.Generator().manual_seed(seed))
    return accuracy(model.logits(at, ids), wanted, torch.ones_like(ids, dtype=torch.bool))


# --------------------------------------------------------------------------- RoBERTa

ROWS, LENGTH, EPOCHS = 256, 16, 40
MASKINGS = {"1 masking": 1, "10 maskings": 10, "a new one each time": None}


def roberta(part: str = "", epochs: int = EPOCHS, batch: int = 16) -> list[Row]:
    """Forty epochs of 256 rows: loss on new rows by epoch, with masks drawn once, ten times, anew.

    Each seed has a small corpus of its own, the same for all variants and learning rates.
    """
    rows: list[Row] = []
    for name, copies in MASKINGS.items():
        if part not in name:
            continue
        began = time.process_time()
        model = Encoder(SYMBOLS + 1, SYMBOLS, 2, max_length=LENGTH)
        torch.manual_seed(1)
        at, draw = model.parameters(), torch.Generator().manual_seed(2)
        corpus = repeated(cycle_rows(SEEDS, ROWS, LENGTH, draw), len(LRS))
        store = [chosen_tokens(corpus[:SEEDS], draw) for _ in range(copies or 0)]
        each = ROWS // batch  # steps of an epoch
        order, masking = torch.arange(ROWS), torch.zeros(0)

        def loss(
            at: Parameters, step: int, model: Encoder = model, corpus: Tensor = corpus,
            store: list[Tensor] = store, draw: torch.Generator = draw, each: int = each,
        ) -> Tensor:  # fmt: skip
            nonlocal order, masking
            epoch, number = divmod(step - 1, each)
            if not number:
                order = torch.randperm(ROWS, generator=draw)
                masking = repeated(
                    store[epoch % len(store)] if store else chosen_tokens(corpus[:SEEDS], draw),
                    len(LRS),
                )
            now = order[number * batch : (number + 1) * batch]
            wanted, chosen = corpus[:, now], masking[:, now]
            return cross_entropy(model.logits(at, wanted.masked_fill(chosen, MASK)), wanted, chosen)

        for step in train(at, loss, epochs * each, LRS, warmup=2 * each):
            epoch = step // each
            if step % each == 0 and (epoch in (1, 2, 5) or epoch % 10 == 0):
                rows += model_rows(
                    {"variant": name, "epoch": epoch},
                    LRS,
                    {
                        "validation": -_masked(model, at, 10_000, cross_entropy),
                        "loss": _masked(model, at, 20_000, cross_entropy),
                    },
                )
        _report(name, rows, began)
    return rows


@torch.no_grad()
def _masked(
    model: Encoder, at: Parameters, seed: int, measure: Callable[..., Tensor],
    length: int = LENGTH, count: int = 200,
) -> Tensor:  # fmt: skip
    """Predicting masked tokens of new rows: a number for each model (M,)."""
    draw = torch.Generator().manual_seed(seed)
    rows = cycle_rows(1, count, length, draw).expand(model.models, -1, -1)
    chosen = chosen_tokens(rows[:1], draw).expand_as(rows)
    return measure(model.logits(at, rows.masked_fill(chosen, MASK)), rows, chosen)


# --------------------------------------------------------------------------- NEZHA

LENGTHS = (16, 24, 32, 48, 64)  # the first is that of training
POSITIONS = {"learned positions": LENGTHS[-1], "relative positions": 0}


def nezha(part: str = "", steps: int = 1000, batch: int = 16) -> list[Row]:
    """Masked tokens of rows of 16: accuracy by step, and afterwards on longer rows."""
    rows: list[Row] = []
    for name, max_length in POSITIONS.items():
        if part not in name:
            continue
        began = time.process_time()
        model = Encoder(SYMBOLS + 1, SYMBOLS, 2, max_length=max_length)
        torch.manual_seed(1)
        at, draw = model.parameters(), torch.Generator().manual_seed(2)

        def loss(
            at: Parameters, step: int, model: Encoder = model, draw: torch.Generator = draw
        ) -> Tensor:
            wanted = cycle_rows(model.models, batch, LENGTH, draw)
            chosen = chosen_tokens(wanted, draw)
            return cross_entropy(model.logits(at, wanted.masked_fill(chosen, MASK)), wanted, chosen)

        curve = {}
        for step in train(at, loss, steps, LRS, warmup=steps // 20):
            if step % (steps // 8) == 0:
                curve[f"step {step}"] = _masked(model, at, 20_000, accuracy)
        for length in LENGTHS:
            curve[f"length {length}"] = _masked(model, at, 20_000, accuracy, length)
        validation = _masked(model, at, 10_000, accuracy)
        rows += model_rows({"variant": name}, LRS, {"validation": validation} | curve)
        _report(name, rows, began)
    return rows


# --------------------------------------------------------------------------- ELECTRA

WHERE = ("loss on chosen tokens", "loss on all tokens")


def replaced(rows: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows with draws of a generator that is right half of the time, and what was chosen.

    It draws the original with probability 1/2, else one of the 12 symbols.
    """
    chosen = chosen_tokens(rows, draw)
    guess = torch.randint(SYMBOLS, rows.shape, generator=draw)
    wrong = chosen & (torch.rand(rows.shape, generator=draw) < 0.5)
    return torch.where(wrong, guess, rows), chosen


def electra(part: str = "", steps: int = 800, batch: int = 16) -> list[Row]:
    """Detecting replaced tokens: how well replaced ones are ranked above others, by step."""
    rows: list[Row] = []
    for name in WHERE:
        if part not in name:
            continue
        began = time.process_time()
        model = Encoder(SYMBOLS, 1, 2)
        torch.manual_seed(1)
        at, draw = model.parameters(), torch.Generator().manual_seed(2)

        def loss(
            at: Parameters, step: int, name: str = name, model: Encoder = model,
            draw: torch.Generator = draw,
        ) -> Tensor:  # fmt: skip
            original = cycle_rows(model.models, batch, LENGTH, draw)
            read, chosen = replaced(original, draw)
            counts = torch.ones_like(chosen) if name == WHERE[1] else chosen
            each = F.binary_cross_entropy_with_logits(
                model.logits(at, read).squeeze(-1), (read != original).float(), reduction="none"
            )
            return (each * counts).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)

        curve = {}
        for step in train(at, loss, steps, LRS, warmup=steps // 20):
            if step % (steps // 8) == 0:
                among = _ranked(model, at, 20_000)
                curve |= {f"chosen {step}": among[0], f"all {step}": among[1]}
        validation = _ranked(model, at, 10_000)[0]
        rows += model_rows({"variant": name}, LRS, {"validation": validation} | curve)
        _report(name, rows, began)
    return rows


@torch.no_grad()
def _ranked(model: Encoder, at: Parameters, seed: int) -> tuple[Tensor, Tensor]:
    """Share of pairs of a replaced and an original token in which the replaced one has the larger
    logit, by model (M,): among the chosen tokens, and among all."""
    draw = torch.Generator().manual_seed(seed)
    original = cycle_rows(1, 250, LENGTH, draw)
    read, chosen = replaced(original, draw)
    logits = model.logits(at, read.expand(model.models, -1, -1)).flatten(1)
    changed, chosen = (read != original).flatten(), chosen.flatten()
    found = []
    for kept in (chosen & ~changed, ~changed):
        pairs = logits[:, changed, None] - logits[:, None, kept]
        found.append(((pairs > 0).float() + 0.5 * (pairs == 0).float()).mean((1, 2)))
    return found[0], found[1]


# --------------------------------------------------------------------------- files


def _report(name: str, rows: Sequence[Row], began: float) -> None:
    """Print the last column's mean at each learning rate, and the seconds of the processor."""
    found: dict[object, list[str]] = {}
    for row in rows:
        if row["variant"] == name:
            found.setdefault(row["lr"], []).append(str(row[next(reversed(row))]))
    shown = ", ".join(f"{lr}: {fmean(map(float, v[-SEEDS:])):.3f}" for lr, v in found.items())
    print(f"{name}: {shown}; {time.process_time() - began:.0f} s", flush=True)


RUNS = {"albert": albert, "roberta": roberta, "nezha": nezha, "electra": electra}
VARIANTS = {
    "albert": tuple(STACKS),
    "roberta": tuple(MASKINGS),
    "nezha": tuple(POSITIONS),
    "electra": WHERE,
}


def write(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows of an experiment to its file; variants that they don't have are kept."""
    return replace_rows(FOLDER / f"relatives_{name}.csv", rows, VARIANTS[name])


@dataclass(frozen=True)
class Found:
    """What a variant reached at the learning rate that validation chose.

    Attributes:
        lr: that learning rate.
        tried: all learning rates.
        values: by column of the file, the test result of each seed (seeds,).
    """

    lr: float
    tried: tuple[float, ...]
    values: dict[str, Tensor]

    def result(self, column: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds."""
        return self.values[column].mean().item(), self.values[column].std().item()

    def curve(self, prefix: str) -> tuple[list[int], Tensor]:
        """Columns such as `step 100`: their numbers, and the results (seeds, columns)."""
        names = [c for c in self.values if c.startswith(prefix)]
        numbers = [int(c.removeprefix(prefix)) for c in names]
        return numbers, torch.stack([self.values[c] for c in names], 1)


def read(name: str) -> dict[str, Found]:
    """The stored experiment by variant.

    Of `roberta` the columns are epochs, and the learning rate is the one with the best epoch on
    validation data; the column `best` is the test loss after that epoch, `best epoch` its number.
    """
    stored = read_rows(FOLDER / f"relatives_{name}.csv")
    found = {}
    for variant in VARIANTS[name]:
        rows = [row for row in stored if row["variant"] == variant]
        tried = tuple(dict.fromkeys(float(row["lr"]) for row in rows))
        if name == "roberta":
            found[variant] = _by_epoch(rows, tried)
            continue
        lr = best_lr(rows)
        mine = [row for row in rows if float(row["lr"]) == lr]
        columns = [c for c in mine[0] if c not in ("variant", "lr", "seed", "validation")]
        values = {c: torch.tensor([float(row[c]) for row in mine]) for c in columns}
        found[variant] = Found(lr, tried, values)
    return found


def _by_epoch(rows: Sequence[Mapping[str, str]], tried: tuple[float, ...]) -> Found:
    means: dict[tuple[float, int], list[float]] = {}
    for row in rows:
        means.setdefault((float(row["lr"]), int(row["epoch"])), []).append(float(row["validation"]))
    lr, epoch = max(means, key=lambda key: fmean(means[key]))
    values: dict[str, Tensor] = {}
    for e in dict.fromkeys(e for _, e in means):
        mine = [r for r in rows if float(r["lr"]) == lr and int(r["epoch"]) == e]
        values[f"epoch {e}"] = torch.tensor([float(r["loss"]) for r in mine])
    values |= {"best": values[f"epoch {epoch}"], "best epoch": torch.tensor([float(epoch)])}
    return Found(lr, tried, values)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run an experiment, or a part of it, and store what it finds."""
    print(write(*run_named(__doc__, RUNS, arguments, "variants with this in their name")))


if __name__ == "__main__":
    main()
