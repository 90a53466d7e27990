"""Figures of the bench: contestants that take turns, so that other load meets all of them."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Figure:
    """One measurement. `detail` says on what it was taken."""

    name: str
    value: float
    unit: str
    detail: str = ""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes with one thread meanwhile."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def taking_turns(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; another one begins each round.

    Each runs once before, which does not count.
    """
    names = list(contestants)
    for name in names:
        contestants[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            started = clock()
            contestants[name]()
            seconds[name].append(clock() - started)
    return seconds


def compared(
    what: str, seconds: Mapping[str, list[float]], ratios: list[tuple[str, str]], detail: str
) -> list[Figure]:
    """Median milliseconds of each contestant, and how many times faster the first of a pair is."""
    figures = [
        Figure(f"{what}, {name}", 1000 * statistics.median(times), "ms", detail)
        for name, times in seconds.items()
    ]
    for fast, slow in ratios:
        quotients = [b / a for a, b in zip(seconds[fast], seconds[slow], strict=True)]
        figures.append(
            Figure(
                f"{what}, {fast} against {slow}", statistics.median(quotients), "times faster",
                f"median of {len(quotients)} rounds",
            )
        )  # fmt: skip
    return figures


def refuse_other_values(results: Mapping[str, Tensor]) -> None:
    """Refuse results that differ by more than rounding."""
    (first, expected), *others = results.items()
    for name, result in others:
        error = (result - expected).abs().max().item()
        if not error <= 1e-3:
            raise RuntimeError(f"{name} and {first} differ by {error:.2g}")


def refuse_other_ids(results: Mapping[str, Tensor]) -> None:
    """Refuse ids that differ in more than a tenth of the rows: a tie may fall either way."""
    (first, expected), *others = results.items()
    for name, result in others:
        if result.shape != expected.shape:
            raise RuntimeError(f"{name} and {first} wrote {result.shape} and {expected.shape} ids")
        share = (result == expected).all(1).double().mean().item()
        if share < 0.9:
            raise RuntimeError(f"{name} and {first} agree on {share:.0%} of the sentences")
