"""The tasks follow their rules."""

from __future__ import annotations

import pytest
import torch

from toolkit.corpora import tasks
from toolkit.corpora.translation import BOS, EOS, PAD


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_target_is_the_source_from_its_end() -> None:
    batch = tasks.reverse_task(200, (2, 6), 5, seeded())
    lengths = batch.source_mask.sum(1).tolist()
    assert set(lengths) == {2, 3, 4, 5, 6}
    for row, n in enumerate(lengths):
        expected = batch.source[row, :n].tolist()[::-1]
        assert batch.target_out[row].tolist() == [*expected, EOS] + [PAD] * (6 - n)
        assert batch.target_in[row].tolist() == [BOS, *expected] + [PAD] * (6 - n)
        assert batch.source[row, n:].eq(PAD).all()
    assert set(batch.source[batch.source_mask].tolist()) == {4, 5, 6, 7, 8}


def test_a_single_length_needs_no_padding() -> None:
    batch = tasks.reverse_task(8, 5, 3, seeded())
    assert batch.source.shape == (8, 5)
    assert batch.target_in.shape == batch.target_out.shape == (8, 6)
    assert batch.source_mask.all()
    assert batch.target_mask.all()


@pytest.mark.parametrize("back", [0, 1, 3, 9, 12])
def test_what_is_asked_is_the_token_some_places_earlier(back: int) -> None:
    tokens, targets = tasks.recall_back(50, 10, back, 6, seeded())
    assert tokens.shape == targets.shape == (50, 10)
    for place in range(10):
        expected = tokens[:, place - back] if place >= back else torch.full((50,), -1)
        assert torch.equal(targets[:, place], expected)


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: tasks.reverse_task(5, (1, 9), 9, g).source,
        lambda g: tasks.recall_back(5, 9, 2, 9, g).tokens,
    ],
)
def test_only_the_generator_decides(draw) -> None:
    torch.manual_seed(1)
    first = draw(seeded(3))
    torch.manual_seed(2)
    assert torch.equal(first, draw(seeded(3)))
    other = draw(seeded(4))
    assert first.shape != other.shape or not torch.equal(first, other)
    assert first.dtype == torch.int64


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: tasks.reverse_task(0, 3, 3, seeded()), "batch"),
        (lambda: tasks.reverse_task(1, 0, 3, seeded()), "length"),
        (lambda: tasks.reverse_task(1, (3, 2), 3, seeded()), "length"),
        (lambda: tasks.reverse_task(1, 3, 0, seeded()), "symbols"),
        (lambda: tasks.recall_back(1, 3, -1, 3, seeded()), "back"),
        (lambda: tasks.recall_back(1, 0, 1, 3, seeded()), "length"),
    ],
)
def test_numbers_that_make_no_task_are_refused(call, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        call()
