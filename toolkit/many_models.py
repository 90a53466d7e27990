"""Many small models trained side by side, for the stored experiments of `toolkit/measured/`.

The first dimension of every parameter counts the models: five seeds for each of several learning
rates. Which learning rate is best is decided on validation data; what is reported is measured on
other data, with the mean and the spread over the seeds.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

FOLDER = Path(__file__).resolve().parent / "measured"
SEEDS = 5
Parameters = dict[str, Tensor]


def uniform(bound: float, models: int, *shape: int) -> Tensor:
    """A parameter of all models, from -bound to bound: (M, *shape)."""
    return torch.empty(models, *shape).uniform_(-bound, bound)


def embed(embedding: Tensor, ids: Tensor) -> Tensor:
    """embedding (M, V, E), ids (M, B, T) -> (M, B, T, E)."""
    rows = torch.arange(len(embedding))[:, None, None]
    return embedding[rows, ids]


def repeated(x: Tensor, times: int) -> Tensor:
    """Models one after the other, once for each of so many learning rates: (times M, …)."""
    return x.repeat(times, *[1] * (x.dim() - 1))


def cross_entropy(logits: Tensor, targets: Tensor, counted: Tensor | None = None) -> Tensor:
    """The mean loss of each model (M,): of all targets, or of those that count.

    Args:
        logits: (M, …, V), with a row for each target.
        targets: (M, B, T) or (M, B), the right ids.
        counted: like `targets`, 1 or True where a target counts; a model without any has loss 0.
    """
    each = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    each = each.view(len(targets), -1)
    if counted is None:
        return each.mean(1)
    counted = counted.flatten(1)
    return (each * counted).sum(1) / counted.sum(1).clamp(min=1)


def train(
    at: Parameters, loss: Callable[[Parameters, int], Tensor], steps: int, lrs: Sequence[float], *,
    warmup: int = 0, max_norm: float | None = 1.0,
) -> Iterator[int]:  # fmt: skip
    """Adam with each model's own learning rate; yields after every step its number from 1.

    Args:
        at: the parameters; models of one learning rate stand together, one per seed.
        loss: parameters and step -> the loss of each model (M,).
        warmup: steps in which the learning rate rises linearly from 0.
        max_norm: each model's gradient is clipped at this norm; None: never.
    """
    lr = torch.tensor(lrs).repeat_interleave(SEEDS)  # (M,)
    exp_avg = {name: torch.zeros_like(p) for name, p in at.items()}
    exp_avg_sq = {name: torch.zeros_like(p) for name, p in at.items()}
    for p in at.values():
        p.requires_grad_()
    for step in range(1, steps + 1):
        # The first half at the full learning rate, then down to 2 percent of it
        share = min(1.0, 2 * (1 - step / steps) + 0.02, step / max(warmup, 1))
        gradients = torch.autograd.grad(loss(at, step).sum(), list(at.values()))
        clip = torch.ones(len(lr))
        if max_norm is not None:
            size = sum(g.flatten(1).square().sum(1) for g in gradients).sqrt()  # (M,)
            clip = (max_norm / (size + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for (name, p), gradient in zip(at.items(), gradients, strict=True):
                each = (len(lr), *[1] * (p.dim() - 1))
                g = gradient * clip.view(each)
                exp_avg[name].lerp_(g, 0.1)
                exp_avg_sq[name].mul_(0.999).addcmul_(g, g, value=0.001)
                slope = (exp_avg_sq[name] / (1 - 0.999**step)).sqrt_().add_(1e-8)
                p -= (share * lr / (1 - 0.9**step)).view(each) * exp_avg[name] / slope
        yield step


def model_rows(
    first: Mapping[str, object], lrs: Sequence[float], columns: Mapping[str, Tensor]
) -> list[dict[str, object]]:
    """A row for each model: what all have in common, learning rate, seed, and its numbers.

    Args:
        columns: by name, the number of each model (M,).
    """
    return [
        {**first, "lr": lrs[model // SEEDS], "seed": model % SEEDS}
        | {name: round(values[model].item(), 4) for name, values in columns.items()}
        for model in range(len(lrs) * SEEDS)
    ]


def write_rows(file: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write the rows of an experiment to its file."""
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file


def replace_rows(
    file: Path,
    rows: Sequence[Mapping[str, object]],
    variants: Sequence[str],
    column: str = "variant",
) -> Path:
    """Write rows of an experiment to its file; variants that they don't have are kept.

    Args:
        variants: all that there are, in the order in which the file has them.
        column: which says what variant a row is of.
    """
    new = {str(row[column]) for row in rows}
    old = read_rows(file) if file.exists() else []
    merged = [*(row for row in old if row[column] not in new), *rows]
    return write_rows(file, sorted(merged, key=lambda row: variants.index(str(row[column]))))


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of a stored experiment."""
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def run_named(
    doc: str | None,
    runs: Mapping[str, Callable[..., Any]],
    arguments: Sequence[str] | None = None,
    part: str = "",
) -> tuple[str, Any]:
    """The command line of stored experiments: run the one that is named, on one thread.

    Args:
        doc: of the module, whose first line describes the command.
        runs: the experiments by name.
        arguments: those of the process if None.
        part: what a second argument means, with which the experiment is called; none if empty.

    Returns:
        The experiment's name, and what it returned.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("name", choices=list(runs))
    if part:
        parser.add_argument("part", nargs="?", default="", help=part)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    return given.name, runs[given.name](*([given.part] if part else []))


def best_lr(
    rows: Sequence[Mapping[str, object]], column: str = "validation", least: bool = False
) -> float:
    """The learning rate whose rows have the largest (or the least) mean of a column."""
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(float(str(row["lr"])), []).append(float(str(row[column])))
    return (min if least else max)(found, key=lambda lr: mean(found[lr]))
