"""What experiments with fine-tuning store: the search of a learning rate, and what it led to.

A row holds the task, the way of solving it, how many labelled examples it had, the learning rate,
the seed, validation and test metric, and a curve in thousandths, such as "512 640". A way with a
search has rows of several learning rates with one number of labelled examples; the best of them
serves all numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

Row = dict[str, object]
Setting = tuple[str, str, int]  # task, way, labelled examples


@dataclass(frozen=True)
class Seeds:
    """What one way of solving one task reached with one number of labelled examples.

    Attributes:
        lr: the learning rate that validation chose; 0 without a network.
        scores: the test metric of each seed, at `lr`.
    """

    lr: float
    scores: list[float]

    @property
    def mean(self) -> float:
        return fmean(self.scores)

    @property
    def spread(self) -> float:
        """Standard deviation of the seeds, 0 for a single one."""
        return stdev(self.scores) if len(self.scores) > 1 else 0.0


def setting(row: Row) -> Setting:
    """The task, the way and the number of labelled examples of a row."""
    return str(row["task"]), str(row["way"]), int(str(row["labelled"]))


def key(row: Row) -> tuple[str, str, int, float, int]:
    """What tells a row from all others: its setting, its learning rate and its seed."""
    return (*setting(row), float(str(row["lr"])), int(str(row["seed"])))


def searched(
    rows: Sequence[Row], task: str, way: str, labelled: int, seeds: int
) -> dict[float, float]:
    """Mean validation metric of the search's seeds (0 to seeds - 1), by learning rate."""
    found: dict[float, list[float]] = {}
    for row in rows:
        if setting(row) == (task, way, labelled) and int(str(row["seed"])) < seeds:
            found.setdefault(float(str(row["lr"])), []).append(float(str(row["validation"])))
    return {lr: fmean(found[lr]) for lr in sorted(found)}


def best(scores: dict[float, float]) -> float:
    """The learning rate with the best score, the smaller of equal ones."""
    return max(sorted(scores), key=lambda lr: scores[lr])


def grouped(
    rows: Sequence[Row], lr_of: Callable[[Row], float]
) -> Iterator[tuple[Setting, float, list[Row]]]:
    """Each setting once, with the learning rate that counts and the rows that have it."""
    found: dict[Setting, list[Row]] = {}
    for row in rows:
        found.setdefault(setting(row), []).append(row)
    for each, mine in found.items():
        lr = lr_of(mine[0])
        kept = [row for row in mine if float(str(row["lr"])) == lr]
        yield each, lr, sorted(kept, key=lambda row: int(str(row["seed"])))


def lr_of(
    rows: Sequence[Row],
    networks: Collection[str],
    chosen: Callable[[Sequence[Row], str, str], float],
) -> Callable[[Row], float]:
    """For `grouped`: of a way in `networks` the chosen learning rate, else what the row has."""

    def lr(row: Row) -> float:
        task, way, _ = setting(row)
        return chosen(rows, task, way) if way in networks else float(str(row["lr"]))

    return lr


def curve(row: Row) -> list[float]:
    """The stored curve of a row."""
    return [int(value) / 1000 for value in str(row["curve"]).split()]
