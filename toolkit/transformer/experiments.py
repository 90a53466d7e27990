"""The stored experiments of the Transformer chapter, and how to repeat them.

    python -m toolkit.transformer.experiments residual          # with and without residuals
    python -m toolkit.transformer.experiments norm_order        # post-norm and pre-norm
    python -m toolkit.transformer.experiments residual "plain"  # variants with this in their name

Each takes a few minutes of one core and writes a file of `toolkit/measured/`, which `read` reads;
a part replaces its own rows. Every variant is trained with five or six learning rates and five
seeds, many models side by side (`toolkit.many_models`). All data are drawn anew in every step.
Which learning rate is best is decided on validation data; what is reported is measured on others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
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
    cross_entropy,
    embed,
    model_rows,
    read_rows,
    replace_rows,
    run_named,
    train,
    uniform,
)

LRS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MODELS = len(LRS) * SEEDS
Row = dict[str, object]

# --------------------------------------------------------------------------- residual connections

WAYS = ("plain", "plain, He", "sum only", "residual")
BLOCKS = (4, 12, 24)
WIDTH = 16


@dataclass(frozen=True)
class Stack:
    """Blocks of two layers without biases, for `MODELS` models at once.

    Attributes:
        way: one of `WAYS`. "sum only" adds the input but lets no gradient through it.
        blocks: how many.
    """

    way: str
    blocks: int

    def parameters(self) -> Parameters:
        """Fresh parameters of all models: PyTorch's initialisation, or He's for the blocks."""
        made = {
            "first": uniform(1 / math.sqrt(2), MODELS, 2, WIDTH),
            "first_bias": uniform(1 / math.sqrt(2), MODELS, 1, WIDTH),
            "last": uniform(1 / math.sqrt(WIDTH), MODELS, WIDTH, 1),
            "last_bias": uniform(1 / math.sqrt(WIDTH), MODELS, 1, 1),
        }
        shape = (self.blocks, 2, WIDTH, WIDTH)
        if self.way == "plain, He":
            made["blocks"] = torch.randn(MODELS, *shape) * math.sqrt(2 / WIDTH)
        else:
            made["blocks"] = uniform(1 / math.sqrt(WIDTH), MODELS, *shape)
        return made

    def states(self, at: Parameters, points: Tensor) -> list[Tensor]:
        """Vectors (M, B, D) before the first block and after each; points (M, B, 2)."""
        x = (points @ at["first"] + at["first_bias"]).relu()
        states = [x]
        for block in at["blocks"].unbind(1):
            w_1, w_2 = block.unbind(1)
            change = (x @ w_1).relu() @ w_2  # F(x)
            if self.way == "residual":
                change = change + x
            elif self.way == "sum only":
                change = change + x.detach()
            x = change.relu()
            states.append(x)
        return states

    def logits(self, at: Parameters, points: Tensor) -> Tensor:
        """One number per point (M, B)."""
        return (self.states(at, points)[-1] @ at["last"] + at["last_bias"]).squeeze(-1)


def spirals(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random points of a square (M, count, 2), and on which of two spiral arms they lie."""
    points = 4 * torch.rand(MODELS, count, 2, generator=draw) - 2
    angle = torch.atan2(points[..., 1], points[..., 0])
    return points, ((angle + 3 * points.norm(dim=-1)).sin() > 0).float()


def _spiral_loss(model: Stack, at: Parameters, points: Tensor, arm: Tensor) -> Tensor:
    logits = model.logits(at, points)
    return F.binary_cross_entropy_with_logits(logits, arm, reduction="none").mean(1)


def signals(way: str, blocks: int = BLOCKS[-1], points: int = 64) -> tuple[Tensor, Tensor]:
    """Fresh models: what runs through them upwards, and what comes back.

    Returns:
        Before the first block and after each: the RMS of the states, and the norm of the loss's
        gradient by them; both (M, blocks + 1).
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = Stack(way, blocks)
        at = model.parameters()
    given, arm = spirals(points, torch.Generator().manual_seed(2))
    at["blocks"].requires_grad_()
    at["first"].requires_grad_()
    states = model.states(at, given)
    logits = (states[-1] @ at["last"] + at["last_bias"]).squeeze(-1)
    loss = F.binary_cross_entropy_with_logits(logits, arm, reduction="none").mean(1).sum()
    back = torch.autograd.grad(loss, states)
    rms = torch.stack([x.detach().square().mean((1, 2)).sqrt() for x in states], 1)
    return rms, torch.stack([g.flatten(1).norm(dim=1) for g in back], 1)


STACKS = {f"{way}, {blocks} blocks": Stack(way, blocks) for way in WAYS for blocks in BLOCKS}


def residual(
    part: str = "", checkpoints: Sequence[int] = (250, 500, 1000), batch: int = 64
) -> list[Row]:
    """Two spirals: rows of way, blocks, steps, learning rate, seed and loss."""
    rows: list[Row] = []
    for name, model in STACKS.items():
        if part not in name:
            continue
        began = time.perf_counter()
        torch.manual_seed(1)
        at, draw = model.parameters(), torch.Generator().manual_seed(2)

        def loss(
            at: Parameters, step: int, model: Stack = model, draw: torch.Generator = draw
        ) -> Tensor:
            return _spiral_loss(model, at, *spirals(batch, draw))

        for step in train(at, loss, checkpoints[-1], LRS):
            if step not in checkpoints:
                continue
            with torch.no_grad():
                validation, test = (
                    _spiral_loss(model, at, *spirals(2000, torch.Generator().manual_seed(seed)))
                    for seed in (10_000, 20_000)
                )
            rows += model_rows(
                {"variant": name, "way": model.way, "blocks": model.blocks, "steps": step},
                LRS, {"validation": -validation, "loss": test},
            )  # fmt: skip
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


# --------------------------------------------------------------------------- order of the norm

ORDERS = ("post-norm", "pre-norm")
LAYERS = (2, 6, 12)
WARMUP = 80
LARGER = (0.1,)  # one more learning rate for all encoders, in a run of its own
D_MODEL, NUM_HEADS, D_FF = 16, 2, 32
SYMBOLS, LENGTH = 8, 6


@dataclass(frozen=True)
class Encoder:
    """A tiny Transformer encoder with learned positions, for several models at once.

    Attributes:
        norm_first: pre-norm, with one more norm at the end; otherwise post-norm.
        num_layers: how many.
        warmup: steps in which the learning rate rises.
        models: M.
    """

    norm_first: bool
    num_layers: int
    warmup: int
    models: int = MODELS

    def parameters(self) -> Parameters:
        """Fresh parameters of all models: matrices by Glorot's rule, embeddings of RMS 1."""

        def glorot(inputs: int, outputs: int) -> Tensor:
            return uniform(math.sqrt(6 / (inputs + outputs)), self.models, inputs, outputs)

        made = {
            "embedding": torch.randn(self.models, SYMBOLS, D_MODEL) * math.sqrt(0.5),
            "positions": torch.randn(self.models, 1, LENGTH, D_MODEL) * math.sqrt(0.5),
            "outputs": glorot(D_MODEL, SYMBOLS),
        }
        for layer in range(self.num_layers):
            made[f"{layer}.qkv"] = torch.cat([glorot(D_MODEL, D_MODEL) for _ in range(3)], -1)
            made[f"{layer}.out"] = glorot(D_MODEL, D_MODEL)
            made[f"{layer}.up"] = glorot(D_MODEL, D_FF)
            made[f"{layer}.up_bias"] = torch.zeros(self.models, 1, D_FF)
            made[f"{layer}.down"] = glorot(D_FF, D_MODEL)
        norms = 2 * self.num_layers + self.norm_first
        made["gain"] = torch.ones(self.models, norms, 1, 1, D_MODEL)
        made["shift"] = torch.zeros(self.models, norms, 1, 1, D_MODEL)
        return made

    def logits(self, at: Parameters, ids: Tensor) -> Tensor:
        """Ids (M, B, T) -> logits (M, B, T, symbols)."""
        return _linear(self.stream(at, ids)[-1], at["outputs"])

    def stream(self, at: Parameters, ids: Tensor) -> list[Tensor]:
        """What the first layer is given, what each returns, and last what the outputs are given.

        With post-norm the last two are the same. Each is (M, B, T, D).
        """
        x = embed(at["embedding"], ids) + at["positions"]
        states = [x]
        gains, shifts = at["gain"].unbind(1), at["shift"].unbind(1)

        def norm(x: Tensor, number: int) -> Tensor:
            return torch.addcmul(shifts[number], F.layer_norm(x, x.shape[-1:]), gains[number])

        for layer in range(self.num_layers):
            for number, sublayer in enumerate((_attend, _feed_forward), 2 * layer):
                if self.norm_first:
                    x = x + sublayer(at, layer, norm(x, number))
                else:
                    x = norm(x + sublayer(at, layer, x), number)
            states.append(x)
        return [*states, norm(x, -1) if self.norm_first else x]


def first_gradients(
    order: str, num_layers: int, batch: int = 16, embedding: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Fresh models: the gradient in each layer, and the size of what runs past the layers.

    Args:
        embedding: RMS of what the first layer is given.

    Returns:
        The norm of the loss's gradient by the last matrix of each layer (M, N), and the RMS of the
        residual stream before the first layer and after each (M, N + 1).
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model = Encoder(order == "pre-norm", num_layers, 0)
        at = model.parameters()
    for name in ("embedding", "positions"):
        at[name] = embedding * at[name]
    ids, wanted = to_sort(batch, torch.Generator().manual_seed(2))
    last = [at[f"{layer}.down"].requires_grad_() for layer in range(num_layers)]
    states = model.stream(at, ids)
    loss = cross_entropy(_linear(states[-1], at["outputs"]), wanted)
    gradients = torch.autograd.grad(loss.sum(), last)
    sizes = torch.stack([x.detach().square().flatten(1).mean(1).sqrt() for x in states[:-1]], 1)
    return torch.stack([g.flatten(1).norm(dim=1) for g in gradients], 1), sizes


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (M, B, T, I) and weight (M, I, O) -> (M, B, T, O)."""
    return (x.flatten(1, 2) @ weight).unflatten(1, x.shape[1:3])


def _attend(at: Parameters, layer: int, x: Tensor) -> Tensor:
    parts = _linear(x, at[f"{layer}.qkv"]).unflatten(-1, (3, NUM_HEADS, -1))
    q, k, v = (part.transpose(2, 3) for part in parts.unbind(3))  # (M, B, H, T, d)
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # (M, B, H, T, T)
    # For rows as short as these faster than `softmax`
    weights = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    return _linear((weights @ v).transpose(2, 3).flatten(3), at[f"{layer}.out"])


def _feed_forward(at: Parameters, layer: int, x: Tensor) -> Tensor:
    inner = _linear(x, at[f"{layer}.up"]) + at[f"{layer}.up_bias"][:, None]
    return _linear(inner.relu(), at[f"{layer}.down"])


def to_sort(batch: int, draw: torch.Generator, models: int = MODELS) -> tuple[Tensor, Tensor]:
    """Random symbols (M, B, T), and the same in order."""
    ids = torch.randint(SYMBOLS, (models, batch, LENGTH), generator=draw)
    return ids, ids.sort(-1).values


def _sort_loss(model: Encoder, at: Parameters, ids: Tensor, wanted: Tensor) -> Tensor:
    return cross_entropy(model.logits(at, ids), wanted)


ENCODERS = {
    f"{order}, {layers} layers, {'warm-up' if warmup else 'no warm-up'}": Encoder(
        order == "pre-norm", layers, warmup
    )
    for order in ORDERS
    for layers in LAYERS
    for warmup in (0, WARMUP)
}


def norm_order(
    part: str = "", steps: int = 400, batch: int = 8, every: int = 25,
    groups: Sequence[Sequence[float]] = (LRS, LARGER),
) -> list[Row]:  # fmt: skip
    """Sorting: rows of order, layers, warm-up, learning rate, seed, test loss, loss by step.

    The columns with numbers are the mean training loss of the `every` steps up to there.

    Args:
        groups: learning rates that are run side by side.
    """
    rows: list[Row] = []
    for name, model in ENCODERS.items():
        if part not in name:
            continue
        began = time.perf_counter()
        for lrs in groups:
            rows += _sorted(name, replace(model, models=len(lrs) * SEEDS), lrs, steps, batch, every)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def _sorted(
    name: str, model: Encoder, lrs: Sequence[float], steps: int, batch: int, every: int
) -> list[Row]:
    """Train the models of one variant: their rows."""
    torch.manual_seed(1)
    at, draw = model.parameters(), torch.Generator().manual_seed(2)
    course = torch.zeros(steps, model.models)

    def loss(at: Parameters, step: int) -> Tensor:
        found = _sort_loss(model, at, *to_sort(batch, draw, model.models))
        course[step - 1] = found.detach()
        return found

    for _ in train(at, loss, steps, lrs, warmup=model.warmup, max_norm=None):
        pass
    with torch.no_grad():
        validation, test = (
            _sort_loss(model, at, *to_sort(200, torch.Generator().manual_seed(seed), model.models))
            for seed in (10_000, 20_000)
        )
    means = course.unflatten(0, (-1, every)).mean(1)
    return model_rows(
        {
            "variant": name, "order": ORDERS[model.norm_first], "layers": model.num_layers,
            "warmup": model.warmup,
        },
        lrs,
        {"validation": -validation, "loss": test}
        | {str(every * k): mean for k, mean in enumerate(means, 1)},
    )  # fmt: skip


RUNS = {"residual": residual, "norm_order": norm_order}
VARIANTS = {"residual": tuple(STACKS), "norm_order": tuple(ENCODERS)}


# --------------------------------------------------------------------------- files


def write(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows of an experiment to its file; variants that they don't have are kept."""
    return replace_rows(FOLDER / f"transformer_{name}.csv", rows, VARIANTS[name])


@dataclass(frozen=True)
class Found:
    """What a variant reached, at the learning rate that validation chose and at all others.

    Attributes:
        lr: the learning rate with the smallest mean loss on validation data.
        by_lr: the test loss of each seed (seeds,) by learning rate.
        steps: numbers of training steps.
        curve: the loss of each seed after so many steps at `lr` (seeds, steps): on test data for
            `residual`, in training for `norm_order`.
    """

    lr: float
    by_lr: dict[float, Tensor]
    steps: tuple[int, ...]
    curve: Tensor

    @property
    def loss(self) -> Tensor:
        """The test loss of each seed at the end (seeds,)."""
        return self.by_lr[self.lr]

    @property
    def result(self) -> tuple[float, float]:
        """Mean and standard deviation of `loss`."""
        return self.loss.mean().item(), self.loss.std().item()


def read(name: str) -> dict[str, Found]:
    """What a stored experiment found, by variant."""
    rows = read_rows(FOLDER / f"transformer_{name}.csv")
    found = {}
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        ends = [row for row in mine if row.get("steps") in (None, mine[-1].get("steps"))]
        lrs = list(dict.fromkeys(float(row["lr"]) for row in ends))
        lr = best_lr(ends)
        by_lr = {
            each: torch.tensor([float(row["loss"]) for row in ends if float(row["lr"]) == each])
            for each in lrs
        }
        best = [row for row in mine if float(row["lr"]) == lr]
        if "steps" in mine[0]:
            steps = tuple(dict.fromkeys(int(row["steps"]) for row in mine))
            losses = [float(row["loss"]) for row in best]
            curve = torch.tensor(losses).view(len(steps), SEEDS).T
        else:
            steps = tuple(int(column) for column in mine[0] if column.isdigit())
            curve = torch.tensor([[float(row[str(step)]) for step in steps] for row in best])
        found[variant] = Found(lr, by_lr, steps, curve)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat an experiment, or a part of it, and write its file."""
    print(write(*run_named(__doc__, RUNS, arguments, "variants with this in their name")))


if __name__ == "__main__":
    main()
