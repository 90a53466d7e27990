"""Models, measures and data for the experiments of the chapter on tokens and positions.

* Measures of a position code, that is of a table (length, width) with one row a position:
  smallest distance, what a linear map can and cannot do with it, how many columns move.
* The requirements of a position code, a number for each.
* A small encoder without positions of its own. What tells it the order, a module that adds
  vectors or an attention that knows distances, is handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# --------------------------------------------------------------------------- measures of a code


@dataclass(frozen=True)
class Closest:
    """The two rows of a table that lie nearest to each other, and their distance."""

    distance: float
    first: int
    second: int


def closest_rows(table: Tensor, block: int = 1000) -> Closest:
    """The smallest distance between two different rows, over all pairs, in float64.

    Args:
        table: (N, D) with at least two rows.
        block: rows compared with all others at a time; it only bounds the memory.

    Raises:
        ValueError: if the table has fewer than two rows.
    """
    if len(table) < 2:
        raise ValueError(f"two rows are needed for a distance; the table has {len(table)}")
    rows = table.double()
    squares = rows.square().sum(-1)  # (N,)
    best, first, second = math.inf, 0, 0
    for begin in range(0, len(rows), block):
        part = rows[begin : begin + block]  # (block, D)
        gram = squares[begin : begin + block, None] + squares - 2 * part @ rows.T  # (block, N)
        inside = torch.arange(len(part))
        gram[inside, begin + inside] = math.inf  # not the row itself
        value, place = gram.flatten().min(0)
        if value < best:
            best = value.item()
            first, second = begin + int(place) // len(rows), int(place) % len(rows)
    # Subtracting squares cancels; the distance of the pair itself is exact.
    exact = (rows[first] - rows[second]).norm().item()
    return Closest(exact, min(first, second), max(first, second))


def fit_residual(features: Tensor, targets: Tensor) -> float:
    """Root mean square of what the best linear map from features to targets leaves, in float64.

    features: (N, F), targets: (N, G). No constant is added.
    """
    x, y = features.double(), targets.double()
    solution = torch.linalg.lstsq(x, y, driver="gelsd").solution
    return (x @ solution - y).square().mean().sqrt().item()


def moving_columns(table: Tensor, threshold: float = 1.0) -> int:
    """How many columns change by more than `threshold` between the rows of the table."""
    return int(((table.amax(0) - table.amin(0)) > threshold).sum())


def place_readout(table: Tensor) -> float:
    """Share of variance of the position that a linear read-out of the code explains.

    Fitted on the even rows and measured on the odd ones; 1 is perfect, 0 no better than the mean.
    """
    rows = torch.cat([table.double(), torch.ones(len(table), 1, dtype=torch.float64)], 1)
    place = torch.linspace(0, 1, len(table), dtype=torch.float64)
    even = torch.arange(len(table)) % 2 == 0
    # Directions weaker than rcond are left out, or rounding would be amplified a millionfold.
    solution = torch.linalg.lstsq(rows[even], place[even, None], rcond=1e-6, driver="gelsd")
    error = rows[~even] @ solution.solution[:, 0] - place[~even]
    return 1 - (error.var() / place[~even].var()).item()


# --------------------------------------------------------------------------- requirements


@dataclass(frozen=True)
class Report:
    """What a position code offers: one number a requirement.

    bounded: largest absolute entry.
    unique: distance of the two positions that are hardest to tell apart.
    neighbours: smallest distance of two neighbours.
    equal_gaps: how much the distance of positions `gap` apart varies along the sequence,
        (largest - smallest) / mean; 0 if equal gaps are equally different everywhere.
    token: share of tokens still nearest to their own embedding after the code was added.
    order: share of positions that one affine map, fitted to "one later", brings nearer to the
        next position than to the previous one.
    distance: the largest gap up to which a larger gap always means a larger mean distance, by one
        percent at least.
    offset: what the best affine map from the code of p to the code of p + gap leaves, relative to
        the code's root mean square; 0 if an offset is one linear map.
    """

    bounded: float
    unique: float
    neighbours: float
    equal_gaps: float
    token: float
    order: float
    distance: int
    offset: float

    def holds(self) -> dict[str, bool]:
        """The requirements, and whether each is met. The limits are conventions of the book."""
        return {
            "bounded": self.bounded <= 10,
            "unique": self.unique > 0.1,
            "neighbours": self.neighbours > 0.1,
            "equal gaps": self.equal_gaps < 0.01,
            "token": self.token > 0.99,
            "order": self.order > 0.99,
            "distance": self.distance >= 5,
            "offset": self.offset < 1e-3,
        }


def report(table: Tensor, gap: int = 5, tokens: int = 100) -> Report:
    """Measure a position code.

    Args:
        table: (length, D), one row a position; narrower ones than 64 are filled up with zeros.
        gap: the offset of `equal_gaps` and `offset`.
        tokens: how many random token vectors of variance 1 the code is added to.

    Raises:
        ValueError: if the table is not longer than 2 * gap.
    """
    if len(table) <= 2 * gap:
        raise ValueError(f"gap {gap} needs more than {2 * gap} positions, there are {len(table)}")
    rows = table.double()
    steps = {k: (rows[k:] - rows[:-k]).norm(dim=1) for k in range(1, 2 * gap + 1)}
    mean = {k: step.mean().item() for k, step in steps.items()}
    # One percent, because the means of random codes rise and fall a little by chance.
    flat = [k for k in range(1, 2 * gap) if mean[k + 1] < 1.01 * mean[k]]

    wide = F.pad(rows, (0, max(0, 64 - rows.shape[1])))  # (length, D or 64)
    draw = torch.Generator().manual_seed(0)
    words = torch.randn(tokens, wide.shape[1], generator=draw, dtype=torch.float64)
    which = torch.randint(tokens, (len(wide),), generator=draw)
    nearest = torch.cdist(words[which] + wide, words).argmin(-1)  # (length,)

    moved = _affine(rows[:-1], rows[1:])  # (length - 1, D): where "one later" takes each position
    later = (moved[1:] - rows[2:]).norm(dim=1) < (moved[1:] - rows[:-2]).norm(dim=1)
    left = _affine(rows[:-gap], rows[gap:]) - rows[gap:]
    scale = rows.square().mean().sqrt().clamp(min=1e-12)
    spread = (steps[gap].max() - steps[gap].min()) / steps[gap].mean().clamp(min=1e-12)
    return Report(
        bounded=rows.abs().max().item(),
        unique=closest_rows(rows).distance,
        neighbours=steps[1].min().item(),
        equal_gaps=spread.item(),
        token=(nearest == which).double().mean().item(),
        order=later.double().mean().item(),
        distance=flat[0] if flat else 2 * gap,
        offset=(left.square().mean().sqrt() / scale).item(),
    )


def _affine(x: Tensor, y: Tensor) -> Tensor:
    """The best affine map of x to y, applied to x."""
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)
    return x @ torch.linalg.lstsq(x, y, driver="gelsd").solution


# --------------------------------------------------------------------------- a small encoder


class Attention(nn.Module):
    """Plain multi-head self-attention, (B, T, D) -> (B, T, D): it knows no order."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions. x: (B, T, D)."""
        batch, length, width = x.shape
        joint = self.inputs(x).view(batch, length, 3, self.heads, -1)  # (B, T, 3, H, Dh)
        query, key, value = joint.permute(2, 0, 3, 1, 4)  # each (B, H, T, Dh)
        mixed = F.scaled_dot_product_attention(query, key, value)  # (B, H, T, Dh)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, width))


class Encoder(nn.Module):
    """Embeddings times the root of the width, positions, two attention layers, a word a position.

    Args:
        words, answers: sizes of the input and output vocabularies.
        width: of the token vectors.
        positions: module (B, T, D) -> (B, T, D) that adds positions, or None.
        attention: makes the attention of one layer; its result may be the output alone or a
            tuple that begins with it. Plain attention with four heads if None.
        layers: number of layers, each attention and a feed-forward network in the pre-norm form.
    """

    def __init__(
        self,
        words: int,
        answers: int,
        width: int,
        positions: nn.Module | None = None,
        attention: Callable[[], nn.Module] | None = None,
        layers: int = 2,
    ) -> None:
        super().__init__()
        make = attention or (lambda: Attention(width, 4))
        self.tokens = nn.Embedding(words, width)
        nn.init.normal_(self.tokens.weight, std=width**-0.5)  # variance 1 after the scaling
        self.scale = math.sqrt(width)
        self.positions = nn.Identity() if positions is None else positions
        self.attentions = nn.ModuleList(make() for _ in range(layers))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.answer = nn.Linear(width, answers)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) int64 -> logits (B, T, answers)."""
        x = self.positions(self.tokens(tokens) * self.scale)  # (B, T, D)
        for layer, (attend, network) in enumerate(zip(self.attentions, self.networks, strict=True)):
            mixed = attend(self.norms[2 * layer](x))
            x = x + (mixed[0] if isinstance(mixed, tuple) else mixed)  # (B, T, D)
            x = x + network(self.norms[2 * layer + 1](x))  # (B, T, D)
        return self.answer(self.norms[-1](x))  # (B, T, answers)


def right_by_position(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    """Share of right answers at each position, NaN where no row has a target.

    Args:
        model: (B, T) -> (B, T, answers).
        tokens, targets: (B, T); targets are -1 where nothing is asked.

    Returns:
        float32 (T,) on the CPU.
    """
    with torch.no_grad():
        right = model(tokens).argmax(-1) == targets  # (B, T)
    asked = targets >= 0
    return ((right & asked).sum(0) / asked.sum(0)).float().cpu()
