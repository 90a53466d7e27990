"""Measurements of translations, and the trace of a beam."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from toolkit.corpora import translation
from toolkit.seq2seq import measures

A, B, C, D = range(4, 8)


class Table(nn.Module):
    """Next-token probabilities by step and previous token: a translator without a network."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = table  # (steps, V, V)

    def start(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor]:
        return (torch.zeros(len(source), dtype=torch.int64),)

    def step(self, previous: Tensor, state: tuple[Tensor]) -> tuple[Tensor, tuple[Tensor]]:
        (t,) = state
        return self.table[t, previous].log(), (t + 1,)


@pytest.fixture
def crossing() -> Table:
    """The greedy path has 0.6 * 0.5, the best one 0.4 * 0.95."""
    table = torch.full((3, 8, 8), 0.125)
    table[0, 1] = table[1, A] = table[1, B] = 0.0
    table[0, 1, [A, B]] = torch.tensor([0.6, 0.4])
    table[1, A, [C, D]] = torch.tensor([0.5, 0.5])
    table[1, B, [C, D]] = torch.tensor([0.05, 0.95])
    table[2] = 0.0
    table[2, :, 2] = 1.0
    return Table(table)


@pytest.fixture(scope="module")
def pairs() -> list[translation.Pair]:
    return translation.make_pairs(20, "en", "zh", kinds=["date", "percent"], length=2)


# --------------------------------------------------------------------------- translations


def test_the_references_themselves_are_perfect(pairs: list[translation.Pair]) -> None:
    texts = [pair.target for pair in pairs]
    assert measures.exact_rate(texts, pairs) == 1.0
    assert measures.bleu(texts, pairs) > 99.9


def test_a_wrong_text_costs_one_sentence_and_some_bleu(pairs: list[translation.Pair]) -> None:
    texts = [pair.target for pair in pairs]
    texts[0] = texts[0][:-1]
    assert measures.exact_rate(texts, pairs) == 0.95
    assert 90 < measures.bleu(texts, pairs) < 99.99


def test_bleu_of_a_language_with_spaces_counts_words() -> None:
    german = translation.make_pairs(20, "en", "de", kinds=["date"], length=2)
    assert measures.bleu([p.target for p in german], german) > 99.9
    assert measures.bleu([p.target.replace(" ", "") for p in german], german) < 50


# --------------------------------------------------------------------------- search


def test_a_beam_of_one_is_greedy_and_of_two_finds_the_best(crossing: Table) -> None:
    source = torch.tensor([[4]])
    _, ids, chance = measures.trace_beam(crossing, source, 1, 3)
    assert ids[0] == A
    assert chance == pytest.approx(0.30)
    _, ids, chance = measures.trace_beam(crossing, source, 2, 3)
    assert ids == (B, D, 2)
    assert chance == pytest.approx(0.38)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 30])
def test_a_trace_looks_at_the_extensions_of_what_it_kept(crossing: Table, beam_size: int) -> None:
    steps, best, _ = measures.trace_beam(crossing, torch.tensor([[4]]), beam_size, 3)
    alive = {()}
    for step in steps:
        assert {prefix[:-1] for prefix in step.looked_at} == alive
        assert len(step.kept) <= beam_size
        dropped = [p for name, p in step.looked_at.items() if name not in step.kept]
        assert all(step.looked_at[name] >= max(dropped, default=0) for name in step.kept)
        alive = {prefix for prefix in step.kept if prefix[-1] != 2}
    assert best in {prefix for step in steps for prefix in step.kept}


def test_a_wide_beam_sees_everything() -> None:
    torch.manual_seed(0)
    model = Table(torch.softmax(torch.randn(3, 5, 5), -1))
    _, ids, chance = measures.trace_beam(model, torch.tensor([[4]]), 1000, 3)

    def joint(tokens: tuple[int, ...]) -> float:
        before = (1, *tokens)
        return math.prod(float(model.table[t, before[t], token]) for t, token in enumerate(tokens))

    others = ((*start, 2) for n in range(3) for start in itertools.product([0, 1, 3, 4], repeat=n))
    unfinished = itertools.product([0, 1, 3, 4], repeat=3)
    assert chance == pytest.approx(max(map(joint, itertools.chain(others, unfinished))), rel=1e-4)
    assert joint(ids) == pytest.approx(chance, rel=1e-4)


def test_the_page_of_a_search_says_what_was_kept_and_escapes_words(crossing: Table) -> None:
    words = ["<pad>", "<bos>", "<eos>", "<unk>", "A", "B", "C", "D"]
    steps, *found = measures.trace_beam(crossing, torch.tensor([[4]]), 2, 3)
    page = measures.search_page(steps, words, *found)
    assert page.count("<table") == 3
    assert "step 1, kept: A; B" in page
    assert "Result: <b>B D</b>, probability 0.380" in page
    assert ">0.40</td>" in page
    assert "&lt;bos&gt;" in page
    assert "<bos>" not in page
