"""Tasks made by rule, for experiments in which a claim needs control.

All numbers come from the generator that is passed in, and every tensor is on the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from toolkit.corpora.translation import SPECIALS, Batch, collate


class Labelled(NamedTuple):
    """Tokens and what is to be said about them.

    tokens: (B, T) int64.
    targets: (B,) or (B, T) int64; -1 where nothing is asked.
    """

    tokens: Tensor
    targets: Tensor


def reverse_task(
    batch: int, length: int | tuple[int, int], symbols: int, generator: torch.Generator
) -> Batch:
    """Random sequences whose translation is the sequence from its end to its beginning.

    Args:
        length: symbols in a sequence, or (smallest, largest) to draw it for each row.
        symbols: how many different symbols; their ids are 4 to symbols + 3, after the specials of
            `toolkit.corpora.translation`, so that models need symbols + 4 words.

    Returns:
        source (B, S), source_mask (B, S), target_in (B, S + 1), target_out (B, S + 1), where S is
        the longest length of the batch.

    Raises:
        ValueError: batch, length or symbols below 1.
    """
    rows = _sequences(batch, length, symbols, generator)
    return collate(rows, [row[::-1] for row in rows])


def _sequences(
    batch: int, length: int | tuple[int, int], symbols: int, generator: torch.Generator
) -> list[list[int]]:
    shortest, longest = (length, length) if isinstance(length, int) else length
    _at_least_one(batch=batch, length=shortest, symbols=symbols)
    if longest < shortest:
        raise ValueError(f"length must be a number or (smallest, largest), not {length}")
    lengths = torch.randint(shortest, longest + 1, (batch,), generator=generator).tolist()
    first = len(SPECIALS)
    ids = torch.randint(first, first + symbols, (batch, longest), generator=generator).tolist()
    return [row[:n] for row, n in zip(ids, lengths, strict=True)]


def recall_back(
    batch: int, length: int, back: int, symbols: int, generator: torch.Generator
) -> Labelled:
    """Random tokens; at every position the token `back` places earlier is to be named.

    Args:
        symbols: how many different symbols; their ids are 0 to symbols - 1.

    Returns:
        tokens (B, length) int64, targets (B, length) int64: -1 at the first `back` places.

    Raises:
        ValueError: batch, length or symbols below 1, back below 0.
    """
    _at_least_one(batch=batch, length=length, symbols=symbols)
    if back < 0:
        raise ValueError(f"back must be 0 or more, not {back}")
    tokens = torch.randint(symbols, (batch, length), generator=generator)  # (B, T)
    targets = torch.full_like(tokens, -1)  # (B, T)
    if back < length:
        targets[:, back:] = tokens[:, : length - back]
    return Labelled(tokens, targets)


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be 1 or more, not {number}")
