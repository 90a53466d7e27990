"""Experiments about where the norm stands, for the page about pre-norm and post-norm.

    model = make(depth=12, norm_first=True)
    gradients = layer_gradients(model, inputs, targets)
    sizes = stream_sizes(model, inputs)
    runs = compare(make, stream, depths=(2, 6, 12))

Modules that the chapter builds are arguments. A *GPT* has `token`, `position`, `blocks` and
`final_norm`; its forward takes ids (B, T) and returns logits (B, T, V). The *stream* of a GPT is
what runs past the branches: the embeddings, and then what each block returns.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toolkit import device, text, training
from toolkit.objectives_lab import rescale

ORDERS = ("post-norm", "pre-norm")
_WIDTH_OF_THE_START = 768  # of the smallest GPT, for which its start was chosen


def rms(x: Tensor) -> float:
    """Root mean square of all numbers of x."""
    return x.detach().double().square().mean().sqrt().item()


def characters(limit: int = 300_000) -> tuple[Tensor, int]:
    """Docstrings of Python's library, character after character: ids (M,), and V."""
    written = text.library_text(limit=limit)
    symbols = text.Characters.of(written)
    return symbols.encode(written), len(symbols)


def blocks_of(
    stream: Tensor, length: int, batch: int, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random blocks of a stream (M,): inputs and targets, (batch, length) each."""
    starts = torch.randint(len(stream) - length, (batch, 1), generator=draw)  # (B, 1)
    rows = stream[starts + torch.arange(length + 1)]  # (B, length + 1)
    return rows[:, :-1], rows[:, 1:]


def same_start(model: nn.Module) -> nn.Module:
    """Widen the start of a narrow GPT, in place, so that its branches are as strong as at 768.

    What a linear map with weights N(0, s^2) returns grows with s sqrt(D); so s is multiplied by
    sqrt(768 / D). Returns the model.
    """
    width = model.token.weight.shape[1]
    return rescale(model, math.sqrt(_WIDTH_OF_THE_START / width))


# --------------------------------------------------------------------------- at the start


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def layer_gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> list[float]:
    """Norm of the loss's gradient by the parameters of each block, the first block first.

    The model's own gradients are empty afterwards.
    """
    model.zero_grad(set_to_none=True)
    _loss(model, inputs, targets).backward()
    found = [
        math.sqrt(sum(p.grad.double().square().sum().item() for p in block.parameters()))
        for block in model.blocks
    ]
    model.zero_grad(set_to_none=True)
    return found


@torch.no_grad()
def stream_sizes(model: nn.Module, ids: Tensor) -> list[float]:
    """RMS of the stream: of the embeddings, then of what each block returns (N + 1 numbers)."""
    mode = model.training
    model.eval()
    found: list[Tensor] = []
    hooks = [model.blocks[0].register_forward_pre_hook(lambda _, given: found.append(given[0]))]
    hooks += [b.register_forward_hook(lambda _, __, made: found.append(made)) for b in model.blocks]
    try:
        model(ids)
    finally:
        for hook in hooks:
            hook.remove()
        model.train(mode)
    return [rms(x) for x in found]


@torch.no_grad()
def grow(
    branch: Callable[[], Callable[[Tensor], Tensor]], depth: int, width: int, *,
    tokens: int = 64, seed: int = 0,
) -> list[float]:  # fmt: skip
    """RMS of x after each of `depth` steps x + branch(norm(x)), from vectors of RMS 1.

    Args:
        branch: called for each step, returns a new map (tokens, width) -> (tokens, width).
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        x = F.layer_norm(torch.randn(tokens, width), (width,))  # (tokens, width)
        found = []
        for _ in range(depth):
            x = x + branch()(F.layer_norm(x, (width,)))  # (tokens, width)
            found.append(rms(x))
    return found


# --------------------------------------------------------------------------- training


def train_once(
    model: nn.Module, stream: Tensor, *, steps: int = 80, lr: float = 4e-3, warmup_steps: int = 0,
    length: int = 16, batch: int = 12, seed: int = 0,
) -> list[float]:  # fmt: skip
    """Train on random blocks with AdamW, without clipping: the loss of every step.

    The rate rises linearly in the first `warmup_steps` steps and then stays as it is, so that runs
    with and without warm-up differ in nothing else. Equal seeds see equal batches.
    """
    draw = torch.Generator().manual_seed(seed)
    adam = functools.partial(
        torch.optim.AdamW, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True
    )
    history = training.fit(
        model, lambda step: _loss(model, *blocks_of(stream, length, batch, draw)), steps,
        lr=lr, clip=None, optimiser=adam, seed=seed, preset=device.preset("cpu"),
        schedule=lambda step: min(1.0, (step + 1) / max(warmup_steps, 1)), progress=False,
    )  # fmt: skip
    return history.loss


@dataclass
class Runs:
    """Trainings of both orders at several depths, with and without warm-up.

    losses: of an order, a warm-up and a depth: one list of losses for each seed. last: how many
    steps at the end are averaged. seconds: of the processor, all runs.
    """

    depths: tuple[int, ...]
    warmups: tuple[int, ...]
    last: int
    losses: dict[tuple[str, int, int], list[list[float]]] = field(default_factory=dict)
    seconds: float = 0.0

    def ends(self, order: str, warmup: int, depth: int) -> list[float]:
        """Mean loss of the last steps, one number a seed."""
        runs = self.losses[order, warmup, depth]
        return [sum(losses[-self.last :]) / self.last for losses in runs]

    def mean(self, order: str, warmup: int, depth: int) -> float:
        """Mean of `ends` over the seeds."""
        found = self.ends(order, warmup, depth)
        return sum(found) / len(found)

    def spread(self, order: str, warmup: int, depth: int) -> float:
        """Sample standard deviation of `ends`."""
        return torch.tensor(self.ends(order, warmup, depth), dtype=torch.float64).std().item()

    def table(self) -> str:
        """Mean and standard deviation over the seeds, a line for each order and warm-up."""
        lines = [f"{'loss at the end':26s}" + "".join(f"{f'{n} layers':>14s}" for n in self.depths)]
        for order in ORDERS:
            for warmup in self.warmups:
                name = f"{order}, {f'warm-up {warmup}' if warmup else 'no warm-up'}"
                cells = [
                    f"{self.mean(order, warmup, n):.2f} ± {self.spread(order, warmup, n):.2f}"
                    for n in self.depths
                ]
                lines.append(f"{name:26s}" + "".join(f"{cell:>14s}" for cell in cells))
        return "\n".join(lines)


def compare(
    make: Callable[[int, bool, int], nn.Module], stream: Tensor, *,
    depths: Sequence[int] = (2, 6, 12), warmups: Sequence[int] = (0, 40),
    seeds: Sequence[int] = (0, 1, 2), steps: int = 80, last: int = 20, **how: float,
) -> Runs:  # fmt: skip
    """Train both orders at each depth, with and without warm-up, once for each seed.

    Args:
        make: called with depth, whether the norm comes first, and seed; returns a new GPT.
        how: for `train_once`.
    """
    result = Runs(tuple(depths), tuple(warmups), last)
    began = time.process_time()
    for depth in depths:
        for order in ORDERS:
            for warmup in warmups:
                result.losses[order, warmup, depth] = [
                    train_once(
                        make(depth, order == "pre-norm", seed), stream, steps=steps,
                        warmup_steps=warmup, seed=seed, **how,
                    )
                    for seed in seeds
                ]  # fmt: skip
    result.seconds = time.process_time() - began
    return result
